//! The line that tells people what they are waiting for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zoolock::{Entry, Snapshot, Zoolock};

use crate::duration::humane;
use crate::talk::{Talk, printable};

/// Who is granted sooner than this sees no line.
const PATIENCE: Duration = Duration::from_millis(700);
const PERIOD: Duration = Duration::from_secs(1);

/// Keeps the line up to date until aborted; without a terminal, says once who is in the way.
pub(crate) async fn show(zoolock: Zoolock, names: Vec<String>, talk: Arc<Talk>) {
    let began = Instant::now();
    tokio::time::sleep(PATIENCE).await;
    loop {
        // An error here is not the waiter's: it will see its own.
        if let Some((name, snapshot)) = hindrance(&zoolock, &names).await {
            if !talk.can_show_status() {
                talk.note(once(&name, &snapshot));
                return;
            }
            talk.status(&line(&name, &snapshot, began.elapsed()));
        } else {
            talk.status(&format!(
                "zoolock: waiting for {} · {}",
                names.join(" and "),
                seconds(began.elapsed())
            ));
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Which of the locks is held, and by whom.
pub(crate) async fn in_the_way(zoolock: &Zoolock, names: &[String]) -> Option<(String, String)> {
    let (name, snapshot) = hindrance(zoolock, names).await?;
    Some((name, snapshot.holder.as_ref().map(who)?))
}

/// The first of the locks that somebody else holds, or else the first.
async fn hindrance(zoolock: &Zoolock, names: &[String]) -> Option<(String, Snapshot)> {
    let mut first = None;
    for name in names {
        let Ok(snapshot) = zoolock.mutex(name).snapshot().await else { continue };
        let theirs = snapshot.holder.as_ref().is_some_and(|holder| !is_ours(holder));
        if theirs {
            return Some((name.clone(), snapshot));
        }
        first.get_or_insert((name.clone(), snapshot));
    }
    first
}

fn once(name: &str, snapshot: &Snapshot) -> String {
    match &snapshot.holder {
        Some(holder) => format!("waiting for {name}, held by {}{}", who(holder), others(snapshot)),
        None => format!("waiting for {name}"),
    }
}

fn line(name: &str, snapshot: &Snapshot, waited: Duration) -> String {
    let mut line = format!("zoolock: waiting for {name} · {}", seconds(waited));
    if let Some(position) = position(snapshot) {
        line.push_str(&format!(" · {position} of {} in line", snapshot.waiters.len()));
    }
    if let Some(holder) = &snapshot.holder {
        line.push_str(&format!(" · held by {}{}", who(holder), others(snapshot)));
    }
    line
}

fn others(snapshot: &Snapshot) -> String {
    match snapshot.beside.len() {
        0 => String::new(),
        others => format!(" and {others} more"),
    }
}

fn seconds(duration: Duration) -> String {
    humane(Duration::from_secs(duration.as_secs()))
}

/// Our own place among those who wait.
fn position(snapshot: &Snapshot) -> Option<usize> {
    snapshot.waiters.iter().position(is_ours).map(|index| index + 1)
}

fn is_ours(entry: &Entry) -> bool {
    let host = rustix::system::uname();
    entry.pid == Some(std::process::id())
        && entry.host.as_deref().is_some_and(|theirs| theirs == host.nodename().to_string_lossy())
}

/// A contender in a few words.
pub(crate) fn who(entry: &Entry) -> String {
    let mut words = match &entry.host {
        Some(host) if is_zoolock(entry) => host.clone(),
        Some(host) => format!("{} at {host}", make(entry)),
        None if is_zoolock(entry) => "an unknown host".to_owned(),
        None => make(entry).to_owned(),
    };
    if let Some(pid) = entry.pid {
        words.push_str(&format!(" pid {pid}"));
    }
    if let Some(program) = &entry.program {
        words.push_str(&format!(" ({program})"));
    }
    if let Some(said) = entry.note.as_ref().or(entry.identifier.as_ref()) {
        words.push_str(&format!(": {said}"));
    }
    printable(&words)
}

/// Whether it says about itself what zoolock says, whatever it is called.
pub(crate) fn is_zoolock(entry: &Entry) -> bool {
    entry.pid.is_some() || entry.program.is_some()
}

/// Whose client somebody is who says nothing that we know.
pub(crate) fn make(entry: &Entry) -> &'static str {
    // Curator's UUID has dashes.
    let of_go = entry.node.rsplit('/').next().and_then(|node| node.as_bytes().get(11)) != Some(&b'-');
    match entry.family {
        "curator" if of_go => "go-zookeeper",
        "curator" => "Curator",
        "kazoo" => "kazoo",
        "write-lock" => "a WriteLock of ZooKeeper's recipes",
        "zk-ruby" => "zk-ruby",
        "dotnet" => ".NET",
        // Or zoolock, where what it said was written over.
        _ => "somebody unknown",
    }
}
