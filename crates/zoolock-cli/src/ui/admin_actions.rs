//! Pages that revoke and break locks: first a confirmation page, then the action.
//!
//! The token of the contender is part of both requests, so the action never affects another contender.

use axum::Extension;
use axum::extract::{Form, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use serde::Deserialize;
use zoolock::{Entry, Error, Ticket};

use super::Site;
use super::http::PeerAddress;
use super::login::{Viewer, has_csrf_token};
use super::pages::lock::href_after;
use super::pages::{self, Page, elements};
use super::request_checks::is_same_origin;
use crate::base::exit::Failure;
use crate::base::reporter::escape_unprintable;
use crate::render::status::describe_contender;
use crate::service::connect::{close, connect};
use crate::verbs::operate::{AdminAction, notices_break};

/// Maximum length of a note in characters.
const MAX_NOTE: usize = 200;

/// Result of an action that succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ActionOutcome {
    Revoked,
    Broken,
    /// The contender was removed, but its client library is not known to watch its own znodes. So its client
    /// may not notice.
    Unaware,
}

impl AdminAction {
    /// Returns the name on buttons and headings.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Revoke => "Revoke",
            Self::Break => "Break",
        }
    }
}

impl ActionOutcome {
    /// Returns the name in URLs and in the log line.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Revoked => "revoked",
            Self::Broken => "broken",
            Self::Unaware => "unaware",
        }
    }

    /// Returns the text for the page of the lock.
    pub(super) fn message(self) -> &'static str {
        match self {
            Self::Revoked => "Asked to release the lock.",
            Self::Broken => "Removed from the queue.",
            Self::Unaware => {
                "Removed from the queue. The client of this contender may not notice, and may continue as if \
                 it held the lock: end that process."
            }
        }
    }
}

/// Returns the URL of the confirmation page.
pub(super) fn confirm_href(action: AdminAction, path: &str, token: &str) -> String {
    format!(
        "/confirm?action={}&name={}&token={}",
        action.word(),
        elements::percent_encode(path),
        elements::percent_encode(token)
    )
}

/// Query of the confirmation page.
#[derive(Debug, Deserialize)]
pub(super) struct ConfirmParams {
    action: AdminAction,
    name: String,
    token: String,
}

/// Form of the confirmation page.
#[derive(Debug, Deserialize)]
pub(super) struct ActionForm {
    action: AdminAction,
    name: String,
    token: String,
    #[serde(default)]
    note: String,
    csrf: String,
}

/// Serves `/confirm`, the confirmation page.
pub(super) async fn confirmation_page(
    State(site): State<Site>,
    headers: HeaderMap,
    Query(params): Query<ConfirmParams>,
) -> Response {
    let viewer = site.viewer(&headers);
    let Viewer::Operator(operator) = &viewer else {
        let here = confirm_href(params.action, &params.name, &params.token);
        return refusal_page(&viewer, &here);
    };
    let ConfirmParams { action, name, token } = &params;
    let path = match (site.path(name), token.parse::<Ticket>()) {
        (Ok(path), Ok(_)) => path,
        (Err(error), _) => return invalid_page(&viewer, &error.to_string()),
        (_, Err(error)) => return invalid_page(&viewer, &format!("token {error}")),
    };
    let back = elements::lock_href(&path);
    let snapshot = match site.zoolock.mutex(&path).snapshot().await {
        Ok(snapshot) => snapshot,
        Err(error) => return failure_page(&viewer, &path, &error, unchanged(&error)),
    };
    let has_token = |entry: &&Entry| entry.token.as_deref() == Some(token);
    let holders = || snapshot.holder.iter().chain(&snapshot.beside);
    let Some(entry) = holders().chain(&snapshot.waiters).find(has_token) else {
        return no_such_contender(&viewer, &path, token);
    };
    let holds = holders().any(|holder| std::ptr::eq(holder, entry));
    // An unreadable part may have more holders, and contenders that ignore each other may hold at once.
    let is_lone = holders().count() == 1 && snapshot.unread.is_empty() && snapshot.clash.is_none();
    let title = format!("{} {path}", action.title());
    let main = html! {
        p.crumbs { a href="/" { "Locks" } " / " a href=(back) { (escape_unprintable(&path)) } }
        h1 { (action.title()) "?" }
        dl.facts {
            div { dt { "Lock" } dd { code { (escape_unprintable(&path)) } } }
            div { dt { @if holds { "Holder" } @else { "Waiter" } } dd { (describe_contender(entry)) } }
            div { dt { "Token" } dd { code { (token) } } }
        }
        @match action {
            AdminAction::Revoke => p {
                "Asks the contender to release the lock. " code { "zoolock run" } " sends TERM to its command; a program \
                 decides for itself."
            },
            AdminAction::Break => (break_warning(holds, is_lone)),
        }
        form.action method="post" action="/action" {
            input type="hidden" name="csrf" value=(operator.csrf);
            input type="hidden" name="action" value=(action.word());
            input type="hidden" name="name" value=(path);
            input type="hidden" name="token" value=(token);
            label for="note" { "Reason (optional)" }
            input #note type="text" name="note" maxlength=(MAX_NOTE) autocomplete="off";
            div.actions {
                button.danger[*action == AdminAction::Break] type="submit" {
                    (action.title()) " " @if holds { "this holder" } @else { "this waiter" }
                }
                a.button href=(back) { "Cancel" }
            }
        }
    };
    Page { title: &title, here: "", viewer: &viewer, news: None, main }.answer(StatusCode::OK)
}

