//! `zoolock revoke`, `break` and `resize`, and the operator actions of `top`.

use std::time::{Duration, Instant};

use zoolock::admin::{Entry, Family, HistoryEvent, HistoryKind, PreviousEnd, Snapshot};
use zoolock::{Admin, Error, Ticket, Zoolock};

use crate::args::{BreakArgs, ResizeArgs, RevokeArgs};
use crate::base::duration::format_duration;
use crate::base::exit::{Exit, Failure};
use crate::base::reporter::{Reporter, escape_unprintable};
use crate::plan::{ConnectionSettings, Context};
use crate::render::history::describe_origin;
use crate::render::remedy::{AdminAction, STOP_FIRST, command_line, quoted_name};
use crate::render::status::describe_contender;
use crate::render::text::token_or;
use crate::service::connect::connect_and_request;
use crate::verbs::missing_lock::MissingLock;

/// Returns whether the client of this former holder notices that its lock was broken. Other client
/// libraries do not watch the znodes of their holders.
pub(crate) fn notices_break(broken: &Entry) -> bool {
    broken.family == Family::Native || broken.has_zoolock_data()
}

impl RevokeArgs {
    /// Asks one contender, or all holders, to release the lock. With `wait`, then waits until they have left the queue.
    pub(crate) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let Context { reporter, .. } = context;
        let Self { name, token: ticket, wait, note } = self;
        let name = name.as_str();
        let service = &connection(context, "revoke", name, note)?;
        connect_and_request(service, reporter, async |zoolock| {
            let admin = zoolock.admin();
            let seen = existing_lock(zoolock, name, service).await?;
            let (asked, missed) = match ticket {
                Some(ticket) => {
                    admin
                        .revoke(name, ticket)
                        .await
                        .map_err(|error| action_failure(error, ticket, name, &seen, service))?;
                    reporter.note(format_args!("{name}: asked {ticket} to release it"));
                    (seen.queue().filter(|entry| entry.token == Some(ticket)).collect(), None)
                }
                None => ask_all_holders(admin, name, &seen, service, reporter).await?,
            };
            if let Some(wait) = wait.filter(|_| !asked.is_empty()) {
                wait_for_release(service, zoolock, name, &asked, wait, reporter).await?;
            }
            match missed {
                // Without --wait, it is enough that one holder is asked.
                Some(Exit::NOT_REVOCABLE) if wait.is_none() => Ok(Exit::OK),
                Some(Exit::NOT_REVOCABLE) => {
                    Err(Failure::new(Exit::NOT_REVOCABLE, format!("{name}: not all holders could be asked")))
                }
                Some(exit) => {
                    let what = "a part of the queue cannot be read, so some holders may not have been asked";
                    Err(Failure::new(exit, format!("{name}: {what}")))
                }
                None => Ok(Exit::OK),
            }
        })
        .await
    }
}

impl BreakArgs {
    /// Breaks the lock of the contender with this ticket. Without a ticket, fails with the commands that break the lock.
    pub(crate) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let Context { reporter, .. } = context;
        let Self { name, token: ticket, note } = self;
        let name = name.as_str();
        let service = &connection(context, "break", name, note)?;
        connect_and_request(service, reporter, async |zoolock| {
            let admin = zoolock.admin();
            let seen = existing_lock(zoolock, name, service).await?;
            let ticket = ticket.ok_or_else(|| Failure::usage(missing_token(&seen, name, service)))?;
            let broken = admin.break_lock(name, ticket).await;
            let broken = broken.map_err(|error| action_failure(error, ticket, name, &seen, service))?;
            let contender = describe_contender(&broken);
            reporter.note(format_args!("{name}: removed {contender}, token {ticket}, from the queue"));
            // A waiter may have become a holder meanwhile.
            let has_waited = seen.waiters.iter().any(|waiter| waiter.token == Some(ticket));
            let may_run = if has_waited { "if it held the lock, its job" } else { "its job" };
            if notices_break(&broken) {
                reporter.note(format_args!(
                    "{name}: {may_run} may still run until it notices the break or its lease ends; stop it if it must not overlap"
                ));
            } else {
                reporter.note(format_args!(
                    "{contender} may not notice the break, and may continue as if it held the lock; stop it"
                ));
            }
            // The break has succeeded, even if the queue cannot be read after it.
            if let Ok(now) = admin.snapshot(name).await {
                note_holder(name, &now, reporter);
            }
            Ok(Exit::OK)
        })
        .await
    }
}

