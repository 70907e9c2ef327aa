//! `zoolock why`: explains why a lock is not free.

use std::fmt::Write as _;

use zoolock::admin::{ChainEnd, OwnerKind, QueueEntry, WaitChain};

use crate::args::WhyArgs;
use crate::base::exit::{Exit, Failure};
use crate::base::reporter::escape_unprintable;
use crate::plan::{ConnectionSettings, Context};
use crate::render::deadlock::{format_ending, format_since};
use crate::render::remedy::{Remedy, quoted_name};
use crate::render::status::describe_contender;
use crate::render::text::{TextStyle, and_more, describe_role, format_json, lock_name, print, wrap_text};
use crate::service::connect::{connect_and_request, learn_server_clock};
use crate::verbs::missing_lock::{MissingLock, note_free_locally};

impl WhyArgs {
    /// Prints the holder of the lock, the lock that this holder waits for, the holder of that lock, and
    /// so on.
    pub(crate) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let Context { global, reporter } = context;
        let name = self.name.as_str();
        let service = &context.connection_for(name)?;
        let (why, missing) = connect_and_request(service, reporter, async |zoolock| {
            let why = zoolock.admin().why(name).await?;
            if !why.chain.is_empty() {
                learn_server_clock(zoolock).await;
                return Ok((why, None));
            }
            let lock = zoolock.admin().snapshot(name).await?;
            Ok((why, MissingLock::find(zoolock, name, &lock, service).await?))
        })
        .await?;
        if global.json {
            print(&format_json(&why))?;
        }
        if let Some(missing) = missing {
            return Err(missing.failure(name, service));
        }
        if global.json {
            return Ok(Exit::OK);
        }
        let printed = print(&format_chain(&why, service, &TextStyle::of_stdout(global.color)));
        if why.end == ChainEnd::Free {
            note_free_locally(name, service, reporter);
        }
        printed
    }
}

/// Formats the chain of holders as sentences.
pub(crate) fn format_chain(why: &WaitChain, service: &ConnectionSettings, style: &TextStyle) -> String {
    let lock = |path: &str| escape_unprintable(lock_name(path, &service.root));
    let mut text = String::new();
    let mut line = |sentence: &str| {
        // Continuation lines are indented.
        _ = writeln!(text, "{}", wrap_text(sentence, 4, style.width));
    };
    if why.chain.is_empty() {
        let name = style.bold(&lock(&why.lock));
        line(&match why.end {
            ChainEnd::Unread => format!("{name} has no holder in the part that can be read"),
            ChainEnd::Foreign => {
                format!("{name} is a semaphore of another client library, whose holders are only counted")
            }
            _ => format!("{name} is free"),
        });
        return text;
    }
    let links = match why.end {
        // Leaves out the last link, which repeats an earlier one.
        ChainEnd::Circle => &why.chain[..why.chain.len() - 1],
        ChainEnd::Unsure if ends_in_cycle(why) => &why.chain[..why.chain.len() - 1],
        _ => &why.chain[..],
    };
    for (at, link) in links.iter().enumerate() {
        let how = describe_relation(&link.holds);
        let subject = match at {
            0 => format!("{} is ", style.bold(&lock(&link.holds.lock))),
            _ => "  which is ".to_owned(),
        };
        line(&format!(
            "{subject}{how} {}{}{}",
            describe_contender(&link.holds.entry),
            and_more(link.beside),
            format_since(&link.holds)
        ));
        if let Some(wants) = &link.waits_for {
            let what = style.bold(&lock(&wants.lock));
            line(&format!("  who waits for {what} ({}){}", describe_role(&wants.entry), format_since(wants)));
        }
    }
    line(&match (why.end, why.chain.last()) {
        (ChainEnd::Circle, Some(last)) => format!(
            "  which is {} {} again: a {}deadlock",
            describe_relation(&last.holds),
            describe_contender(&last.holds.entry),
            // Threads that share a session of another client library need not wait for each other.
            if why.chain.iter().any(|link| link.owner_kind == OwnerKind::Session) { "possible " } else { "" }
        ),
        (ChainEnd::Unsure, Some(last)) if ends_in_cycle(why) => format!(
            "  which is {} {} again: a deadlock if the semaphore, which does not record its permits, has no free ones",
            describe_relation(&last.holds),
            describe_contender(&last.holds.entry)
        ),
        (ChainEnd::Unsure, _) => {
            "  which may continue: that semaphore does not record its permits".to_owned()
        }
        (ChainEnd::Permits, _) => {
            "  it requests more permits than the semaphore has, and waits for ever".to_owned()
        }
        (ChainEnd::Unknown, _) => "  the owner of this znode is not known".to_owned(),
        _ => "  it waits for no lock that zoolock sees: it is busy, stuck or dead".to_owned(),
    });
    if why.waiting > 0 {
        line(&describe_waiters(why));
    }
    // These commands are not wrapped, so that they can be copied.
    match (why.end, why.chain.last()) {
        (ChainEnd::Working, Some(last)) => {
            text.push_str(&next_steps(&last.holds, service, style));
            if last.beside > 0 {
                let name = quoted_name(&last.holds.lock, service);
                _ = writeln!(text, "  others:  {}", service.command_to_copy(&format!("show {name}")));
            }
        }
        (ChainEnd::Circle, _) => {
            _ = writeln!(text, "  see:     {}", service.command_to_copy("deadlocks"));
            text.push_str(&format_ending(why.to_break.as_ref(), service, style));
        }
        _ => {}
    }
    text
}

/// Counts the waiters of the lock, and names the first ones.
fn describe_waiters(why: &WaitChain) -> String {
    let mut names: Vec<String> = why.waiters.iter().map(describe_contender).collect();
    let more = why.waiting - names.len();
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    let verb = if why.waiting == 1 { "waits" } else { "wait" };
    format!("  {} {verb}: {}", why.waiting, names.join("; "))
}

/// Says where to look at a holder that waits for no lock, and how to take its lock away.
fn next_steps(holder: &QueueEntry, service: &ConnectionSettings, style: &TextStyle) -> String {
    let mut text = String::new();
    let entry = &holder.entry;
    match (&entry.host, entry.pid) {
        (Some(host), Some(pid)) => {
            // The command of `zoolock run` is a descendant of this process, but not its child.
            let host = escape_unprintable(host);
            _ = writeln!(text, "  look at: process {pid} on {host} and its descendants: pstree -alp {pid}");
        }
        (Some(host), None) => _ = writeln!(text, "  look at: host {}", escape_unprintable(host)),
        (None, _) => {}
    }
    let remedy = Remedy::of(service, &holder.lock, entry);
    text + &remedy.map_or_else(String::new, |remedy| remedy.lines(style))
}

/// Returns whether the last owner of the chain also occurs earlier in the chain.
fn ends_in_cycle(why: &WaitChain) -> bool {
    let Some((last, before)) = why.chain.split_last() else { return false };
    before
        .iter()
        .any(|link| (&link.owner, link.owner_kind) == (&last.owner, last.owner_kind) && link.owner.is_some())
}

fn describe_relation(place: &QueueEntry) -> &'static str {
    if place.granted { "held by" } else { "requested earlier by" }
}
