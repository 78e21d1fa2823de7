//! One connection to a server: how to reach it, a seat there, and what its refusals mean.

use crate::certificate::check_time;
use crate::door::certificates;
use crate::error::{Error, Result};
use crate::local;
use crate::proto::run_client::RunClient;
use crate::proto::{JoinRequest, Seat, Welcome};
use crate::service::{PART, VERSION};
use hyper_util::rt::TokioIo;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::metadata::AsciiMetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};
use tower::service_fn;

/// How long a server may take to answer the telephone, and to say who is welcome.
const ANSWER: Duration = Duration::from_secs(20);

/// How to reach a server.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// `HOST:PORT`.
    pub address: String,
    /// By which the server knows this worker again.
    pub name: String,
    /// The run to come back to; any if none is named.
    pub run: Option<String>,
    /// What the server wants to be told. Without one, that which a server on this machine has made for its user, if it has.
    pub token: Option<String>,
    /// The certificate that has signed the server's, in a PEM file. Without it there is no TLS.
    pub ca: Option<PathBuf>,
    /// This worker's certificate and its key, in PEM files.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in the server's certificate, if it is not the host of the address.
    pub server_name: Option<String>,
    /// How long the server may be out of reach before the worker gives up.
    pub patience: Duration,
}

impl JoinOptions {
    /// Without TLS, and without a token: for a server on the same machine.
    pub fn new(address: impl Into<String>, name: impl Into<String>) -> JoinOptions {
        JoinOptions {
            address: address.into(),
            name: name.into(),
            run: None,
            token: None,
            ca: None,
            identity: None,
            server_name: None,
            patience: Duration::from_secs(600),
        }
    }

    pub(crate) fn endpoint(&self) -> Result<Endpoint> {
        let unusable =
            |what: &dyn std::fmt::Display, error: &dyn std::fmt::Display| Error::Usage(format!("{what}: {error}"));
        if self.address.contains('/') {
            return Err(unusable(&self.address, &"accepted: HOST:PORT, such as 192.0.2.7:7070"));
        }
        let scheme = if self.ca.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{}", self.address));
        let endpoint = endpoint.map_err(|error| unusable(&self.address, &error))?;
        let endpoint = endpoint
            .http2_keep_alive_interval(Duration::from_secs(15))
            .keep_alive_timeout(Duration::from_secs(15))
            .keep_alive_while_idle(true)
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(8 << 20);
        let Some(ca) = &self.ca else {
            if self.identity.is_some() {
                return Err(Error::Usage("a certificate of the worker needs the server's CA too".to_owned()));
            }
            return Ok(endpoint);
        };
        let read = |path: &Path| std::fs::read(path).map_err(|error| unusable(&path.display(), &error));
        certificates(ca)?; // or the error would come with the first connection, and say less
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca)?));
        if let Some(name) = &self.server_name {
            tls = tls.domain_name(name);
        }
        let with_tls = endpoint.clone().tls_config(tls.clone());
        let with_tls = with_tls.map_err(|error| unusable(&ca.display(), &chain(&error)))?;
        let Some((certificate, key)) = &self.identity else { return Ok(with_tls) };
        check_time(certificate, &certificates(certificate)?[0], SystemTime::now())?;
        let tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
        let both = format!("{} with {}", certificate.display(), key.display());
        endpoint.tls_config(tls).map_err(|error| unusable(&both, &chain(&error)))
    }
}

/// Puts the token on every request.
#[derive(Clone)]
pub(crate) struct Token(Option<AsciiMetadataValue>);

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

pub(crate) type Client = RunClient<InterceptedService<Channel, Token>>;

/// A connection that the server has given a seat to.
pub(crate) struct Seated {
    pub client: Client,
    pub welcome: Welcome,
}

impl Seated {
    pub fn seat(&self) -> Option<Seat> {
        Some(Seat { slot: self.welcome.slot, session: self.welcome.session })
    }
}

/// Why a conversation ended.
pub(crate) enum End {
    /// It may be better next time.
    Lost(String),
    /// It will not.
    Refused(String),
    /// The log no longer has the round that this worker needs.
    Gap,
}