impl ResizeArgs {
    /// Sets the number of permits of a semaphore.
    pub(crate) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        context.refuse_json("resize")?;
        let Self { name, permits } = self;
        let service = context.connection_for(&name)?;
        connect_and_request(&service, &context.reporter, async |zoolock| {
            Ok(zoolock.semaphore(&name, permits).resize(permits).await?)
        })
        .await?;
        context.reporter.note(format_args!("{name} has {permits} permits"));
        Ok(Exit::OK)
    }
}

/// Returns the settings of a command that the history records.
fn connection(
    context: &Context,
    command: &str,
    name: &str,
    note: Option<String>,
) -> Result<ConnectionSettings, Failure> {
    context.refuse_json(command)?;
    let service = context.connection_for(name)?;
    let builder = service.builder.command_line(&format!("zoolock {command} {name}"));
    let builder = note.iter().fold(builder, |builder, note| builder.note(note));
    Ok(ConnectionSettings { builder, ..service })
}

/// Reads a lock. Fails if there is no such lock.
async fn existing_lock(
    zoolock: &Zoolock,
    name: &str,
    service: &ConnectionSettings,
) -> Result<Snapshot, Failure> {
    let lock = zoolock.admin().snapshot(name).await?;
    match MissingLock::find(zoolock, name, &lock, service).await? {
        Some(missing) => Err(missing.failure(name, service)),
        None => Ok(lock),
    }
}

/// Converts the error of an action on a token. `seen` is the lock before the action.
fn action_failure(
    error: Error,
    ticket: Ticket,
    name: &str,
    seen: &Snapshot,
    service: &ConnectionSettings,
) -> Failure {
    let contender = seen.queue().find(|entry| entry.token == Some(ticket));
    match (&error, contender) {
        (Error::NoSuchHolder { .. }, _) => {
            let ConnectionSettings { endpoint, root, .. } = service;
            let show = service.command_to_copy(&format!("show {}", quoted_name(&seen.path, service)));
            let message = format!(
                "lock {name} at {} below {root}: no holder or waiter has the token {ticket}; to list them, run: {show}",
                endpoint.address()
            );
            Failure::new(Exit::BUSY, message)
        }
        (Error::NotRevocable { .. }, Some(contender)) => {
            Failure::new(Exit::NOT_REVOCABLE, refusal(contender, name, seen, service))
        }
        _ => error.into(),
    }
}

/// Interval between two reads of a lock whose holders were asked.
const RELEASE_CHECK: Duration = Duration::from_millis(200);
/// Number of events in which the breaks of the asked contenders are searched.
const SEARCHED_EVENTS: usize = 20;

/// Waits until none of the asked contenders is in the queue. Then says how each of them left.
async fn wait_for_release(
    service: &ConnectionSettings,
    zoolock: &Zoolock,
    name: &str,
    asked: &[&Entry],
    wait: Duration,
    reporter: &Reporter,
) -> Result<Exit, Failure> {
    let deadline = Instant::now().checked_add(wait);
    let mut poller = zoolock.admin().poller(name, usize::MAX);
    loop {
        let failure = match poller.snapshot().await {
            Ok(snapshot) => {
                let lock = &snapshot.lock;
                let is_asked = |entry: &&Entry| {
                    entry.token.is_some() && asked.iter().any(|asked| asked.token == entry.token)
                };
                match lock.queue().find(is_asked) {
                    Some(left) => {
                        let message = format!(
                            "{name}: {} was asked, and is still in the queue after {}; to take the lock away, run: {}\n{}",
                            describe_contender(left),
                            format_duration(wait),
                            command_line(service, AdminAction::Break, &lock.path, &token_or("TOKEN", left)),
                            STOP_FIRST
                        );
                        Failure::new(Exit::STILL_HELD, message)
                    }
                    None if lock.unread.is_empty() && lock.queue().all(|entry| entry.token.is_some()) => {
                        // A client that may read the lock may be unable to read the history.
                        let history =
                            zoolock.admin().history(Some(name), SEARCHED_EVENTS).await.unwrap_or_default();
                        for contender in asked {
                            let left = describe_end(contender, lock, &history);
                            reporter.note(format_args!("{name}: {} {left}", describe_contender(contender)));
                        }
                        note_holder(name, lock, reporter);
                        return Ok(Exit::OK);
                    }
                    None => Failure::new(
                        Exit::DENIED,
                        format!(
                            "{name}: a part of the queue cannot be read, so it is not known who has left it"
                        ),
                    ),
                }
            }
            Err(error @ Error::Unavailable { .. }) => Failure::unavailable(format!(
                "{name}: the holders were asked; it is not known whether they have released it: {error}"
            )),
            Err(error) => return Err(error.into()),
        };
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(failure);
        }
        tokio::time::sleep(RELEASE_CHECK).await;
    }
}

