//! `zoolock why`: explains why a lock is not free.

use std::fmt::Write as _;

use zoolock::{Link, Place, Why};

use crate::args::ColorWhen;
use crate::base::exit::{Exit, Failure};
use crate::base::talk::{Talk, printable};
use crate::plan::Service;
use crate::render::status::who;
use crate::render::text::{Look, age, document, name as short, print, role, wrapped};
use crate::service::connect::{close, connect};

/// Prints the holder of the lock, the lock that this holder waits for, its holder, and so on.
pub(crate) async fn why(
    service: &Service,
    name: &str,
    json: bool,
    color: ColorWhen,
    talk: &Talk,
) -> Result<Exit, Failure> {
    let zoolock = connect(service, talk).await?;
    let looked = zoolock.why(name).await;
    close(zoolock).await;
    let why = looked?;
    if json {
        return print(&document(&why));
    }
    print(&told(&why, &service.root, &Look::of_stdout(color)))
}

/// Formats the chain of holders as sentences.
fn told(why: &Why, root: &str, look: &Look) -> String {
    let lock = |path: &str| printable(short(path, root));
    let mut text = String::new();
    let mut line = |sentence: &str| {
        // Continuation lines are indented.
        _ = writeln!(text, "{}", wrapped(sentence, 4, look.width));
    };
    if why.chain.is_empty() {
        line(&format!("{} is free", look.bold(&lock(&why.lock))));
        return text;
    }
    let links = match why.end {
        // The last link repeats an earlier one.
        "circle" => &why.chain[..why.chain.len() - 1],
        "unsure" if comes_back(why) => &why.chain[..why.chain.len() - 1],
        _ => &why.chain[..],
    };
    for (at, link) in links.iter().enumerate() {
        let how = stands(&link.holds);
        let subject = match at {
            0 => format!("{} is ", look.bold(&lock(&link.holds.lock))),
            _ => "  which is ".to_owned(),
        };
        line(&format!("{subject}{how} {}{}{}", who(&link.holds.entry), beside(link), since(&link.holds)));
        if let Some(wants) = &link.waits_for {
            let what = look.bold(&lock(&wants.lock));
            line(&format!("  who waits for {what} ({}){}", role(&wants.entry), since(wants)));
        }
    }
    line(&match (why.end, why.chain.last()) {
        ("circle", Some(last)) => format!(
            "  which is {} {}, as said above: a circle, and so they wait for ever; `zoolock deadlocks` says what to break",
            stands(&last.holds),
            who(&last.holds.entry)
        ),
        ("unsure", Some(last)) if comes_back(why) => format!(
            "  which is {} {}, as said above: a circle, if that semaphore has no permits but those that are held, which it \
             does not say",
            stands(&last.holds),
            who(&last.holds.entry)
        ),
        ("unsure", _) => {
            "  which is a semaphore that does not say how many permits it has: it may go on".to_owned()
        }
        ("permits", _) => "  and that is more permits than there are: it waits for ever".to_owned(),
        ("unknown", _) => "  who waits for what cannot be read".to_owned(),
        _ => {
            "  who waits for no lock that is seen from here: it works, or waits for something else".to_owned()
        }
    });
    text
}

/// Returns whether the last owner of the chain occurs earlier in it.
fn comes_back(why: &Why) -> bool {
    let Some((last, before)) = why.chain.split_last() else { return false };
    before
        .iter()
        .any(|link| (&link.owner, link.owner_kind) == (&last.owner, last.owner_kind) && link.owner.is_some())
}

fn stands(place: &Place) -> &'static str {
    if place.granted { "held by" } else { "wanted before by" }
}

fn beside(link: &Link) -> String {
    match link.beside {
        0 => String::new(),
        others => format!(" and {others} more"),
    }
}

/// Formats the time since a contender arrived. Returns an empty string if it is unknown.
pub(crate) fn since(place: &Place) -> String {
    age(&place.entry).map_or_else(String::new, |age| format!(", since {age}"))
}
