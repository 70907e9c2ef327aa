//! The way in and out.

use axum::Extension;
use axum::extract::{Form, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;
use serde::Deserialize;

use super::{Page, word};
use crate::ui::Site;
use crate::ui::http::Peer;
use crate::ui::login::{Refused, Viewer, is_same};
use crate::ui::shield::is_from_us;

/// Where somebody wanted to go.
#[derive(Debug, Default, Deserialize)]
pub(in crate::ui) struct Asked {
    next: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(in crate::ui) struct Entering {
    token: String,
    next: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(in crate::ui) struct Leaving {
    csrf: String,
}

/// `/login`
pub(in crate::ui) async fn form(
    State(site): State<Site>,
    headers: HeaderMap,
    Query(asked): Query<Asked>,
) -> Response {
    let viewer = site.viewer(&headers);
    let next = next(asked.next.as_deref());
    match viewer {
        Viewer::Stranger => page(&viewer, next, None, StatusCode::OK),
        Viewer::Operator(_) => Redirect::to(next).into_response(),
        Viewer::ReadOnly => nobody(&viewer),
    }
}

/// The token was sent.
pub(in crate::ui) async fn enter(
    State(site): State<Site>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    Form(entering): Form<Entering>,
) -> Response {
    let viewer = site.viewer(&headers);
    if !is_from_us(&headers) {
        return word(
            &viewer,
            StatusCode::FORBIDDEN,
            "Refused",
            "This form was not sent by a page of ours.",
            ("/", "All locks"),
        );
    }
    let next = next(entering.next.as_deref());
    let from = peer.0.ip().to_canonical();
    match site.door.enter(&entering.token, from, &headers) {
        Ok(cookie) => {
            site.talk.note(format_args!("ui: operator at {from} logged in"));
            let cookie = HeaderValue::from_str(&cookie).expect("digits and words");
            ([(header::SET_COOKIE, cookie)], Redirect::to(next)).into_response()
        }
        Err(Refused::NoTokens) => nobody(&viewer),
        Err(Refused::Wrong) => {
            site.talk.note(format_args!("ui: {from} sent a wrong token"));
            page(&viewer, next, Some("That is not the token."), StatusCode::UNAUTHORIZED)
        }
        Err(Refused::TooOften) => {
            let words = "Too many wrong tokens came from your address. Wait a minute.";
            page(&viewer, next, Some(words), StatusCode::TOO_MANY_REQUESTS)
        }
    }
}

/// `/logout`
pub(in crate::ui) async fn leave(
    State(site): State<Site>,
    headers: HeaderMap,
    Form(leaving): Form<Leaving>,
) -> Response {
    match site.viewer(&headers) {
        Viewer::Operator(operator) if is_from_us(&headers) && is_same(&operator, &leaving.csrf) => {
            let cookie = HeaderValue::from_str(&site.door.leave(&headers)).expect("digits and words");
            ([(header::SET_COOKIE, cookie)], Redirect::to("/")).into_response()
        }
        _ => Redirect::to("/").into_response(),
    }
}

fn page(viewer: &Viewer, next: &str, wrong: Option<&str>, status: StatusCode) -> Response {
    let main = html! {
        h1 { "Log in" }
        p { "Looking needs no login. With one, holders can be asked to let go, and locks taken away." }
        @if let Some(wrong) = wrong { p.alert.bad role="alert" { (wrong) } }
        form.deed method="post" action="/login" {
            input type="hidden" name="next" value=(next);
            label for="token" { "Token" }
            input #token type="password" name="token" autocomplete="current-password" required;
            p.quiet { "It stands in the file that zoolock ui was given with --token-file." }
            div.deeds { button type="submit" { "Log in" } a.button href=(next) { "Back" } }
        }
    };
    Page { title: "Log in", here: "", viewer, news: None, main }.answer(status)
}

fn nobody(viewer: &Viewer) -> Response {
    let words = "Nobody logs in here: zoolock ui was started without --token-file.";
    word(viewer, StatusCode::FORBIDDEN, "Read-only", words, ("/", "All locks"))
}

/// A page of ours, whoever made the link: never another site, which a browser also reads in `//` and `/\`.
fn next(asked: Option<&str>) -> &str {
    let ours = |next: &&str| {
        next.starts_with('/')
            && !next[1..].starts_with(['/', '\\'])
            && next.len() <= 4096
            && next.bytes().all(|byte| byte.is_ascii_graphic())
    };
    asked.filter(ours).unwrap_or("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_sent_to_another_site() {
        for other in
            ["//evil.example", "/\\evil.example", "https://evil.example", "", "evil", "/a\r\nx: y", "/ä"]
        {
            assert_eq!(next(Some(other)), "/", "{other:?}");
        }
        assert_eq!(next(Some("/ask?deed=break&name=/locks/x")), "/ask?deed=break&name=/locks/x");
    }
}
