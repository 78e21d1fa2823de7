//! Whom a server lets in, and what it takes from nobody: everything here is refused, and the run goes on.

use crate::helper::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thinwire_server::proto::run_client::RunClient;
use thinwire_server::proto::{FollowRequest, JoinRequest, Seat, SendPart, SnapshotRequest};
use thinwire_server::{Error, JoinOptions, RemoteGroup, Rules, Run, Security, Server, Tls};
use tonic::Code;

const TOKEN: &str = "a token of the tests";
const D: usize = 40;
const STEPS: u64 = 12;

/// A CA, a certificate it has signed for localhost, and one that another has signed.
struct Certificates {
    dir: tempfile::TempDir,
}

impl Certificates {
    fn new() -> Certificates {
        let certificates = Certificates { dir: tempfile::tempdir().unwrap() };
        for ca in ["ours", "theirs"] {
            let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            params.distinguished_name.push(rcgen::DnType::CommonName, ca);
            let key = rcgen::KeyPair::generate().unwrap();
            let issuer = rcgen::CertifiedIssuer::self_signed(params, key).unwrap();
            certificates.write(&format!("{ca}-ca.pem"), &issuer.pem());
            let key = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.distinguished_name.push(rcgen::DnType::CommonName, "one");
            let signed = params.signed_by(&key, &issuer).unwrap();
            certificates.write(&format!("{ca}.pem"), &signed.pem());
            certificates.write(&format!("{ca}.key"), &key.serialize_pem());
            for (name, from, to) in [("expired", 2000, 2001), ("early", 4000, 4001)] {
                params.not_before = rcgen::date_time_ymd(from, 1, 1);
                params.not_after = rcgen::date_time_ymd(to, 1, 1);
                certificates.write(&format!("{ca}-{name}.pem"), &params.signed_by(&key, &issuer).unwrap().pem());
            }
        }
        certificates
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn tls(&self, client_ca: Option<&str>) -> Tls {
        let client_ca = client_ca.map(|name| self.path(name));
        Tls { certificate: self.path("ours.pem"), key: self.path("ours.key"), client_ca }
    }
}

fn guarded(dir: &Path, security: Security) -> Server {
    let config = config(CASES[4], STEPS);
    let run = Run::create(dir, &config, &start(D), 1, STEPS, String::new(), RETENTION).unwrap();
    let rules = Rules { max_members: 3, deadline: Duration::from_secs(5), ..rules(1) };
    Server::start(run, "127.0.0.1:0".parse().unwrap(), rules, security).unwrap()
}

fn options(address: SocketAddr, name: &str) -> JoinOptions {
    let patience = Duration::from_secs(2);
    JoinOptions { patience, ..JoinOptions::new(format!("localhost:{}", address.port()), name) }
}

fn refusal(options: JoinOptions) -> String {
    match RemoteGroup::join(options) {
        Err(Error::Refused { reason, .. }) => reason,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was let in"),
    }
}

fn trains(options: JoinOptions) {
    let (member, params) = RemoteGroup::join(options).unwrap().start().unwrap();
    train(member, params, 0);
}

#[test]
fn a_shared_token_over_tls() {
    let (certificates, dir) = (Certificates::new(), tempfile::tempdir().unwrap());
    let server = guarded(
        dir.path(),
        Security { tls: Some(certificates.tls(None)), token: Some(TOKEN.to_owned()), ..Security::default() },
    );
    let ca = Some(certificates.path("ours-ca.pem"));
    let with = |token: Option<&str>, ca: Option<PathBuf>| JoinOptions {
        token: token.map(str::to_owned),
        ca,
        ..options(server.address(), "one")
    };
    assert!(refusal(with(None, ca.clone())).contains("token"));
    assert!(refusal(with(Some("another token"), ca.clone())).contains("token"));
    let strange = refusal(with(Some(TOKEN), Some(certificates.path("theirs-ca.pem"))));
    assert!(strange.contains("certificate") || strange.contains("UnknownIssuer"), "{strange}");
    let other_name = JoinOptions { server_name: Some("elsewhere".to_owned()), ..with(Some(TOKEN), ca.clone()) };
    assert!(refusal(other_name).contains("certificate"));
    assert!(server.status().refused >= 2);
    trains(with(Some(TOKEN), ca));
    assert!(server.status().digest.is_some());
}

#[test]
fn the_token_of_this_machine_is_found_with_tls_too() {
    let (certificates, dir) = (Certificates::new(), tempfile::tempdir().unwrap());
    let server = guarded(dir.path(), Security { tls: Some(certificates.tls(None)), ..Security::local() });
    let with =
        |token| JoinOptions { token, ca: Some(certificates.path("ours-ca.pem")), ..options(server.address(), "one") };
    assert!(refusal(with(Some("another token".to_owned()))).contains("token"));
    trains(with(None));
}

#[test]
fn mutual_tls() {
    let (certificates, dir) = (Certificates::new(), tempfile::tempdir().unwrap());
    let server =
        guarded(dir.path(), Security { tls: Some(certificates.tls(Some("ours-ca.pem"))), ..Security::default() });
    let with = |who: Option<&str>| JoinOptions {
        ca: Some(certificates.path("ours-ca.pem")),
        identity: who.map(|who| (certificates.path(&format!("{who}.pem")), certificates.path(&format!("{who}.key")))),
        ..options(server.address(), "one")
    };
    // TLS 1.3 tells a client after its handshake: it may look like a connection that was lost.
    for stranger in [None, Some("theirs")] {
        let error = RemoteGroup::join(with(stranger)).err().expect("a stranger was let in").to_string();
        assert!(error.contains("refused") || error.contains("out of reach"), "{error}");
    }
    assert_eq!(server.status().members.len(), 0);
    // A certificate is bound to its name: with it nobody can be put out, and no second seat taken.
    let other = refusal(JoinOptions { name: "another".to_owned(), ..with(Some("ours")) });
    assert!(other.contains("certificate is of \"one\""), "{other}");
    assert_eq!(server.status().members.len(), 0);
    trains(with(Some("ours")));
}

/// A seat that becomes free is had by whoever waits for one.
#[test]
fn a_full_house_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(CASES[4], STEPS);
    let run = Run::create(dir.path(), &config, &start(D), 1, STEPS, String::new(), RETENTION).unwrap();
    let rules = Rules { max_members: 1, ..rules(1) };
    let server = Server::start(run, "127.0.0.1:0".parse().unwrap(), rules, Security::default()).unwrap();
    let (first, _) = RemoteGroup::join(options(server.address(), "one")).unwrap().start().unwrap();
    std::thread::scope(|scope| {
        let waits = JoinOptions { patience: Duration::from_secs(60), ..options(server.address(), "two") };
        let second = scope.spawn(move || trains(waits));
        while server.status().refused == 0 {
            std::thread::yield_now();
        }
        first.leave();
        second.join().unwrap();
    });
    assert!(server.status().digest.is_some());
}

