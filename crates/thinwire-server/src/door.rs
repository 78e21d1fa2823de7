//! Who may come in: listening, TLS, the token, and limits that keep one client from harming the rest.
//!
//! A server without both encryption and a way to tell friend from stranger listens on the loopback address only. A connection that
//! has made no request that was let in within [`PATIENCE`] is closed, whatever it is busy with; so is one too many.

use crate::error::{Error, Result};
use crate::hall::{Hall, Stats};
use axum::Router;
use axum::extract::{Extension, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tonic::Code;

/// How long a connection has to get through the handshake and make a request that is let in.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Connections beyond one for each seat: pages, metrics, and those that are coming back.
const CONNECTIONS: usize = 64;

/// How often a silent connection is asked whether it is still there, and how long it has to answer.
const ASKED: Duration = Duration::from_secs(15);

/// How strangers are kept out.
#[derive(Clone, Debug, Default)]
pub struct Security {
    pub tls: Option<Tls>,
    /// What a worker must know.
    pub token: Option<String>,
}

/// Certificates, in PEM files.
#[derive(Clone, Debug)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Workers must have a certificate that this one has signed.
    pub client_ca: Option<PathBuf>,
}

impl Security {
    /// Refuses to listen where strangers are, without what keeps them out.
    pub fn check(&self, address: SocketAddr) -> Result<()> {
        let knows = self.token.is_some() || self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        if let Some(token) = &self.token
            && token.len() < 16
        {
            return Err(Error::Usage("the token is too short: accepted: at least 16 characters".to_owned()));
        }
        if address.ip().is_loopback() || (self.tls.is_some() && knows) {
            return Ok(());
        }
        let missing = match (self.tls.is_some(), knows) {
            (false, false) => "neither TLS nor a token",
            (false, true) => "a token that anyone on the way could read, for there is no TLS",
            _ => "TLS, but neither a token nor certificates of the workers",
        };
        Err(Error::Usage(format!(
            "{address} can be reached from other machines, and there is {missing}; accepted there: --tls-cert and --tls-key \
             with --token-file or --client-ca. Without them: 127.0.0.1"
        )))
    }
}

/// The certificates in a PEM file, at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let malformed = |problem: String| Error::Usage(format!("{}: {problem}", path.display()));
    let bytes = std::fs::read(path).map_err(|error| malformed(error.to_string()))?;
    let found = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| malformed(error.to_string()))?;
    if found.is_empty() { Err(malformed("there is no certificate in it".to_owned())) } else { Ok(found) }
}

fn acceptor(tls: &Tls) -> Result<TlsAcceptor> {
    let unusable = |error: &dyn std::fmt::Display| Error::Usage(format!("{}: {error}", tls.certificate.display()));
    let chain = certificates(&tls.certificate)?;
    let no_key = |error: &dyn std::fmt::Display| Error::Usage(format!("{}: {error}", tls.key.display()));
    let bytes = std::fs::read(&tls.key).map_err(|error| no_key(&error))?;
    let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| no_key(&error))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| unusable(&error))?;
    let builder = match &tls.client_ca {
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| Error::Usage(format!("{}: {error}", path.display())))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| unusable(&error))?)
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| unusable(&error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// What is known of a connection: where it comes from, and whether a request of it was let in.
struct Visitor {
    peer: SocketAddr,
    let_in: AtomicBool,
    /// It was answered, if only that the server lives, or that the token is wrong.
    answered: AtomicBool,
}

/// Between two lines of the log about connections too many.
const SHED: Duration = Duration::from_secs(1);

/// Listens; `router` answers whoever may come in, until `stop` says so.
pub async fn listen(
    listener: TcpListener,
    router: Router,
    hall: Arc<Hall>,
    security: Security,
    mut stop: watch::Receiver<bool>,
) -> Result<()> {
    let acceptor = security.tls.as_ref().map(acceptor).transpose()?;
    let guard = Guard { token: security.token.map(Arc::from), hall: Arc::clone(&hall) };
    let router = router.layer(axum::middleware::from_fn_with_state(guard, let_in));
    let room = Arc::new(Semaphore::new(hall.rules.max_members + CONNECTIONS));
    let mut shed: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.changed() => return Ok(()),
        };
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(Duration::from_millis(50)).await; // too many open files, most likely: some will be closed
            continue;
        };
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            Stats::add(&hall.stats.refused, 1);
            if shed.is_none_or(|last| last.elapsed() > SHED) {
                shed = Some(Instant::now());
                tracing::warn!(%peer, refused = hall.stats.refused.load(Ordering::Relaxed), "refused: too many connections");
            }
            continue;
        };
        let _ = stream.set_nodelay(true);
        let visitor = Arc::new(Visitor { peer, let_in: AtomicBool::new(false), answered: AtomicBool::new(false) });
        let (router, acceptor) = (router.clone().layer(Extension(Arc::clone(&visitor))), acceptor.clone());
        let (hall, mut stop) = (Arc::clone(&hall), stop.clone());
        tokio::spawn(async move {
            let _place = place;
            let serving = async {
                let served = match acceptor {
                    Some(acceptor) => match acceptor.accept(stream).await {
                        Ok(stream) => serve(stream, router).await,
                        Err(error) => {
                            Stats::add(&hall.stats.refused, 1);
                            tracing::warn!(%peer, %error, "refused: no TLS with this one");
                            return;
                        }
                    },
                    None => serve(stream, router).await,
                };
                // How the connection of one who was let in ends is the client's business.
                if let Err(error) = served
                    && !visitor.let_in.load(Ordering::Relaxed)
                {
                    Stats::add(&hall.stats.refused, 1);
                    tracing::warn!(%peer, %error, "refused: what it sends is no request");
                }
            };
            let impatience = async {
                tokio::time::sleep(PATIENCE).await;
                if visitor.let_in.load(Ordering::Relaxed) {
                    std::future::pending::<()>().await;
                }
                if visitor.answered.load(Ordering::Relaxed) {
                    return; // and counted, if it was refused
                }
                Stats::add(&hall.stats.refused, 1);
                tracing::warn!(%peer, "closed: connected for {} s, and asked for nothing", PATIENCE.as_secs());
            };
            tokio::select! { () = serving => {}, () = impatience => {}, _ = stop.changed() => {} }
        });
    }
}

