//! Who may come in: listening, TLS, the token, and limits that keep one client from harming the rest.
//!
//! A server without both encryption and a way to tell friend from stranger listens on the loopback address only. A connection that
//! has made no request that was let in within [`PATIENCE`] is closed, whatever it is busy with; those
//! that have not are few, `places`.

use crate::certificate;
use crate::error::{Error, Result};
use crate::hall::{Hall, Stats};
use crate::origin;
use crate::places::Places;
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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
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
    /// The token is announced to workers of the same user on this machine, [`local`](crate::local).
    pub announced: bool,
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
    /// A token of its own, which workers of the same user on this machine find by themselves.
    pub fn local() -> Security {
        Security { token: Some(crate::local::new_token()), announced: true, tls: None }
    }

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
    certificate::check_time(&tls.certificate, &chain[0], SystemTime::now())?;
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
pub(crate) struct Visitor {
    peer: SocketAddr,
    /// The names in its certificate, if it has one.
    names: OnceLock<Vec<String>>,
    /// Its place among those who have not been let in yet, and the one it gets then.
    number: u64,
    places: Arc<Mutex<Places>>,
    room: Arc<Semaphore>,
    place: OnceLock<OwnedSemaphorePermit>,
    let_in: AtomicBool,
    /// It was answered, if only that the server lives, or that the token is wrong.
    answered: AtomicBool,
}

impl Visitor {
    /// Lets it in, if there is room for one more.
    fn come_in(&self) -> bool {
        if self.place.get().is_none() {
            let Ok(place) = Arc::clone(&self.room).try_acquire_owned() else { return false };
            let _ = self.place.set(place);
            self.leave();
        }
        self.let_in.store(true, Ordering::Relaxed);
        true
    }

    fn leave(&self) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).leave(self.number);
    }

    /// By which seats are counted: a certificate's name, which must be the worker's, or an address.
    pub fn identity(&self, name: &str) -> Result<String, tonic::Status> {
        match self.names.get() {
            Some(names) if names.iter().any(|own| own == name) => Ok(format!("certificate {name}")),
            Some(names) => Err(tonic::Status::permission_denied(match names.first() {
                Some(own) => format!("the certificate is of {own:?}; join under that name"),
                None => "the certificate has no name to join under".to_owned(),
            })),
            None => Ok(self.peer.ip().to_string()),
        }
    }
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
    let knows_by_certificate = security.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    let named = security.token.is_some() || knows_by_certificate;
    let guard = Guard { token: security.token.map(Arc::from), tls: acceptor.is_some(), named, hall: Arc::clone(&hall) };
    let router = router.layer(axum::middleware::from_fn_with_state(guard, let_in));
    let room = Arc::new(Semaphore::new(hall.rules.max_members + CONNECTIONS));
    let places = Arc::<Mutex<Places>>::default();
    let shed = Arc::new(Mutex::new(None::<Instant>));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.changed() => return Ok(()),
        };
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(Duration::from_millis(50)).await; // too many open files, most likely: some will be closed
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (number, out) = places.lock().unwrap_or_else(PoisonError::into_inner).enter(peer.ip());
        let visitor = Arc::new(Visitor {
            peer,
            names: OnceLock::new(),
            number,
            places: Arc::clone(&places),
            room: Arc::clone(&room),
            place: OnceLock::new(),
            let_in: AtomicBool::new(false),
            answered: AtomicBool::new(false),
        });
        let (router, acceptor) = (router.clone().layer(Extension(Arc::clone(&visitor))), acceptor.clone());
        let (hall, mut stop, shed) = (Arc::clone(&hall), stop.clone(), Arc::clone(&shed));
        tokio::spawn(async move {
            let serving = async {
                let served = match acceptor {
                    Some(acceptor) => match acceptor.accept(stream).await {
                        Ok(stream) => {
                            if let Some([first, ..]) = stream.get_ref().1.peer_certificates() {
                                let _ = visitor.names.set(certificate::names(first));
                            }
                            serve(stream, router).await
                        }
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
            let crowded_out = async {
                out.notified().await;
                Stats::add(&hall.stats.refused, 1);
                let mut shed = shed.lock().unwrap_or_else(PoisonError::into_inner);
                if shed.is_none_or(|last| last.elapsed() > SHED) {
                    *shed = Some(Instant::now());
                    let refused = hall.stats.refused.load(Ordering::Relaxed);
                    tracing::warn!(%peer, refused, "refused: too many connections that ask for nothing");
                }
            };
            tokio::select! {
                () = serving => {},
                () = impatience => {},
                () = crowded_out => {},
                _ = stop.changed() => {}
            }
            visitor.leave();
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
    tls: bool,
    /// Whether requests may call the server by any name: they have something that a page has not.
    named: bool,
    hall: Arc<Hall>,
}

/// Lets a request in that knows the token, if there is one. Whether the server lives may be asked by anyone.
async fn let_in(
    State(guard): State<Guard>,
    Extension(visitor): Extension<Arc<Visitor>>,
    request: Request,
    next: Next,
) -> Response {
    let (peer, path) = (visitor.peer, shown(request.uri().path()));
    if let Err((status, why)) = origin::check(&request, guard.tls, guard.named) {
        visitor.answered.store(true, Ordering::Relaxed);
        Stats::add(&guard.hall.stats.refused, 1);
        tracing::warn!(%peer, path, why, "refused");
        return shielded((status, format!("{why}\n")).into_response());
    }
    let open = request.uri().path() == "/healthz";
    let knows = guard.token.as_deref().is_none_or(|token| knows(request.headers(), token));
    if knows && !visitor.come_in() {
        Stats::add(&guard.hall.stats.refused, 1);
        return (StatusCode::SERVICE_UNAVAILABLE, "too many connections\n").into_response();
    }
    visitor.answered.store(true, Ordering::Relaxed);
    if knows || open {
        let answer = next.run(request).await;
        if let Some(status) = refusal(&answer) {
            Stats::add(&guard.hall.stats.refused, 1);
            tracing::warn!(%peer, path, code = ?status.code(), why = status.message(), "refused");
        }
        return shielded(answer);
    }
    Stats::add(&guard.hall.stats.refused, 1);
    tracing::warn!(%peer, path, "refused: the token is wrong, or missing");
    match origin::is_grpc(request.headers()) {
        true => tonic::Status::unauthenticated("the token is wrong, or missing").into_http(),
        // A browser then asks for a password, which is the token.
        false => {
            let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"thinwire: any name, and the token for a password\"")];
            shielded((StatusCode::UNAUTHORIZED, ask, "the token is wrong, or missing\n").into_response())
        }
    }
}

/// What keeps a browser from making more of an answer than it is. The page says itself what it may load.
fn shielded(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    if !origin::is_grpc(headers) {
        for (name, value) in [
            (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::X_FRAME_OPTIONS, "DENY"),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
            (header::CACHE_CONTROL, "no-store"),
        ] {
            headers.entry(name).or_insert(header::HeaderValue::from_static(value));
        }
    }
    answer
}

/// A path as the log shows it: no longer than a line.
fn shown(path: &str) -> String {
    path.chars().take(80).collect()
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
        assert!(refused(&Security { token: token.clone(), ..Security::default() }).contains("no TLS"));
        assert!(
            refused(&Security { tls: tls(None), ..Security::default() }).contains("neither a token nor certificates")
        );
        Security { token, tls: tls(None), announced: false }.check(outside).unwrap();
        Security { tls: tls(Some("ca".into())), ..Security::default() }.check(outside).unwrap();
        let short = Security { token: Some("secret".to_owned()), ..Security::default() };
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
