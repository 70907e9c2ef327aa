//! `zoolock revoke`, `break` and `resize`, and the operator actions of `top` and `ui`.

use std::time::{Duration, Instant};

use serde::Deserialize;
use zoolock::{Entry, Error, Mutex, Snapshot, Ticket, Zoolock};

use crate::base::duration::format_duration;
use crate::base::exit::{Exit, Failure};
use crate::base::reporter::{Reporter, escape_unprintable};
use crate::base::shell::quote_for_shell;
use crate::plan::ConnectionSettings;
use crate::render::status::{describe_contender, has_zoolock_details};
use crate::render::text::lock_name;
use crate::service::connect::{close, connect, connect_and_request};
use crate::verbs::missing_lock::{find_similar, no_such_lock};

/// Operator action on a holder or waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AdminAction {
    Revoke,
    Break,
}

impl AdminAction {
    /// Returns the name, as in URLs, forms and window titles.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Revoke => "revoke",
            Self::Break => "break",
        }
    }
}

/// Returns the command line for an action on the contender with this token, ready to copy into a shell.
pub(crate) fn command_line(
    service: &ConnectionSettings,
    action: AdminAction,
    path: &str,
    token: &str,
) -> String {
    service.command_to_copy(&format!("{} {} --token {token}", action.word(), quoted_name(path, service)))
}

/// Returns the name of a lock, quoted for a shell. A name that begins with a hyphen would be read as a flag, so the
/// path is returned instead.
fn quoted_name(path: &str, service: &ConnectionSettings) -> String {
    let name = Some(lock_name(path, &service.root)).filter(|name| !name.starts_with('-'));
    quote_for_shell(name.unwrap_or(path))
}

/// Returns whether the client of this former holder notices that its lock was broken. Other client
/// libraries do not watch the znodes of their holders.
pub(crate) fn notices_break(broken: &Entry) -> bool {
    broken.family == "native" || has_zoolock_details(broken)
}