/// Describes how a contender left the queue, as far as the lock and its history record it.
fn describe_end(contender: &Entry, lock: &Snapshot, history: &[HistoryEvent]) -> String {
    let is_break = |event: &&HistoryEvent| {
        event.event == HistoryKind::Broken && event.token.is_some() && event.token == contender.token
    };
    if let Some(broken) = history.iter().rfind(is_break) {
        return format!("was removed from the queue by {}", describe_origin(broken));
    }
    let is_last = lock.previous_number.is_some() && lock.previous_number == contender.number();
    match lock.previous {
        PreviousEnd::Clean if is_last => "has released it",
        PreviousEnd::Panicked if is_last => "has released it, because its thread panicked",
        PreviousEnd::Crashed if is_last => "has ended without a release",
        PreviousEnd::Broken if is_last => "was removed from the queue",
        _ => "has left the queue; how is not recorded",
    }
    .to_owned()
}

/// Notes the present holder of a lock.
fn note_holder(name: &str, lock: &Snapshot, reporter: &Reporter) {
    match &lock.holder {
        Some(holder) => reporter.note(format_args!("{name}: now held by {}", describe_contender(holder))),
        None if lock.unread.is_empty() && !lock.is_held() => reporter.note(format_args!("{name}: now free")),
        None => {}
    }
}

/// Asks each holder to release the lock. Returns the asked holders, and the exit code if another holder could not be
/// asked.
async fn ask_all_holders<'a>(
    admin: &Admin,
    name: &str,
    seen: &'a Snapshot,
    service: &ConnectionSettings,
    reporter: &Reporter,
) -> Result<(Vec<&'a Entry>, Option<Exit>), Failure> {
    let holders: Vec<_> = seen.holders().collect();
    let mut missed = (!seen.unread.is_empty()).then_some(Exit::DENIED);
    for part in &seen.unread {
        reporter.note(format_args!(
            "{name}: cannot read {}; its holders are not asked",
            escape_unprintable(part)
        ));
    }
    if let Some(foreign) = seen.foreign_semaphore.as_ref().filter(|_| holders.is_empty()) {
        let library = foreign.library;
        let what = format!("{name} is a semaphore of {library}: ask its holders with {library}");
        return Err(Failure::new(Exit::NOT_REVOCABLE, what));
    }
    if holders.is_empty() {
        if seen.unread.is_empty() {
            reporter.note(format_args!("{name} is free; no holder to ask"));
        }
        return Ok((Vec::new(), missed));
    }
    let (mut asked, mut unsupported, mut denied, mut any_asked) = (Vec::new(), Vec::new(), Vec::new(), false);
    for holder in holders {
        let Some(ticket) = holder.token else {
            reporter.note(format_args!(
                "{name}: cannot read the token of {}; it is not asked",
                escape_unprintable(&holder.node)
            ));
            missed = Some(Exit::DENIED);
            continue;
        };
        match admin.revoke(name, ticket).await {
            Ok(()) => {
                any_asked = true;
                asked.push(holder);
                reporter.note(format_args!("{name}: asked {} to release it", describe_contender(holder)));
            }
            Err(Error::NoSuchHolder { .. }) => {
                any_asked = true;
                reporter
                    .note(format_args!("{name}: {} is no longer in the queue", describe_contender(holder)));
            }
            // The client library of this holder cannot be asked. Other holders may use another library.
            Err(Error::NotRevocable { .. }) => unsupported.push(refusal(holder, name, seen, service)),
            // This client has no permission to ask this holder, or to read its znode.
            Err(error @ Error::Denied { .. }) => denied.push(error),
            Err(error) => return Err(Failure::from(error)),
        }
    }
    if let Some(last) = denied.pop() {
        denied.into_iter().for_each(|error| reporter.note(error));
        unsupported.into_iter().for_each(|message| reporter.note(message));
        return Err(Failure::from(last));
    }
    if !unsupported.is_empty() {
        missed = missed.or(Some(Exit::NOT_REVOCABLE));
    }
    let mut unsupported = unsupported.into_iter();
    match unsupported.next() {
        Some(message) if !any_asked => return Err(Failure::new(Exit::NOT_REVOCABLE, message)),
        first => first.into_iter().chain(unsupported).for_each(|message| reporter.note(message)),
    }
    Ok((asked, missed))
}