impl From<Status> for End {
    fn from(status: Status) -> End {
        let text = match std::error::Error::source(&status) {
            Some(source) => format!("{}: {}", status.message(), chain(source)),
            None => status.message().to_owned(),
        };
        if is_about_trust(&text) {
            return End::Refused(text);
        }
        // What TLS answers to one who does not speak it looks like this.
        if text.contains("frame with invalid size") {
            return End::Refused(
                "what it answers is no HTTP; it may want TLS, for which a CA must be given".to_owned(),
            );
        }
        match status.code() {
            Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unimplemented => End::Refused(text),
            Code::NotFound => End::Gap,
            _ => End::Lost(text),
        }
    }
}

/// Whether an error is about certificates, theirs or ours: one that does not fit now will not fit later.
fn is_about_trust(text: &str) -> bool {
    ["certificate", "Certificate", "UnknownIssuer", "UnknownCA"].iter().any(|word| text.contains(word))
}

/// An error and what is behind it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

/// Joins over a connection of its own.
///
/// A server that wants a certificate and gets none says so after the handshake (TLS 1.3), and what it says may be lost with the
/// connection. One that dies at this moment looks the same, but not three times.
pub(crate) async fn connect(options: &JoinOptions, endpoint: &Endpoint) -> Result<Seated, End> {
    let nameless = options.ca.is_some() && options.identity.is_none();
    for pause in [Duration::from_millis(100), Duration::from_millis(300)] {
        match once(options, endpoint).await {
            Err((true, End::Lost(_))) if nameless => tokio::time::sleep(pause).await,
            joined => return joined.map_err(|(_, end)| end),
        }
    }
    once(options, endpoint).await.map_err(|(greeted, end)| match end {
        End::Lost(reason) if greeted => {
            End::Refused(format!("it may want a certificate of the worker, for it closes the connection ({reason})"))
        }
        end => end,
    })
}

/// The token that a server on this machine has made for its user, where none was given.
fn local_token(options: &JoinOptions) -> Option<String> {
    options.token.is_none().then(|| local::find(&options.address))?
}

/// The same, tried once; an error also says whether the server took the connection, and closed it without an answer.
async fn once(options: &JoinOptions, endpoint: &Endpoint) -> Result<Seated, (bool, End)> {
    let silent = |_| End::Lost(format!("no answer for {} s", ANSWER.as_secs()));
    // tonic would connect again by itself, at once and for ever; when to come back is the link's to say.
    let used = AtomicBool::new(false);
    let connector = service_fn(move |uri: tonic::codegen::http::Uri| {
        let again = used.swap(true, Ordering::Relaxed);
        async move {
            if again {
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was closed"));
            }
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
            let stream = TcpStream::connect((host, uri.port_u16().unwrap_or_default())).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(stream))
        }
    });
    let connected = timeout(ANSWER, endpoint.connect_with_connector(connector)).await;
    let channel = connected.map_err(|late| (false, silent(late)))?.map_err(|error| {
        let text = chain(&error);
        (false, if is_about_trust(&text) { End::Refused(text) } else { End::Lost(text) })
    })?;
    // A server on this machine may have made one since the last try.
    let found = local_token(options);
    let token = options.token.clone().or(found.clone());
    let token = token.map(|token| format!("Bearer {token}").parse()).transpose();
    let token = token.map_err(|_| (false, End::Refused("the token has characters that cannot be sent".to_owned())))?;
    let client = RunClient::with_interceptor(channel, Token(token)).max_decoding_message_size(PART + (64 << 10));
    let mut seated = Seated { client, welcome: Welcome::default() };
    let request =
        JoinRequest { version: VERSION, name: options.name.clone(), run: options.run.clone().unwrap_or_default() };
    let answered = timeout(ANSWER, seated.client.join(request)).await;
    let welcome = answered.map_err(|late| (false, silent(late)))?.map_err(|status| {
        // A server that was started anew writes its token before it answers: what was found may have been its predecessor's.
        if status.code() == Code::Unauthenticated && local_token(options) != found {
            return (false, End::Lost("it has a new token".to_owned()));
        }
        // A seat may become free.
        if status.code() == Code::ResourceExhausted {
            return (false, End::Lost(status.message().to_owned()));
        }
        // An answer of the server has no source; what the connection died of is one.
        (std::error::Error::source(&status).is_some(), End::from(status))
    })?;
    seated.welcome = welcome.into_inner();
    Ok(seated)
}