#[test]
fn certificates_that_are_none_are_an_error_at_the_start() {
    let (certificates, dir) = (Certificates::new(), tempfile::tempdir().unwrap());
    certificates.write("empty.pem", "");
    let config = config(CASES[4], STEPS);
    let run = || {
        let dir = dir.path().join(format!("{:?}", Instant::now()));
        Run::create(&dir, &config, &start(D), 1, STEPS, String::new(), RETENTION).unwrap()
    };
    for (certificate, key) in
        [("empty.pem", "ours.key"), ("ours.pem", "empty.pem"), ("missing", "ours.key"), ("ours.pem", "theirs.key")]
    {
        let tls = Tls { certificate: certificates.path(certificate), key: certificates.path(key), client_ca: None };
        let security = Security { tls: Some(tls), ..Security::default() };
        let started = Server::start(run(), "127.0.0.1:0".parse().unwrap(), rules(1), security);
        assert!(matches!(started.err(), Some(Error::Usage(_))), "{certificate}, {key}");
    }
    let outside = Server::start(run(), "0.0.0.0:0".parse().unwrap(), rules(1), Security::default());
    assert!(outside.err().unwrap().to_string().contains("neither TLS nor a token"));
}

#[test]
fn certificates_that_do_not_count_now_are_named_at_once() {
    let (certificates, dir) = (Certificates::new(), tempfile::tempdir().unwrap());
    for (name, words) in [("ours-expired.pem", "has expired on"), ("ours-early.pem", "does not count before")] {
        let run = Run::create(
            &dir.path().join(name),
            &config(CASES[4], STEPS),
            &start(D),
            1,
            STEPS,
            String::new(),
            RETENTION,
        );
        let tls = Tls { certificate: certificates.path(name), ..certificates.tls(None) };
        let security = Security { tls: Some(tls), ..Security::default() };
        let server = Server::start(run.unwrap(), "127.0.0.1:0".parse().unwrap(), rules(1), security);
        let worker = RemoteGroup::join(JoinOptions {
            ca: Some(certificates.path("ours-ca.pem")),
            identity: Some((certificates.path(name), certificates.path("ours.key"))),
            ..options("127.0.0.1:9".parse().unwrap(), "one")
        });
        for error in [server.err().unwrap(), worker.err().unwrap()] {
            let text = error.to_string();
            assert!(matches!(error, Error::Usage(_)) && text.contains(name) && text.contains(words), "{text}");
        }
    }
}