/// Asks one holder, or all holders, to release the lock. With `wait`, then waits until they have released it.
pub(crate) async fn revoke(
    service: &ConnectionSettings,
    name: &str,
    ticket: Option<Ticket>,
    wait: Option<Duration>,
    reporter: &Reporter,
) -> Result<Exit, Failure> {
    let zoolock = connect(service, reporter).await?;
    let mutex = zoolock.mutex(name);
    let request = async {
        let (asked, missed) = match ticket {
            Some(ticket) => {
                mutex.revoke(ticket).await?;
                reporter.note(format_args!("{name}: asked {ticket} to release it"));
                (vec![ticket], None)
            }
            None => ask_all_holders(&zoolock, name, service, reporter).await?,
        };
        if let Some(wait) = wait.filter(|_| !asked.is_empty()) {
            wait_for_release(service, &mutex, name, &asked, wait, reporter).await?;
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
    };
    let outcome = request.await;
    close(zoolock).await;
    outcome
}

/// Interval between two reads of a lock whose holders were asked.
const RELEASE_CHECK: Duration = Duration::from_millis(200);

/// Waits until no contender with one of these tickets is in the queue.
async fn wait_for_release(
    service: &ConnectionSettings,
    mutex: &Mutex,
    name: &str,
    asked: &[Ticket],
    wait: Duration,
    reporter: &Reporter,
) -> Result<Exit, Failure> {
    let deadline = Instant::now().checked_add(wait);
    let mut poller = mutex.poller(usize::MAX);
    loop {
        let failure = match poller.snapshot().await {
            Ok(snapshot) => {
                let is_asked = |entry: &&Entry| {
                    let ticket = entry.token.as_deref().and_then(|token| token.parse().ok());
                    ticket.is_some_and(|ticket| asked.contains(&ticket))
                };
                let lock = &snapshot.lock;
                match lock.queue().find(is_asked) {
                    Some(left) => {
                        let message = format!(
                            "{name}: {} was asked, and is still in the queue after {}; to take the lock away, run: {}",
                            describe_contender(left),
                            format_duration(wait),
                            command_line(
                                service,
                                AdminAction::Break,
                                &lock.path,
                                left.token.as_deref().unwrap_or("TOKEN")
                            )
                        );
                        Failure::new(Exit::STILL_HELD, message)
                    }
                    None if lock.unread.is_empty() && lock.queue().all(|entry| entry.token.is_some()) => {
                        reporter.note(format_args!("{name}: all that were asked have left the queue"));
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

/// Asks each holder to release the lock. Returns the tickets of the asked holders, and the exit code if another holder
/// could not be asked.
async fn ask_all_holders(
    zoolock: &Zoolock,
    name: &str,
    service: &ConnectionSettings,
    reporter: &Reporter,
) -> Result<(Vec<Ticket>, Option<Exit>), Failure> {
    let mutex = zoolock.mutex(name);
    let seen = mutex.snapshot().await?;
    if !seen.exists {
        let similar = find_similar(zoolock, name, service).await?;
        return Err(no_such_lock(name, similar.as_deref(), service));
    }
    let holders: Vec<_> = seen.holder.iter().chain(&seen.beside).collect();
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
        let Some(ticket) = holder.token.as_deref().and_then(|token| token.parse::<Ticket>().ok()) else {
            reporter.note(format_args!(
                "{name}: cannot read the token of {}; it is not asked",
                escape_unprintable(&holder.node)
            ));
            missed = Some(Exit::DENIED);
            continue;
        };
        match mutex.revoke(ticket).await {
            Ok(()) => {
                any_asked = true;
                asked.push(ticket);
                reporter.note(format_args!("{name}: asked {} to release it", describe_contender(holder)));
            }
            Err(Error::NoSuchHolder { .. }) => {
                any_asked = true;
                reporter
                    .note(format_args!("{name}: {} is no longer in the queue", describe_contender(holder)));
            }
            // The client library of this holder cannot be asked. Other holders may use another library.
            Err(error @ Error::NotRevocable { .. }) => {
                let command = command_line(service, AdminAction::Break, &seen.path, &ticket.to_string());
                unsupported.push(format!("{error}: {command}"));
            }
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

/// Breaks the lock of the contender with this ticket. Without a ticket, fails with the commands that break the lock.
pub(crate) async fn break_lock(
    service: &ConnectionSettings,
    name: &str,
    ticket: Option<Ticket>,
    reporter: &Reporter,
) -> Result<Exit, Failure> {
    let Some(ticket) = ticket else {
        let (lock, similar) = connect_and_request(service, reporter, async |zoolock| {
            let lock = zoolock.mutex(name).snapshot().await?;
            let similar = if lock.exists { None } else { find_similar(zoolock, name, service).await? };
            Ok((lock, similar))
        })
        .await?;
        if !lock.exists {
            return Err(no_such_lock(name, similar.as_deref(), service));
        }
        return Err(Failure::usage(missing_token(&lock, name, service)));
    };
    let (broken, now) = connect_and_request(service, reporter, async |zoolock| {
        let mutex = zoolock.mutex(name);
        // The break has succeeded, even if the queue cannot be read after it.
        Ok((mutex.break_lock(ticket).await?, mutex.snapshot().await.ok()))
    })
    .await?;
    let contender = describe_contender(&broken);
    reporter.note(format_args!("{name}: removed {contender}, token {ticket}, from the queue"));
    if notices_break(&broken) {
        reporter.note(format_args!(
            "{name}: it learns of this a moment later, and may run until its grace has passed"
        ));
    } else {
        reporter.note(format_args!(
            "{contender} may not notice the break, and may continue as if it held the lock; stop it"
        ));
    }
    if let Some(holder) = now.as_ref().and_then(|lock| lock.holder.as_ref()) {
        reporter.note(format_args!("{name}: now held by {}", describe_contender(holder)));
    }
    Ok(Exit::OK)
}

/// Explains that `break` needs a token, with the command for each holder.
fn missing_token(lock: &Snapshot, name: &str, service: &ConnectionSettings) -> String {
    let mut text = format!("break needs --token: {name} ");
    let mut holders = lock.holders().peekable();
    if holders.peek().is_none() {
        let show = service.command_to_copy(&format!("show {}", quoted_name(&lock.path, service)));
        text.push_str(&format!("has no holder that can be read; to see its queue, run: {show}"));
    }
    for (number, holder) in holders.enumerate() {
        let and = if number == 0 { "" } else { "; and " };
        let command = holder.token.as_deref().map_or_else(
            || "its token cannot be read".to_owned(),
            |token| {
                format!(
                    "to break its lock, run: {}",
                    command_line(service, AdminAction::Break, &lock.path, token)
                )
            },
        );
        text.push_str(&format!("{and}is held by {}; {command}", describe_contender(holder)));
    }
    text
}

/// Sets the number of permits of a semaphore.
pub(crate) async fn resize(
    service: &ConnectionSettings,
    name: &str,
    permits: u32,
    reporter: &Reporter,
) -> Result<Exit, Failure> {
    connect_and_request(service, reporter, async |zoolock| {
        zoolock.semaphore(name, permits).resize(permits).await
    })
    .await?;
    reporter.note(format_args!("{name} has {permits} permits"));
    Ok(Exit::OK)
}