/// Formats why a contender cannot be asked to release, with the command that takes the lock away from it.
fn refusal(contender: &Entry, name: &str, seen: &Snapshot, service: &ConnectionSettings) -> String {
    let reason = contender.unrevocable.unwrap_or("its client library does not read requests to release");
    let token = token_or("TOKEN", contender);
    format!(
        "{name}: {} cannot be asked to release: {reason}; stop it, or take the lock away from it: {}\n{STOP_FIRST}",
        describe_contender(contender),
        command_line(service, AdminAction::Break, &seen.path, &token)
    )
}

/// Explains that `break` needs a token, with the command for each holder.
fn missing_token(lock: &Snapshot, name: &str, service: &ConnectionSettings) -> String {
    let mut text = format!("break needs --token: {name} ");
    let mut holders = lock.holders().peekable();
    if holders.peek().is_none() {
        let show = service.command_to_copy(&format!("show {}", quoted_name(&lock.path, service)));
        return text + &format!("has no holder that can be read; to see its queue, run: {show}");
    }
    for (number, holder) in holders.enumerate() {
        let and = if number == 0 { "" } else { "; and " };
        let command = holder.token.map_or_else(
            || "its token cannot be read".to_owned(),
            |token| {
                format!(
                    "to break its lock, run: {}",
                    command_line(service, AdminAction::Break, &lock.path, &token.to_string())
                )
            },
        );
        text.push_str(&format!("{and}is held by {}; {command}", describe_contender(holder)));
    }
    text + "\n" + STOP_FIRST
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::test_snapshots::{entry, lock, ticket};

    #[test]
    fn end_is_named_only_if_it_is_recorded() {
        let contender = entry("lock-0000000007", "0.7");
        let mut lock = lock("/locks/x", None, Vec::new());
        let unknown = "has left the queue; how is not recorded";
        assert_eq!(describe_end(&contender, &lock, &[]), unknown);
        (lock.previous, lock.previous_number) = (PreviousEnd::Clean, Some(7));
        assert_eq!(describe_end(&contender, &lock, &[]), "has released it");
        lock.previous_number = Some(8);
        assert_eq!(describe_end(&contender, &lock, &[]), unknown);
        let broken = |token: Ticket| -> HistoryEvent {
            let text = format!(
                r#"{{"event":"broken","path":"/locks/x","number":7,"token":"{token}","by":{{"user":"ann","host":"ops-1"}}}}"#
            );
            serde_json::from_str(&text).expect("an event")
        };
        let removed = "was removed from the queue by ann on ops-1";
        assert_eq!(describe_end(&contender, &lock, &[broken(ticket("0.7")), broken(ticket("0.8"))]), removed);
        assert_eq!(describe_end(&contender, &lock, &[broken(ticket("0.8"))]), unknown);
    }
}
