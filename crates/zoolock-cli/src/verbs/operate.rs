//! `zoolock revoke`, `break` and `resize`, and the operator actions of `top` and `ui`.

use serde::Deserialize;
use zoolock::{Entry, Error, Ticket};

use crate::base::exit::{Exit, Failure};
use crate::base::reporter::{Reporter, escape_unprintable};
use crate::plan::ConnectionSettings;
use crate::render::status::{describe_contender, has_zoolock_details};
use crate::service::connect::{close, connect, connect_and_request};

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

/// Returns whether the client of this former holder notices that its lock was broken. Other client
/// libraries do not watch the znodes of their holders.
pub(crate) fn notices_break(broken: &Entry) -> bool {
    broken.family == "native" || has_zoolock_details(broken)
}

/// Asks one holder, or all holders, to release the lock.
pub(crate) async fn revoke(
    service: &ConnectionSettings,
    name: &str,
    ticket: Option<Ticket>,
    reporter: &Reporter,
) -> Result<Exit, Failure> {
    let zoolock = connect(service, reporter).await?;
    let mutex = zoolock.mutex(name);
    let request = async {
        if let Some(ticket) = ticket {
            mutex.revoke(ticket).await?;
            reporter.note(format_args!("{name}: asked {ticket} to release it"));
            return Ok(Exit::OK);
        }
        let seen = mutex.snapshot().await?;
        let holders: Vec<_> = seen.holder.iter().chain(&seen.beside).collect();
        for part in &seen.unread {
            reporter.note(format_args!(
                "{name}: cannot read {}; its holders are not asked",
                escape_unprintable(part)
            ));
        }
        if let Some(foreign) = seen.foreign_semaphore.as_ref().filter(|_| holders.is_empty()) {
            let library = foreign.library;
            let what = format!("{name} is a semaphore of {library}: ask its holders with {library}");
            return Err(Failure::usage(what));
        }
        if holders.is_empty() {
            if seen.unread.is_empty() {
                reporter.note(format_args!("{name} is free; no holder to ask"));
            }
            return Ok(Exit::OK);
        }
        let (mut unsupported, mut denied, mut any_asked) = (Vec::new(), Vec::new(), false);
        for holder in holders {
            let Some(ticket) = holder.token.as_deref().and_then(|token| token.parse::<Ticket>().ok()) else {
                reporter.note(format_args!(
                    "{name}: cannot read the token of {}; it is not asked",
                    escape_unprintable(&holder.node)
                ));
                continue;
            };
            match mutex.revoke(ticket).await {
                Ok(()) => {
                    any_asked = true;
                    reporter.note(format_args!("{name}: asked {} to release it", describe_contender(holder)));
                }
                Err(Error::NoSuchHolder { .. }) => {
                    any_asked = true;
                    reporter
                        .note(format_args!("{name}: {} has already released it", describe_contender(holder)));
                }
                // The client library of this holder cannot be asked. Other holders may use another library.
                Err(error @ Error::Invalid { .. }) => unsupported.push(error),
                // This client has no permission to ask this holder, or to read its znode.
                Err(error @ Error::Denied { .. }) => denied.push(error),
                Err(error) => return Err(Failure::from(error)),
            }
        }
        if let Some(last) = denied.pop() {
            denied.into_iter().chain(unsupported).for_each(|error| reporter.note(error));
            return Err(Failure::from(last));
        }
        let mut unsupported = unsupported.into_iter();
        match unsupported.next() {
            Some(error) if !any_asked => return Err(Failure::from(error)),
            first => first.into_iter().chain(unsupported).for_each(|error| reporter.note(error)),
        }
        Ok(Exit::OK)
    };
    let outcome = request.await;
    close(zoolock).await;
    outcome
}

/// Breaks the lock of the contender with this ticket.
pub(crate) async fn break_lock(
    service: &ConnectionSettings,
    name: &str,
    ticket: Ticket,
    reporter: &Reporter,
) -> Result<Exit, Failure> {
    let broken =
        connect_and_request(service, reporter, async |zoolock| zoolock.mutex(name).break_lock(ticket).await)
            .await?;
    reporter.note(format_args!("{name}: removed {ticket} from the queue"));
    if !notices_break(&broken) {
        reporter.note(format_args!(
            "{} does not notice the break, and may continue as if it held the lock; stop it",
            describe_contender(&broken)
        ));
    }
    Ok(Exit::OK)
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
