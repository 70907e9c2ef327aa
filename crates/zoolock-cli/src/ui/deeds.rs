//! Revoking and breaking: a question first, then the deed, for the one who was seen and nobody else.

use axum::Extension;
use axum::extract::{Form, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;
use serde::Deserialize;
use zoolock::{Entry, Error, Ticket};

use super::Site;
use super::http::Peer;
use super::login::{Viewer, is_same};
use super::pages::lock::href_after;
use super::pages::{self, Page, parts};
use super::shield::is_from_us;
use crate::connect::{close, connect};
use crate::exit::Failure;
use crate::status::{is_zoolock, who};
use crate::talk::printable;

/// The longest note that is kept.
const LONGEST_NOTE: usize = 200;

/// What can be done to a holder or waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Deed {
    Revoke,
    Break,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Done {
    Revoked,
    Broken,
    /// From one that does not notice.
    Deaf,
}

impl Deed {
    fn word(self) -> &'static str {
        match self {
            Self::Revoke => "revoke",
            Self::Break => "break",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Revoke => "Revoke",
            Self::Break => "Break",
        }
    }
}

impl Done {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Revoked => "revoked",
            Self::Broken => "broken",
            Self::Deaf => "deaf",
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Revoked => "It was asked to let go.",
            Self::Broken => "It was taken away.",
            Self::Deaf => {
                "It was taken away. Who had it does not notice, and goes on as if it had the lock: end that process, if it \
                 has not ended."
            }
        }
    }
}

/// Where the question is asked.
pub(super) fn ask_href(deed: Deed, path: &str, token: &str) -> String {
    format!("/ask?deed={}&name={}&token={}", deed.word(), parts::quoted(path), parts::quoted(token))
}

/// Whom the question is about.
#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    deed: Deed,
    name: String,
    token: String,
}

/// What the form brings.
#[derive(Debug, Deserialize)]
pub(super) struct Ordered {
    deed: Deed,
    name: String,
    token: String,
    #[serde(default)]
    note: String,
    csrf: String,
}

/// `/ask`: the question.
pub(super) async fn ask(
    State(site): State<Site>,
    headers: HeaderMap,
    Query(asked): Query<Asked>,
) -> Response {
    let viewer = site.viewer(&headers);
    let Viewer::Operator(operator) = &viewer else {
        let here = ask_href(asked.deed, &asked.name, &asked.token);
        return refuse(&viewer, &here);
    };
    let Asked { deed, name, token } = &asked;
    let path = match (site.path(name), token.parse::<Ticket>()) {
        (Ok(path), Ok(_)) => path,
        (Err(error), _) => return wrong(&viewer, &error.to_string()),
        (_, Err(error)) => return wrong(&viewer, &format!("token {error}")),
    };
    let back = parts::lock_href(&path);
    let seen = match site.zoolock.mutex(&path).snapshot().await {
        Ok(seen) => seen,
        Err(error) => return failed(&viewer, &path, &error),
    };
    let is_meant = |entry: &&Entry| entry.token.as_deref() == Some(token);
    let holders = || seen.holder.iter().chain(&seen.beside);
    let Some(entry) = holders().chain(&seen.waiters).find(is_meant) else {
        return stale(&viewer, &path, token);
    };
    let holds = holders().any(|holder| std::ptr::eq(holder, entry));
    let title = format!("{} {path}", deed.title());
    let main = html! {
        p.crumbs { a href="/" { "Locks" } " / " a href=(back) { (printable(&path)) } }
        h1 { (deed.title()) "?" }
        dl.facts {
            div { dt { "Lock" } dd { code { (printable(&path)) } } }
            div { dt { @if holds { "Holder" } @else { "Waiter" } } dd { (who(entry)) } }
            div { dt { "Token" } dd { code { (token) } } }
        }
        @match deed {
            Deed::Revoke => p {
                "It is only asked to let go: " code { "zoolock run" } " sends TERM to its command, programs do what they were \
                 written to do."
            },
            Deed::Break => p.alert.bad {
                strong { "The lock moves on at once. " }
                "Who has it may not have noticed yet. If it still writes to something that does not check tokens, wait, or \
                 stop it first."
            },
        }
        form.deed method="post" action="/deed" {
            input type="hidden" name="csrf" value=(operator.csrf);
            input type="hidden" name="deed" value=(deed.word());
            input type="hidden" name="name" value=(path);
            input type="hidden" name="token" value=(token);
            label for="note" { "Why, for the record (may be empty)" }
            input #note type="text" name="note" maxlength=(LONGEST_NOTE) autocomplete="off";
            div.deeds {
                button.danger[*deed == Deed::Break] type="submit" {
                    (deed.title()) " " @if holds { "this holder" } @else { "this waiter" }
                }
                a.button href=(back) { "Leave it" }
            }
        }
    };
    Page { title: &title, here: "", viewer: &viewer, news: None, main }.answer(StatusCode::OK)
}