/// A client that knows the protocol and abuses it.
#[test]
fn messages_that_cannot_be_are_refused_and_the_run_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = guarded(dir.path(), Security::default());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut client = RunClient::connect(format!("http://{}", server.address())).await.unwrap();
        let another = client.clone();
        let request = |name: &str| JoinRequest { version: 1, name: name.to_owned(), run: String::new() };
        let code = |status: tonic::Status| status.code();
        let refused = |request| {
            let mut client = another.clone();
            async move { code(client.join(request).await.unwrap_err()) }
        };
        assert_eq!(refused(JoinRequest { version: 2, ..request("a") }).await, Code::FailedPrecondition);
        assert_eq!(refused(JoinRequest { run: "another".to_owned(), ..request("a") }).await, Code::FailedPrecondition);
        let long = client.join(JoinRequest { run: "x".repeat(9000), ..request("a") }).await.unwrap_err();
        assert!(long.message().len() < 200, "a refusal does not echo long input: {} bytes", long.message().len());
        assert_eq!(refused(request("not a name")).await, Code::InvalidArgument);
        let welcome = client.join(request("bad")).await.unwrap().into_inner();
        let seat = Some(Seat { slot: welcome.slot, session: welcome.session });
        let send = |parts: Vec<SendPart>| {
            let mut client = another.clone();
            async move {
                client.send(tokio_stream::iter(parts)).await.map_err(code).map(|receipt| receipt.into_inner().verdict)
            }
        };
        let part = |data: Vec<u8>| SendPart { seat, round: 0, loss: None, data: data.into() };
        assert_eq!(send(vec![]).await, Err(Code::InvalidArgument));
        assert_eq!(send(vec![SendPart { seat: None, ..part(vec![1]) }]).await, Err(Code::InvalidArgument));
        let other = Some(Seat { slot: welcome.slot, session: welcome.session + 1 });
        assert_eq!(send(vec![SendPart { seat: other, ..part(vec![1]) }]).await, Err(Code::Unavailable), "no session");
        assert_eq!(send(vec![part(Vec::new())]).await, Err(Code::InvalidArgument));
        assert_eq!(send(vec![part(b"no message of ours".to_vec())]).await, Err(Code::InvalidArgument));
        assert_eq!(send(vec![part(vec![0; 1 << 20])]).await, Err(Code::InvalidArgument));
        assert_eq!(send((0..300).map(|_| part(vec![0; 1 << 12])).collect()).await, Err(Code::InvalidArgument));
        let oversized = send(vec![part(vec![0; 3 << 20])]).await.unwrap_err();
        assert!(
            matches!(oversized, Code::OutOfRange | Code::ResourceExhausted | Code::Internal | Code::Unknown),
            "{oversized:?}"
        );
        assert_eq!(send(vec![SendPart { round: 5, ..part(vec![1]) }]).await, Err(Code::FailedPrecondition));
        let follow = client.follow(FollowRequest { seat, from: 9 }).await.unwrap_err();
        assert_eq!(follow.code(), Code::NotFound);
        let nobody = client.snapshot(SnapshotRequest { seat: None }).await.unwrap_err();
        assert_eq!(nobody.code(), Code::InvalidArgument);
        // Seats are limited.
        client.join(request("b")).await.unwrap();
        client.join(request("c")).await.unwrap();
        assert_eq!(refused(request("d")).await, Code::ResourceExhausted);
    });
    assert!(server.status().refused >= 8, "{:?}", server.status());
    trains(options(server.address(), "b"));
    assert!(server.status().digest.is_some());
    // A round that was is not made again.
    runtime.block_on(async {
        let mut client = RunClient::connect(format!("http://{}", server.address())).await.unwrap();
        let request = JoinRequest { version: 1, name: "bad".to_owned(), run: String::new() };
        let welcome = client.join(request).await.unwrap().into_inner();
        let seat = Some(Seat { slot: welcome.slot, session: welcome.session });
        let part = SendPart { seat, round: 3, loss: None, data: vec![7; 100].into() };
        let receipt = client.send(tokio_stream::iter([part])).await.unwrap().into_inner();
        assert_eq!(receipt.verdict(), thinwire_server::proto::receipt::Verdict::Late);
    });
    assert_eq!(server.status().rounds, STEPS);
}

