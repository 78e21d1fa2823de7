//! A web page of somebody else, open in a browser on the server's machine: it can send requests to every port of it, and must not be
//! able to touch a run.

use crate::chromium::Chromium;
use crate::helper::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use thinwire_server::{Security, Server};

const STEPS: u64 = 5;
const D: usize = 20;

/// `JoinRequest { version: 1, name: "one" }` as gRPC frames it.
const JOIN: [u8; 12] = [0, 0, 0, 0, 7, 8, 1, 18, 3, b'o', b'n', b'e'];

fn server(dir: &std::path::Path) -> Server {
    serve(dir, &config(CASES[4], STEPS), &start(D), rules(1), STEPS)
}

/// The first line of the answer to a request of HTTP/1.1.
fn answer(address: SocketAddr, head: &str, body: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(stream, "{head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n").unwrap();
    stream.write_all(body).unwrap();
    let mut text = Vec::new();
    stream.read_to_end(&mut text).unwrap();
    String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned()
}

#[test]
fn grpc_is_http_2_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path());
    let address = server.address();
    for kind in ["text/plain", "application/grpc", "application/grpc-web", "application/json"] {
        let head =
            format!("POST /thinwire.v1.Run/Join HTTP/1.1\r\nHost: {address}\r\nTE: trailers\r\nContent-Type: {kind}");
        let line = answer(address, &head, &JOIN);
        assert!(line.starts_with("HTTP/1.1 4"), "{kind}: {line}");
    }
    assert_eq!(server.status().members.len(), 0);
    assert!(server.status().refused >= 4);
}

#[test]
fn requests_of_other_pages_and_for_other_hosts_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path());
    let address = server.address();
    let get =
        |host: &str, more: &str| answer(address, &format!("GET /status.json HTTP/1.1\r\nHost: {host}{more}"), b"");
    let own = address.to_string();
    for more in [
        "",
        "\r\nSec-Fetch-Site: same-origin",
        "\r\nSec-Fetch-Site: none",
        &format!("\r\nOrigin: http://{address}\r\nSec-Fetch-Site: same-origin"),
    ] {
        assert_eq!(get(&own, more), "HTTP/1.1 200 OK", "{more}");
    }
    for more in [
        "\r\nSec-Fetch-Site: cross-site",
        "\r\nSec-Fetch-Site: same-site",
        "\r\nOrigin: http://evil.example",
        "\r\nOrigin: null",
        &format!("\r\nOrigin: https://{address}"),
        "\r\nOrigin: http://127.0.0.1:1",
    ] {
        assert_eq!(get(&own, more), "HTTP/1.1 403 Forbidden", "{more}");
    }
    // A name that its owner has pointed at this machine: the browser takes it for the page's own server.
    for host in ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "", "[::1"] {
        assert!(get(host, "").starts_with("HTTP/1.1 4"), "{host}");
    }
    for host in ["localhost", &format!("localhost:{}", address.port()), "127.0.0.1", "[::1]:7070"] {
        assert_eq!(get(host, ""), "HTTP/1.1 200 OK", "{host}");
    }
    // Whoever has the token may come by any name.
    let dir = tempfile::tempdir().unwrap();
    let run = thinwire_server::Run::create(
        dir.path(),
        &config(CASES[4], STEPS),
        &start(D),
        1,
        STEPS,
        String::new(),
        RETENTION,
    );
    let security = Security { token: Some("0123456789abcdef".to_owned()), ..Security::default() };
    let server = Server::start(run.unwrap(), "127.0.0.1:0".parse().unwrap(), rules(1), security).unwrap();
    let head = "GET /status.json HTTP/1.1\r\nHost: any.example\r\nAuthorization: Bearer 0123456789abcdef";
    assert_eq!(answer(server.address(), head, b""), "HTTP/1.1 200 OK");
    let head = format!("{head}\r\nSec-Fetch-Site: cross-site");
    assert_eq!(answer(server.address(), &head, b""), "HTTP/1.1 403 Forbidden");
}

/// A page at another port of this machine.
fn page() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
            let body = "<!doctype html><title>a stranger</title>";
            let length = body.len();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
        }
    });
    address
}

#[test]
fn a_page_in_a_browser_cannot_join() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path());
    let Some(mut browser) = Chromium::open(&format!("http://{}/", page())) else { return };
    browser.wait_for("document.title", |title| title == "a stranger");
    for (kind, mode) in [("text/plain", "no-cors"), ("application/grpc", "cors")] {
        let before = server.status().refused;
        let body = JOIN.map(|byte| byte.to_string()).join(",");
        browser.evaluate(&format!(
            "window.done = null; fetch('http://{}/thinwire.v1.Run/Join', {{ method: 'POST', mode: '{mode}', \
             headers: {{ 'Content-Type': '{kind}' }}, body: new Uint8Array([{body}]) }})\
             .then(answer => window.done = answer.type, error => window.done = String(error)); 0",
            server.address()
        ));
        browser.wait_for("window.done", |done| !done.is_null());
        assert_eq!(server.status().members.len(), 0, "{kind}");
        assert!(server.status().refused > before, "{kind}: the request came, and was refused");
    }
    // The worker under that name does not notice.
    let (member, params) = join(server.address(), "one").start().unwrap();
    train(member, params, 0);
}
