//! `zoolock why`: explains why a lock is not free.

use std::fmt::Write as _;

use zoolock::{ChainLink, QueueEntry, WaitChain};

use crate::args::ColorWhen;
use crate::base::exit::{Exit, Failure};
use crate::base::reporter::{Reporter, escape_unprintable};
use crate::plan::ConnectionSettings;
use crate::render::status::describe_contender;
use crate::render::text::{TextStyle, describe_role, format_age, format_json, lock_name, print, wrap_text};
use crate::service::connect::connect_and_request;

/// Prints the holder of the lock, the lock that this holder waits for, the holder of that lock, and
/// so on.
pub(crate) async fn why(
    service: &ConnectionSettings,
    name: &str,
    json: bool,
    color: ColorWhen,
    reporter: &Reporter,
) -> Result<Exit, Failure> {
    let why = connect_and_request(service, reporter, async |zoolock| zoolock.why(name).await).await?;
    if json {
        return print(&format_json(&why));
    }
    print(&format_chain(&why, &service.root, &TextStyle::of_stdout(color)))
}

/// Formats the chain of holders as sentences.
fn format_chain(why: &WaitChain, root: &str, style: &TextStyle) -> String {
    let lock = |path: &str| escape_unprintable(lock_name(path, root));
    let mut text = String::new();
    let mut line = |sentence: &str| {
        // Continuation lines are indented.
        _ = writeln!(text, "{}", wrap_text(sentence, 4, style.width));
    };
    if why.chain.is_empty() {
        line(&format!("{} is free", style.bold(&lock(&why.lock))));
        return text;
    }
    let links = match why.end {
        // Leaves out the last link, which repeats an earlier one.
        "circle" => &why.chain[..why.chain.len() - 1],
        "unsure" if ends_in_cycle(why) => &why.chain[..why.chain.len() - 1],
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
            other_holders(link),
            format_since(&link.holds)
        ));
        if let Some(wants) = &link.waits_for {
            let what = style.bold(&lock(&wants.lock));
            line(&format!("  who waits for {what} ({}){}", describe_role(&wants.entry), format_since(wants)));
        }
    }
    line(&match (why.end, why.chain.last()) {
        ("circle", Some(last)) => format!(
            "  which is {} {} again: a deadlock; see `zoolock deadlocks`",
            describe_relation(&last.holds),
            describe_contender(&last.holds.entry)
        ),
        ("unsure", Some(last)) if ends_in_cycle(why) => format!(
            "  which is {} {} again: a deadlock if the semaphore, which does not record its permits, has no free ones",
            describe_relation(&last.holds),
            describe_contender(&last.holds.entry)
        ),
        ("unsure", _) => "  which may continue: that semaphore does not record its permits".to_owned(),
        ("permits", _) => "  it requests more permits than the semaphore has, and waits for ever".to_owned(),
        ("unknown", _) => "  the znode of this owner cannot be read".to_owned(),
        _ => "  it waits for no other lock here: it is running, or blocked outside ZooKeeper".to_owned(),
    });
    text
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

fn other_holders(link: &ChainLink) -> String {
    match link.beside {
        0 => String::new(),
        others => format!(" and {others} more"),
    }
}

/// Formats the time since a contender joined the queue. Returns an empty string if the time is unknown.
pub(crate) fn format_since(place: &QueueEntry) -> String {
    format_age(&place.entry).map_or_else(String::new, |age| format!(", since {age}"))
}