/// Another model, or another optimizer's state, is named; it does not become a wrong number.
#[test]
fn a_replica_that_differs_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = guarded(dir.path(), Security::default());
    let (mut member, mut params) = RemoteGroup::join(options(server.address(), "one")).unwrap().start().unwrap();
    let gradient = gradient(0, 0, &params);
    params[3] += 1.0; // behind the engine's back
    let error = member.step(&mut params, &gradient).unwrap_err().to_string();
    assert!(error.contains("digest of the shared state"), "{error}");
    assert_eq!(server.status().rounds, 0);
    trains(options(server.address(), "two"));
}

#[test]
fn whoever_takes_a_name_puts_the_other_out() {
    let dir = tempfile::tempdir().unwrap();
    let server = guarded(dir.path(), Security::default());
    let (mut first, mut params) = RemoteGroup::join(options(server.address(), "one")).unwrap().start().unwrap();
    let second = RemoteGroup::join(options(server.address(), "one")).unwrap();
    let gradient = gradient(0, 0, &params);
    let error = first.step(&mut params, &gradient).unwrap_err().to_string();
    assert!(error.contains("another worker has joined under this name"), "{error}");
    let (member, params) = second.start().unwrap();
    train(member, params, 0);
}

/// Its message is gone with its seat: without a word it would wait for a round that does not wait for it.
#[test]
fn one_who_waits_when_its_name_is_taken_is_told_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(CASES[0], 5);
    let server = serve(dir.path(), &config, &start(10), Rules { quorum: 2, ..rules(2) }, 5);
    let (mut first, mut params) = join(server.address(), "one").start().unwrap();
    let waiting = std::thread::spawn(move || first.step(&mut params, &[0.0; 10]).unwrap_err().to_string());
    until("its message", || server.status().arrived > 0);
    let _second = join(server.address(), "one");
    let error = waiting.join().unwrap();
    assert!(error.contains("another worker has joined under this name"), "{error}");
}