/// Renders the effect of a break. `is_lone` is set if the lock has no other holder.
fn break_warning(holds: bool, is_lone: bool) -> Markup {
    html! {
        p.alert.bad {
            @if holds {
                strong {
                    @if is_lone { "The next waiter acquires the lock at once. " }
                    @else {
                        "Removes this holder from the queue. Waiters acquire the lock if the other holders allow it. "
                    }
                }
                "The former holder may not have noticed yet. If it writes to a resource that does not check \
                 fencing tokens, wait or stop it first."
            } @else {
                "Removes this waiter from the queue. If it has acquired the lock by then, it loses the lock."
            }
        }
    }
}

/// Handles `POST /action`: carries out the action of the form.
pub(super) async fn handle_action(
    State(site): State<Site>,
    Extension(peer): Extension<PeerAddress>,
    headers: HeaderMap,
    Form(form): Form<ActionForm>,
) -> Response {
    let viewer = site.viewer(&headers);
    let ActionForm { action, name, token, note, csrf } = &form;
    let Viewer::Operator(operator) = &viewer else { return refusal_page(&viewer, "/") };
    if !is_same_origin(&headers) || !has_csrf_token(operator, csrf) {
        let words = "The form did not come from this site, or its page is older than your login. Nothing was changed.";
        return pages::message_page(&viewer, StatusCode::FORBIDDEN, "Refused", words, ("/", "All locks"));
    }
    let (path, ticket) = match (site.path(name), token.parse::<Ticket>()) {
        (Ok(path), Ok(ticket)) => (path, ticket),
        (Err(error), _) => return invalid_page(&viewer, &error.to_string()),
        (_, Err(error)) => return invalid_page(&viewer, &format!("token {error}")),
    };
    // The action runs in a task of its own, so that a closed connection cancels neither the action nor its log line.
    let task = tokio::spawn({
        let (site, action, path, token) = (site.clone(), *action, path.clone(), token.clone());
        let note = session_note(peer, note);
        async move {
            let result = execute(&site, action, &path, ticket, &note).await;
            // Failed attempts are logged, too.
            let logged = match &result {
                Ok(outcome) => outcome.word().to_owned(),
                Err(error) => format!("failed: {error}"),
            };
            site.reporter
                .note(format_args!("ui: {} of {path}, token {token}, by {note}: {logged}", action.word()));
            result
        }
    });
    let Ok(result) = task.await else {
        return pages::message_page(
            &viewer,
            StatusCode::INTERNAL_SERVER_ERROR,
            "Internal error",
            "The action may or may not have happened. Look at the lock again.",
            ("/", "All locks"),
        );
    };
    match result {
        Ok(outcome) => Redirect::to(&href_after(&path, outcome)).into_response(),
        Err(ActionError::Lock(Error::NoSuchHolder { .. })) => no_such_contender(&viewer, &path, token),
        Err(ActionError::Lock(error)) => failure_page(&viewer, &path, &error, describe_failure(&error)),
        Err(ActionError::Connect(failure)) => {
            let back = elements::lock_href(&path);
            let words = failure.to_string();
            let status = StatusCode::SERVICE_UNAVAILABLE;
            pages::message_page(&viewer, status, "Nothing was changed", &words, (&back, "Back to the lock"))
        }
    }
}

/// Reason why an action failed.
enum ActionError {
    /// The request on the lock failed.
    Lock(Error),
    /// No session could be opened.
    Connect(Failure),
}

impl std::fmt::Display for ActionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
            Self::Connect(failure) => failure.fmt(f),
        }
    }
}