type Served = std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) -> Served {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).keep_alive_interval(ASKED).keep_alive_timeout(ASKED);
    http2.max_concurrent_streams(16).max_header_list_size(16 << 10);
    http2.initial_stream_window_size(2 << 20).initial_connection_window_size(4 << 20);
    builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await
}

#[derive(Clone)]
struct Guard {
    token: Option<Arc<str>>,
    hall: Arc<Hall>,
}

/// Lets a request in that knows the token, if there is one. Whether the server lives may be asked by anyone.
async fn let_in(
    State(guard): State<Guard>,
    Extension(visitor): Extension<Arc<Visitor>>,
    request: Request,
    next: Next,
) -> Response {
    let open = request.uri().path() == "/healthz";
    let knows = guard.token.as_deref().is_none_or(|token| knows(request.headers(), token));
    if knows {
        visitor.let_in.store(true, Ordering::Relaxed);
    }
    visitor.answered.store(true, Ordering::Relaxed);
    let (peer, path) = (visitor.peer, request.uri().path().to_owned());
    if knows || open {
        let answer = next.run(request).await;
        if let Some(status) = refusal(&answer) {
            Stats::add(&guard.hall.stats.refused, 1);
            tracing::warn!(%peer, path, code = ?status.code(), why = status.message(), "refused");
        }
        return answer;
    }
    Stats::add(&guard.hall.stats.refused, 1);
    tracing::warn!(%peer, path, "refused: the token is wrong, or missing");
    let grpc = request
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    match grpc {
        true => tonic::Status::unauthenticated("the token is wrong, or missing").into_http(),
        // A browser then asks for a password, which is the token.
        false => {
            let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"thinwire: any name, and the token for a password\"")];
            (StatusCode::UNAUTHORIZED, ask, "the token is wrong, or missing\n").into_response()
        }
    }
}

/// What a worker was answered, if it was a no: by the service, or by gRPC itself for what is malformed or too long. Not that it
/// should come again, that the log no longer has what it asks for, or that the server has a problem of its own.
fn refusal(answer: &Response) -> Option<tonic::Status> {
    let status = tonic::Status::from_header_map(answer.headers())?;
    let harmless = [Code::Ok, Code::Cancelled, Code::Unavailable, Code::NotFound, Code::Unknown];
    (!harmless.contains(&status.code())).then_some(status)
}

/// Whether the headers have the token: as `Bearer`, or as the password of `Basic`.
fn knows(headers: &HeaderMap, token: &str) -> bool {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if let Some(given) = given.strip_prefix("Bearer ") {
        return same(given.as_bytes(), token.as_bytes());
    }
    let decoded =
        given.strip_prefix("Basic ").and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok());
    let password = decoded.as_deref().and_then(|pair| pair.splitn(2, |byte| *byte == b':').nth(1));
    password.is_some_and(|password| same(password, token.as_bytes()))
}

/// In a time that tells nothing but the length.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && std::hint::black_box(a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_protection_only_loopback_is_listened_on() {
        let tls = |client_ca| Some(Tls { certificate: "c".into(), key: "k".into(), client_ca });
        let token = Some("0123456789abcdef".to_owned());
        let (outside, inside) = ("0.0.0.0:1".parse().unwrap(), ["127.0.0.1:1", "[::1]:1"].map(|a| a.parse().unwrap()));
        let refused = |security: &Security| security.check(outside).unwrap_err().to_string();
        let nothing = Security::default();
        inside.iter().for_each(|address| nothing.check(*address).unwrap());
        assert!(refused(&nothing).contains("neither TLS nor a token"));
        assert!(refused(&Security { token: token.clone(), tls: None }).contains("no TLS"));
        assert!(refused(&Security { token: None, tls: tls(None) }).contains("neither a token nor certificates"));
        Security { token, tls: tls(None) }.check(outside).unwrap();
        Security { token: None, tls: tls(Some("ca".into())) }.check(outside).unwrap();
        let short = Security { token: Some("secret".to_owned()), tls: None };
        assert!(short.check(inside[0]).unwrap_err().to_string().contains("too short"));
    }

    #[test]
    fn the_token_is_known_or_not() {
        let headers = |value: &str| HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        let basic = |pair: &str| format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair));
        for good in ["Bearer secret", &basic("me:secret"), &basic(":secret")] {
            assert!(knows(&headers(good), "secret"), "{good}");
        }
        for bad in
            ["", "secret", "Bearer", "Bearer Secret", "Bearer secrets", "Basic !", &basic("secret"), &basic("secret:x")]
        {
            assert!(!knows(&headers(bad), "secret"), "{bad}");
        }
        assert!(!knows(&HeaderMap::new(), "secret"));
        assert!(knows(&headers(&basic("a:b:c")), "b:c"));
    }
}