/// Connections that say nothing, or too little, or nonsense, are closed; workers do not notice.
#[test]
fn a_slow_client_is_put_out() {
    let dir = tempfile::tempdir().unwrap();
    let server = guarded(dir.path(), Security { token: Some(TOKEN.to_owned()), ..Security::default() });
    let open = |text: &[u8]| {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(text).unwrap();
        stream
    };
    let mut slow = [
        open(b""),
        open(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "),
        open(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        open(&[0x16, 3, 1, 2, 0]),
    ];
    let many = (0..40).map(|_| open(b"P")).collect::<Vec<_>>();
    trains(JoinOptions { token: Some(TOKEN.to_owned()), ..options(server.address(), "one") });
    for stream in &mut slow {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut rest = Vec::new();
        let read = stream.read_to_end(&mut rest);
        let timed_out = |error: &std::io::Error| {
            matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
        };
        assert!(!read.as_ref().is_err_and(timed_out), "it is still open: {rest:?}");
    }
    drop(many);
}

/// Handshakes that begin and do not go on keep nobody out.
#[test]
fn half_open_handshakes_keep_neither_workers_nor_health_out() {
    let (certificates, dir) = (Certificates::new(), tempfile::tempdir().unwrap());
    let security = Security { tls: Some(certificates.tls(None)), token: Some(TOKEN.to_owned()), ..Security::default() };
    let server = guarded(dir.path(), security);
    let flood = |server: &Server| {
        let open = |_| {
            let mut stream = TcpStream::connect(server.address()).unwrap();
            let _ = stream.write_all(&[0x16, 3, 1, 2, 0]);
            stream
        };
        (0..200).map(open).collect::<Vec<_>>()
    };
    let held = flood(&server);
    let ca = Some(certificates.path("ours-ca.pem"));
    trains(JoinOptions { token: Some(TOKEN.to_owned()), ca, ..options(server.address(), "one") });
    drop(held);
    let dir = tempfile::tempdir().unwrap();
    let server = guarded(dir.path(), Security { token: Some(TOKEN.to_owned()), ..Security::default() });
    let _held = flood(&server);
    let health = get(server.address(), "/healthz", "");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    for header in
        ["content-security-policy: default-src 'none'", "x-content-type-options: nosniff", "x-frame-options: DENY"]
    {
        assert!(health.contains(header), "{header} is not in\n{health}");
    }
}

/// One request of HTTP/1.1.
fn get(address: SocketAddr, path: &str, more: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn the_page_the_metrics_and_the_health_are_there_for_those_who_may_see_them() {
    let dir = tempfile::tempdir().unwrap();
    let server = guarded(dir.path(), Security { token: Some(TOKEN.to_owned()), ..Security::default() });
    let address = server.address();
    assert!(get(address, "/healthz", "").starts_with("HTTP/1.1 200"));
    for path in ["/", "/metrics", "/status.json"] {
        let answer = get(address, path, "").to_lowercase();
        assert!(answer.starts_with("http/1.1 401") && answer.contains("www-authenticate: basic"), "{answer}");
    }
    trains(JoinOptions { token: Some(TOKEN.to_owned()), ..options(address, "one") });
    let knows = format!("Authorization: Bearer {TOKEN}\r\n");
    let page = get(address, "/", &knows);
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("</html>"));
    assert!(!page.contains("src=\"http") && !page.contains("url("), "nothing comes from elsewhere");
    let metrics = get(address, "/metrics", &knows);
    for line in [
        "thinwire_round 12",
        "thinwire_rounds_total 12",
        "thinwire_healthy 1",
        "thinwire_seconds_total{phase=\"wait\"}",
        "# TYPE thinwire_loss gauge",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    let status = get(address, "/status.json", &knows);
    let status = status.split("\r\n\r\n").nth(1).unwrap();
    let status = serde_json::from_str::<serde_json::Value>(status).unwrap();
    assert_eq!((&status["rounds"], &status["members"][0]["name"]), (&12.into(), &"one".into()));
    assert!(get(address, "/nothing", &knows).starts_with("HTTP/1.1 404"));
}