/// Opens a session for one action, and revokes or breaks the lock. The session's note names the
/// operator. zoolock records a break in a znode below `.audit`, with that note.
async fn execute(
    site: &Site,
    action: AdminAction,
    path: &str,
    ticket: Ticket,
    note: &str,
) -> Result<ActionOutcome, ActionError> {
    let mut service = site.service.clone();
    service.note = Some(note.to_owned());
    let zoolock = connect(&service, &site.reporter).await.map_err(ActionError::Connect)?;
    let mutex = zoolock.mutex(path);
    let result = match action {
        AdminAction::Revoke => mutex.revoke(ticket).await.map(|()| ActionOutcome::Revoked),
        AdminAction::Break => mutex.break_lock(ticket).await.map(|broken| {
            if notices_break(&broken) { ActionOutcome::Broken } else { ActionOutcome::Unaware }
        }),
    };
    close(zoolock).await;
    result.map_err(ActionError::Lock)
}

/// Returns the note of the session: the address of the operator and the reason.
fn session_note(peer: PeerAddress, note: &str) -> String {
    let note: String = note.trim().chars().take(MAX_NOTE).collect();
    let from = peer.0.ip().to_canonical();
    let operator = format!("operator at {from}, zoolock ui");
    if note.is_empty() { operator } else { format!("{operator}: {}", escape_unprintable(&note)) }
}

/// Responds to a viewer that is no operator.
fn refusal_page(viewer: &Viewer, next: &str) -> Response {
    if *viewer == Viewer::LoggedOut {
        return Redirect::to(&format!("/login?next={}", elements::percent_encode(next))).into_response();
    }
    let words = "These pages are read-only: zoolock ui was started without --allow-operate.";
    pages::message_page(viewer, StatusCode::FORBIDDEN, "Read-only", words, ("/", "All locks"))
}

/// Responds to an invalid lock name or token.
fn invalid_page(viewer: &Viewer, words: &str) -> Response {
    pages::message_page(viewer, StatusCode::BAD_REQUEST, "Invalid request", words, ("/", "All locks"))
}

/// Responds to a token that no contender has, as far as their znodes can be read.
fn no_such_contender(viewer: &Viewer, path: &str, token: &str) -> Response {
    let words = format!(
        "No contender that can be read has the token {token}. The queue of {path} may have changed after \
         your page was loaded. Nothing was changed."
    );
    let back = elements::lock_href(path);
    pages::message_page(
        viewer,
        StatusCode::CONFLICT,
        "Contender not found",
        &words,
        (&back, "Look at the lock again"),
    )
}

/// Returns the title and the text after a failed request that changes nothing.
fn unchanged(error: &Error) -> (&'static str, String) {
    ("Nothing was changed", error.to_string())
}

/// Returns the title and the text after a failed action. Without an answer, the action may have happened.
fn describe_failure(error: &Error) -> (&'static str, String) {
    match error {
        Error::Unavailable { .. } => {
            ("No answer", format!("The action may have happened. Look at the lock again. Cause: {error}"))
        }
        _ => unchanged(error),
    }
}

/// Responds to a failed request for the lock.
fn failure_page(
    viewer: &Viewer,
    path: &str,
    error: &Error,
    (title, words): (&'static str, String),
) -> Response {
    let status = match error {
        Error::NoSuchHolder { .. } => StatusCode::CONFLICT,
        Error::Denied { .. } => StatusCode::FORBIDDEN,
        Error::Invalid { .. } => StatusCode::UNPROCESSABLE_ENTITY,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    let back = elements::lock_href(path);
    pages::message_page(viewer, status, title, &words, (&back, "Back to the lock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn action_without_answer_may_have_happened() {
        let (address, message) = ("lock /locks/x".to_owned(), "no answer; try again".to_owned());
        let (title, words) = describe_failure(&Error::Unavailable { address, message, source: None });
        assert_eq!(title, "No answer");
        assert!(words.starts_with("The action may have happened. Look at the lock again."), "{words}");
        let (path, ticket) = ("/locks/x".to_owned(), "0.1.0".to_owned());
        let (title, _) = describe_failure(&Error::NoSuchHolder { path, ticket });
        assert_eq!(title, "Nothing was changed");
    }

    #[test]
    fn break_warning_fits_the_contender() {
        let acquires = "The next waiter acquires the lock at once.";
        let warning = |holds, is_lone| break_warning(holds, is_lone).into_string();
        assert!(warning(true, true).contains(acquires));
        assert!(!warning(true, false).contains(acquires) && warning(true, false).contains("this holder"));
        assert!(!warning(false, true).contains(acquires) && warning(false, true).contains("this waiter"));
    }
}
