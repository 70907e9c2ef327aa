//! The login page, and the requests that log in and out.

use axum::Extension;
use axum::extract::{Form, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;
use serde::Deserialize;

use super::{Page, message_page};
use crate::ui::Site;
use crate::ui::http::PeerAddress;
use crate::ui::login::{LoginError, Viewer, has_csrf_token};
use crate::ui::request_checks::is_same_origin;

/// Query of the login page.
#[derive(Debug, Default, Deserialize)]
pub(in crate::ui) struct LoginParams {
    /// Page to go to after the login.
    next: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(in crate::ui) struct LoginForm {
    token: String,
    next: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(in crate::ui) struct LogoutForm {
    csrf: String,
}

/// Serves `/login`, the login page.
pub(in crate::ui) async fn form(
    State(site): State<Site>,
    headers: HeaderMap,
    Query(params): Query<LoginParams>,
) -> Response {
    let viewer = site.viewer(&headers);
    let next = local_path(params.next.as_deref());
    match viewer {
        Viewer::LoggedOut => page(&viewer, next, None, StatusCode::OK),
        Viewer::Operator(_) => Redirect::to(next).into_response(),
        Viewer::ReadOnly => disabled(&viewer),
    }
}

/// Handles `POST /login`: checks the token of the form.
pub(in crate::ui) async fn log_in(
    State(site): State<Site>,
    Extension(peer): Extension<PeerAddress>,
    headers: HeaderMap,
    Form(form): Form<LoginForm>,
) -> Response {
    let viewer = site.viewer(&headers);
    if !is_same_origin(&headers) {
        return message_page(
            &viewer,
            StatusCode::FORBIDDEN,
            "Refused",
            "The form did not come from this site.",
            ("/", "All locks"),
        );
    }
    let next = local_path(form.next.as_deref());
    let from = peer.0.ip().to_canonical();
    match site.logins.log_in(&form.token, peer.network(), &headers) {
        Ok(cookie) => {
            site.reporter.note(format_args!("ui: operator at {from} logged in"));
            let cookie = HeaderValue::from_str(&cookie).expect("a cookie is a valid header value");
            ([(header::SET_COOKIE, cookie)], Redirect::to(next)).into_response()
        }
        Err(LoginError::Disabled) => disabled(&viewer),
        Err(LoginError::WrongToken) => {
            site.reporter.note(format_args!("ui: {from} sent a wrong token"));
            page(&viewer, next, Some("The token is wrong."), StatusCode::UNAUTHORIZED)
        }
        Err(LoginError::TooManyAttempts(wait)) => {
            let seconds = wait.as_secs() + 1;
            let words = format!("Too many wrong tokens from your network. Try again in {seconds} s.");
            let page = page(&viewer, next, Some(&words), StatusCode::TOO_MANY_REQUESTS);
            ([(header::RETRY_AFTER, seconds)], page).into_response()
        }
    }
}

/// Handles `POST /logout`: ends the login.
pub(in crate::ui) async fn log_out(
    State(site): State<Site>,
    headers: HeaderMap,
    Form(form): Form<LogoutForm>,
) -> Response {
    match site.viewer(&headers) {
        Viewer::Operator(operator) if is_same_origin(&headers) && has_csrf_token(&operator, &form.csrf) => {
            let cookie = HeaderValue::from_str(&site.logins.log_out(&headers))
                .expect("a cookie is a valid header value");
            ([(header::SET_COOKIE, cookie)], Redirect::to("/")).into_response()
        }
        _ => Redirect::to("/").into_response(),
    }
}

/// Returns the login page, with an error message if a login failed.
fn page(viewer: &Viewer, next: &str, error: Option<&str>, status: StatusCode) -> Response {
    let main = html! {
        h1 { "Log in" }
        p { "Viewing needs no login. Operators who are logged in can revoke and break locks." }
        @if let Some(error) = error { p.alert.bad role="alert" { (error) } }
        form.action method="post" action="/login" {
            input type="hidden" name="next" value=(next);
            label for="token" { "Token" }
            input #token type="password" name="token" autocomplete="current-password" required;
            p.quiet { "The token is in the file given with --token-file to zoolock ui." }
            div.actions { button type="submit" { "Log in" } a.button href=(next) { "Back" } }
        }
    };
    Page { title: "Log in", here: "", viewer, news: None, main }.answer(status)
}

/// Returns the response to a login while logins are disabled.
fn disabled(viewer: &Viewer) -> Response {
    let words = "Login is disabled: zoolock ui was started without --token-file.";
    message_page(viewer, StatusCode::FORBIDDEN, "Read-only", words, ("/", "All locks"))
}

/// Returns the requested path if it is on this site, and `/` otherwise. Browsers take `//` and `/\`
/// for the start of another site.
fn local_path(requested: Option<&str>) -> &str {
    let is_local = |next: &&str| {
        next.starts_with('/')
            && !next[1..].starts_with(['/', '\\'])
            && next.len() <= 4096
            && next.bytes().all(|byte| byte.is_ascii_graphic())
    };
    requested.filter(is_local).unwrap_or("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_never_redirects_to_another_site() {
        for other in
            ["//evil.example", "/\\evil.example", "https://evil.example", "", "evil", "/a\r\nx: y", "/ä"]
        {
            assert_eq!(local_path(Some(other)), "/", "{other:?}");
        }
        assert_eq!(
            local_path(Some("/confirm?action=break&name=/locks/x")),
            "/confirm?action=break&name=/locks/x"
        );
    }
}