/// `/deed`: what the form orders.
pub(super) async fn deed(
    State(site): State<Site>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    Form(ordered): Form<Ordered>,
) -> Response {
    let viewer = site.viewer(&headers);
    let Ordered { deed, name, token, note, csrf } = &ordered;
    let Viewer::Operator(operator) = &viewer else { return refuse(&viewer, "/") };
    if !is_from_us(&headers) || !is_same(operator, csrf) {
        let words =
            "This form was not sent by a page of ours, or that is older than your login. Nothing was done.";
        return pages::word(&viewer, StatusCode::FORBIDDEN, "Refused", words, ("/", "All locks"));
    }
    let (path, ticket) = match (site.path(name), token.parse::<Ticket>()) {
        (Ok(path), Ok(ticket)) => (path, ticket),
        (Err(error), _) => return wrong(&viewer, &error.to_string()),
        (_, Err(error)) => return wrong(&viewer, &format!("token {error}")),
    };
    // A task of its own: a browser that hangs up in the middle takes neither the deed back nor the line about it.
    let doing = tokio::spawn({
        let (site, deed, path, token) = (site.clone(), *deed, path.clone(), token.clone());
        let said = said(peer, note);
        async move {
            let done = carry_out(&site, deed, &path, ticket, &said).await;
            // Also who was refused: somebody tried.
            let outcome = match &done {
                Ok(done) => done.word().to_owned(),
                Err(trouble) => format!("refused: {trouble}"),
            };
            site.talk
                .note(format_args!("ui: {} of {path}, token {token}, by {said}: {outcome}", deed.word()));
            done
        }
    });
    let Ok(done) = doing.await else {
        return pages::word(
            &viewer,
            StatusCode::INTERNAL_SERVER_ERROR,
            "Nobody knows whether it was done",
            "Something of ours has failed. Look at the lock again.",
            ("/", "All locks"),
        );
    };
    match done {
        Ok(done) => Redirect::to(&href_after(&path, done)).into_response(),
        Err(Trouble::Lock(Error::NoSuchHolder { .. })) => stale(&viewer, &path, token),
        Err(Trouble::Lock(error)) => failed(&viewer, &path, &error),
        Err(Trouble::Service(failure)) => {
            let back = parts::lock_href(&path);
            let words = failure.to_string();
            let status = StatusCode::SERVICE_UNAVAILABLE;
            pages::word(&viewer, status, "Nothing was done", &words, (&back, "Back to the lock"))
        }
    }
}

/// Why it was not done.
enum Trouble {
    Lock(Error),
    Service(Failure),
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
            Self::Service(failure) => failure.fmt(f),
        }
    }
}

/// By a session of its own, whose note says who it was: that is what the line below `.audit` tells.
async fn carry_out(site: &Site, deed: Deed, path: &str, ticket: Ticket, said: &str) -> Result<Done, Trouble> {
    let mut service = site.service.clone();
    service.note = Some(said.to_owned());
    let zoolock = connect(&service, &site.talk).await.map_err(Trouble::Service)?;
    let mutex = zoolock.mutex(path);
    let done = match deed {
        Deed::Revoke => mutex.revoke(ticket).await.map(|()| Done::Revoked),
        // Theirs look at their own znode no more once they hold.
        Deed::Break => mutex.break_lock(ticket).await.map(|broken| match broken.family {
            "native" => Done::Broken,
            _ if is_zoolock(&broken) => Done::Broken,
            _ => Done::Deaf,
        }),
    };
    close(zoolock).await;
    done.map_err(Trouble::Lock)
}

/// Returns the note of the session that does it: from where, and why.
fn said(peer: Peer, note: &str) -> String {
    let note: String = note.trim().chars().take(LONGEST_NOTE).collect();
    let from = peer.0.ip().to_canonical();
    let who = format!("operator at {from}, zoolock ui");
    if note.is_empty() { who } else { format!("{who}: {}", printable(&note)) }
}

/// Answers a viewer who is not logged in.
fn refuse(viewer: &Viewer, next: &str) -> Response {
    if *viewer == Viewer::Stranger {
        return Redirect::to(&format!("/login?next={}", parts::quoted(next))).into_response();
    }
    let words = "These pages only show: zoolock ui was started without --allow-operate.";
    pages::word(viewer, StatusCode::FORBIDDEN, "Read-only", words, ("/", "All locks"))
}

fn wrong(viewer: &Viewer, words: &str) -> Response {
    pages::word(viewer, StatusCode::BAD_REQUEST, "That makes no sense", words, ("/", "All locks"))
}

/// It has let go already, or was somebody else all along.
fn stale(viewer: &Viewer, path: &str, token: &str) -> Response {
    let words = format!(
        "Nobody in the queue of {path} has the token {token} any more: the lock has moved on since you looked. Nothing was \
         done."
    );
    let back = parts::lock_href(path);
    pages::word(viewer, StatusCode::CONFLICT, "Too late", &words, (&back, "Look at the lock again"))
}

fn failed(viewer: &Viewer, path: &str, error: &Error) -> Response {
    let status = match error {
        Error::NoSuchHolder { .. } => StatusCode::CONFLICT,
        Error::Denied { .. } => StatusCode::FORBIDDEN,
        Error::Invalid { .. } => StatusCode::UNPROCESSABLE_ENTITY,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    let back = parts::lock_href(path);
    pages::word(viewer, status, "Nothing was done", &error.to_string(), (&back, "Back to the lock"))
}
