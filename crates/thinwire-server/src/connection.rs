//! One connection to a server: how to reach it, a seat there, and what its refusals mean.

use crate::door::certificates;
use crate::error::{Error, Result};
use crate::proto::run_client::RunClient;
use crate::proto::{JoinRequest, Seat, Welcome};
use crate::service::{PART, VERSION};
use std::path::PathBuf;
use std::time::Duration;
use tonic::metadata::AsciiMetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};

/// How to reach a server.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// `HOST:PORT`.
    pub address: String,
    /// By which the server knows this worker again.
    pub name: String,
    /// The run to come back to; any if none is named.
    pub run: Option<String>,
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
        let scheme = if self.ca.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{}", self.address));
        let endpoint = endpoint.map_err(|error| unusable(&self.address, &error))?;
        let endpoint = endpoint
            .connect_timeout(Duration::from_secs(10))
            .tcp_nodelay(true)
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
        let read = |path: &PathBuf| std::fs::read(path).map_err(|error| unusable(&path.display(), &error));
        certificates(ca)?; // or the error would come with the first connection, and say less
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca)?));
        if let Some((certificate, key)) = &self.identity {
            certificates(certificate)?;
            tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        if let Some(name) = &self.server_name {
            tls = tls.domain_name(name);
        }
        endpoint.tls_config(tls).map_err(|error| unusable(&ca.display(), &chain(&error)))
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
            | Code::Unimplemented => End::Refused(text),
            Code::OutOfRange => End::Gap,
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

pub(crate) async fn connect(options: &JoinOptions, endpoint: &Endpoint) -> Result<Seated, End> {
    let channel = endpoint.connect().await.map_err(|error| {
        let text = chain(&error);
        if is_about_trust(&text) { End::Refused(text) } else { End::Lost(text) }
    })?;
    let token = options.token.as_ref().map(|token| format!("Bearer {token}").parse());
    let token =
        token.transpose().map_err(|_| End::Refused("the token has characters that cannot be sent".to_owned()))?;
    let client = RunClient::with_interceptor(channel, Token(token)).max_decoding_message_size(PART + (64 << 10));
    let mut seated = Seated { client, welcome: Welcome::default() };
    let request =
        JoinRequest { version: VERSION, name: options.name.clone(), run: options.run.clone().unwrap_or_default() };
    seated.welcome = seated.client.join(request).await?.into_inner();
    Ok(seated)
}
