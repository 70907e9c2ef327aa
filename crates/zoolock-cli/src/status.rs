//! The line that tells people what they are waiting for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zoolock::{Entry, Glance, Glances, Snapshot, Zoolock};

use crate::duration::humane;
use crate::talk::{Talk, printable};

/// Who is granted sooner than this sees no line.
const PATIENCE: Duration = Duration::from_millis(700);
/// How often the line is written.
const TICK: Duration = Duration::from_secs(1);
/// Whoever has waited for an hour need not know within a second that another one has the lock now.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Keeps the line up to date until aborted; without a terminal, says once who is in the way.
pub(crate) async fn show(zoolock: Zoolock, names: Vec<String>, talk: Arc<Talk>) {
    let began = Instant::now();
    tokio::time::sleep(PATIENCE).await;
    let mut locks = Locks::new(&zoolock, &names);
    loop {
        // An error here is not the waiter's: it will see its own.
        let seen = locks.hindrance().await;
        if let (Some((name, glance)), false) = (&seen, talk.can_show_status()) {
            talk.note(once(name, &glance.lock));
            return;
        }
        let next = Instant::now() + pause(began.elapsed());
        while Instant::now() < next {
            talk.status(&match &seen {
                Some((name, glance)) => line(name, glance, began.elapsed()),
                None => {
                    format!("zoolock: waiting for {} · {}", names.join(" and "), seconds(began.elapsed()))
                }
            });
            tokio::time::sleep(TICK).await;
        }
    }
}

/// How long until the next look: there may be thousands who wait, and each of them looks.
fn pause(waited: Duration) -> Duration {
    (waited / 10).clamp(TICK, LONGEST_PAUSE)
}

/// Which of the locks is held, and by whom.
pub(crate) async fn in_the_way(zoolock: &Zoolock, names: &[String]) -> Option<(String, String)> {
    let (name, Glance { lock, .. }) = Locks::new(zoolock, names).hindrance().await?;
    Some((name, lock.holder.as_ref().map(who)?))
}

/// The locks that are waited for, of which nobody is read who only waits.
struct Locks(Vec<(String, Glances)>);

impl Locks {
    fn new(zoolock: &Zoolock, names: &[String]) -> Self {
        let look_at = |name: &String| (name.clone(), zoolock.mutex(name).glances(0).with_place());
        Self(names.iter().map(look_at).collect())
    }

    /// The first of the locks that somebody else holds, or else the first.
    async fn hindrance(&mut self) -> Option<(String, Glance)> {
        let mut first = None;
        for (name, glances) in &mut self.0 {
            let Ok(glance) = glances.look().await else { continue };
            let theirs = glance.lock.holder.as_ref().is_some_and(|holder| !is_ours(holder));
            if theirs {
                return Some((name.clone(), glance));
            }
            first.get_or_insert((name.clone(), glance));
        }
        first
    }
}

fn once(name: &str, lock: &Snapshot) -> String {
    match &lock.holder {
        Some(holder) => format!("waiting for {name}, held by {}{}", who(holder), others(lock)),
        None => format!("waiting for {name}"),
    }
}

fn line(name: &str, Glance { lock, place, .. }: &Glance, waited: Duration) -> String {
    let mut line = format!("zoolock: waiting for {name} · {}", seconds(waited));
    if let Some(before) = place {
        line.push_str(&format!(" · {} of {} in line", before + 1, lock.waiting));
    }
    if let Some(holder) = &lock.holder {
        line.push_str(&format!(" · held by {}{}", who(holder), others(lock)));
    }
    line
}

fn others(lock: &Snapshot) -> String {
    match lock.beside.len() {
        0 => String::new(),
        others => format!(" and {others} more"),
    }
}

fn seconds(duration: Duration) -> String {
    humane(Duration::from_secs(duration.as_secs()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_waited_for_long_looks_seldom() {
        let of = |seconds| pause(Duration::from_secs(seconds));
        assert_eq!(of(1), Duration::from_secs(1));
        assert_eq!(of(60), Duration::from_secs(6));
        assert_eq!(of(86_400), Duration::from_secs(30));
    }
}
