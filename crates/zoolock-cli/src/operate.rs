//! `zoolock revoke`, `break` and `resize`.

use zoolock::{Error, Ticket};

use crate::connect::{close, connect};
use crate::exit::{Exit, Failure};
use crate::plan::Service;
use crate::status::{is_zoolock, who};
use crate::talk::{Talk, printable};

/// Asks one holder, or all of them, to let go.
pub(crate) async fn revoke(
    service: &Service,
    name: &str,
    ticket: Option<Ticket>,
    talk: &Talk,
) -> Result<Exit, Failure> {
    let zoolock = connect(service, talk).await?;
    let mutex = zoolock.mutex(name);
    let asked = async {
        if let Some(ticket) = ticket {
            mutex.revoke(ticket).await?;
            talk.note(format_args!("{name}: asked {ticket} to let go"));
            return Ok(Exit::OK);
        }
        let seen = mutex.snapshot().await?;
        let holders: Vec<_> = seen.holder.iter().chain(&seen.beside).collect();
        for part in &seen.unread {
            talk.note(format_args!(
                "{name}: {} cannot be read, and so nobody there is asked",
                printable(part)
            ));
        }
        if let Some(foreign) = seen.foreign_semaphore.as_ref().filter(|_| holders.is_empty()) {
            let library = foreign.library;
            let what = format!("{name} is a semaphore of {library}: ask its holders with {library}");
            return Err(Failure::usage(what));
        }
        if holders.is_empty() {
            if seen.unread.is_empty() {
                talk.note(format_args!("{name} is free: there is nobody to ask"));
            }
            return Ok(Exit::OK);
        }
        let (mut deaf, mut denied, mut others) = (Vec::new(), Vec::new(), false);
        for holder in holders {
            let Some(ticket) = holder.token.as_deref().and_then(|token| token.parse::<Ticket>().ok()) else {
                talk.note(format_args!(
                    "{name}: {} cannot be read, and so not asked",
                    printable(&holder.node)
                ));
                continue;
            };
            match mutex.revoke(ticket).await {
                Ok(()) => {
                    others = true;
                    talk.note(format_args!("{name}: asked {} to let go", who(holder)));
                }
                Err(Error::NoSuchHolder { .. }) => {
                    others = true;
                    talk.note(format_args!("{name}: {} has let go already", who(holder)));
                }
                // Its make has no such thing; somebody beside it may be asked.
                Err(error @ Error::Invalid { .. }) => deaf.push(error),
                // It may not be asked, or not be seen any more.
                Err(error @ Error::Denied { .. }) => denied.push(error),
                Err(error) => return Err(Failure::from(error)),
            }
        }
        if let Some(last) = denied.pop() {
            denied.into_iter().chain(deaf).for_each(|error| talk.note(error));
            return Err(Failure::from(last));
        }
        let mut deaf = deaf.into_iter();
        match deaf.next() {
            Some(error) if !others => return Err(Failure::from(error)),
            first => first.into_iter().chain(deaf).for_each(|error| talk.note(error)),
        }
        Ok(Exit::OK)
    };
    let outcome = asked.await;
    close(zoolock).await;
    outcome
}

/// Takes the lock away from the one with this ticket.
pub(crate) async fn break_lock(
    service: &Service,
    name: &str,
    ticket: Ticket,
    talk: &Talk,
) -> Result<Exit, Failure> {
    let zoolock = connect(service, talk).await?;
    let broken = zoolock.mutex(name).break_lock(ticket).await;
    close(zoolock).await;
    let broken = broken?;
    talk.note(format_args!("{name}: taken away from {ticket}"));
    // Theirs look at their own znode no more once they hold.
    if broken.family != "native" && !is_zoolock(&broken) {
        talk.note(format_args!(
            "{} does not notice, and goes on as if it had the lock: end it, if it has not ended",
            who(&broken)
        ));
    }
    Ok(Exit::OK)
}

/// Gives a semaphore another size.
pub(crate) async fn resize(
    service: &Service,
    name: &str,
    permits: u32,
    talk: &Talk,
) -> Result<Exit, Failure> {
    let zoolock = connect(service, talk).await?;
    let resized = zoolock.semaphore(name, permits).resize(permits).await;
    close(zoolock).await;
    resized?;
    talk.note(format_args!("{name} has {permits} permits"));
    Ok(Exit::OK)
}
