//! Protects the pages from other sites: checks host names, and sets a content security policy.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Site;

/// Content security policy: only content of this site, nothing inline, and no embedding in frames. The icon is an image
/// of this site.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Refuses requests with the host name of another site, and adds security headers to every response.
pub(super) async fn check_request(State(site): State<Site>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let mut response = if host.is_some_and(|host| is_allowed_host(host, &site.hosts)) {
        next.run(request).await
    } else {
        let text = "unknown host name; use the IP address, or start zoolock ui with --host NAME\n";
        (StatusCode::MISDIRECTED_REQUEST, text).into_response()
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Returns whether a `Host` header names this site. Another site can point its own host name at
/// this address (DNS rebinding). The pages of that site could then read these pages. An IP address
/// or `localhost` excludes that. The port is not checked, because it differs behind `ssh -L` or a
/// proxy.
fn is_allowed_host(host: &str, hosts: &[String]) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    };
    let name = name.to_ascii_lowercase();
    let literal = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    name == "localhost"
        || name.parse::<std::net::Ipv4Addr>().is_ok()
        || literal.is_some_and(|name| name.parse::<std::net::Ipv6Addr>().is_ok())
        || hosts.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_host_names_are_refused() {
        let hosts = ["locks.example".to_owned()];
        for allowed in [
            "localhost:2190",
            "LOCALHOST",
            "127.0.0.1:2190",
            "127.0.0.1",
            "[::1]:2190",
            "10.0.0.7:80",
            "locks.example",
            "Locks.Example:443",
        ] {
            assert!(is_allowed_host(allowed, &hosts), "{allowed}");
        }
        for other in [
            "",
            "evil.example",
            "localhost.evil.example:2190",
            "127.0.0.1.evil.example",
            "locks.example.evil",
            "[::1",
            "::1",
            "0x7f000001",
            "locks.example:x",
        ] {
            assert!(!is_allowed_host(other, &hosts), "{other}");
        }
    }
}
