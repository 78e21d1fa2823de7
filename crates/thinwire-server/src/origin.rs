//! Where a request comes from. A browser sends requests for any page to any port of its machine, with whatever body the page likes;
//! what it cannot be made to do is to leave out where the page is from, to speak gRPC, or to call a foreign name by another.
//!
//! | of a request | is asked that |
//! |---|---|
//! | for gRPC | it is a POST of HTTP/2 with `application/grpc`, and no `Origin`: workers have none |
//! | with `Sec-Fetch-Site` | it is `same-origin`, or `none` (typed by a person); a link to the page may be followed from elsewhere |
//! | with `Origin` | that is this server, by the name that the request calls it |
//! | without a token on the server | it calls the server `localhost` or by a number: a name may be anybody's, who points it here |

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, StatusCode, Version, header};
use std::net::{Ipv4Addr, Ipv6Addr};

/// The paths of the gRPC service begin with this.
const SERVICE: &str = "/thinwire.v1.";

/// A request that is not answered, and why.
pub type Refused = (StatusCode, &'static str);

/// Whether a request is one that a worker or this server's own page makes. `named`: whether it may call the server by any name.
pub fn check(request: &Request, tls: bool, named: bool) -> Result<(), Refused> {
    let headers = request.headers();
    let authority = authority(request).ok_or((StatusCode::BAD_REQUEST, "no host is named"))?;
    if !named && !is_number_or_localhost(authority.host()) {
        return Err((
            StatusCode::MISDIRECTED_REQUEST,
            "a server without a token is called localhost, or by its number",
        ));
    }
    if request.uri().path().starts_with(SERVICE) {
        speaks_grpc(request)?;
    }
    same_site(request)?;
    match headers.get(header::ORIGIN) {
        Some(origin) if origin.to_str().ok() != Some(&own_origin(&authority, tls)) => Err(ELSEWHERE),
        _ => Ok(()),
    }
}

const ELSEWHERE: Refused = (StatusCode::FORBIDDEN, "the request comes from another site");

fn speaks_grpc(request: &Request) -> Result<(), Refused> {
    if request.version() != Version::HTTP_2 || request.method() != Method::POST {
        return Err((StatusCode::UPGRADE_REQUIRED, "gRPC is spoken over HTTP/2"));
    }
    if !is_grpc(request.headers()) {
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "gRPC has the content type application/grpc"));
    }
    if request.headers().contains_key(header::ORIGIN) {
        return Err(ELSEWHERE);
    }
    Ok(())
}

/// Whether the content type is gRPC's, and not that of gRPC for browsers.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    kind.strip_prefix(b"application/grpc").is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

fn same_site(request: &Request) -> Result<(), Refused> {
    let word = |name: &str| request.headers().get(name).map(|value| value.as_bytes());
    let follows_a_link = request.method() == Method::GET
        && request.uri().path() == "/"
        && word("sec-fetch-mode") == Some(b"navigate")
        && word("sec-fetch-dest") == Some(b"document");
    match word("sec-fetch-site") {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) if follows_a_link => Ok(()),
        Some(_) => Err(ELSEWHERE),
    }
}

/// What the request calls the server: HTTP/2 has it in the address, HTTP/1.1 in a header.
fn authority(request: &Request) -> Option<Authority> {
    let named = || request.headers().get(header::HOST)?.to_str().ok()?.parse().ok();
    request.uri().authority().cloned().or_else(named).filter(|authority| !authority.host().is_empty())
}

fn own_origin(authority: &Authority, tls: bool) -> String {
    format!("{}://{authority}", if tls { "https" } else { "http" })
}

fn is_number_or_localhost(host: &str) -> bool {
    let six = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<Ipv4Addr>().is_ok()
        || six.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok())
}
