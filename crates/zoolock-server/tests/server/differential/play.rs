//! Plays a round on both servers at once, and compares their replies and events.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use zoolock_wire::{Reply, Request};

use super::plan::{Act, ROOT, SLOTS, Step};
use super::side::{Said, Side};
use super::tally::Tally;
use crate::common::create;

/// Maximum time for shrinking a failed round.
const SHRINKING: Duration = Duration::from_secs(30);

pub(crate) struct Pair {
    ours: Side,
    theirs: Side,
    rounds: usize,
    pub(crate) tally: Tally,
}

/// A difference between the servers.
#[derive(Debug)]
pub(crate) struct Mismatch {
    /// Number of steps played, including the last one.
    played: usize,
    what: String,
    ours: String,
    theirs: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  ours:   {}\n  theirs: {}", self.what, self.ours, self.theirs)
    }
}

impl Pair {
    pub(crate) fn new(ours: SocketAddr, theirs: SocketAddr) -> Self {
        Pair {
            ours: Side::new("ours", ours),
            theirs: Side::new("theirs", theirs),
            rounds: 0,
            tally: Tally::default(),
        }
    }

    /// Plays a round in a new root directory, with new sessions.
    pub(crate) async fn play(&mut self, steps: &[Step]) -> Result<(), Mismatch> {
        self.rounds += 1;
        let root = format!("/d{:05}", self.rounds);
        tokio::join!(self.ours.begin(&root), self.theirs.begin(&root));
        let create = Act::Ask(create(ROOT, 0));
        self.talk(0, &[(1, create)]).await.map_err(|mismatch| Mismatch { played: 0, ..mismatch })?;
        let mut at = 0;
        while at < steps.len() {
            let step = &steps[at];
            let mut end = at + 1;
            while steps[end - 1].more
                && steps.get(end).is_some_and(|next| next.slot == step.slot && is_call(&next.act))
            {
                end += 1;
            }
            let played = self.batch(at, &steps[at..end]).await;
            played.map_err(|mismatch| Mismatch { played: end, ..mismatch })?;
            at = end;
        }
        for slot in 0..SLOTS {
            self.quiet(slot).await.map_err(|mismatch| Mismatch { played: at, ..mismatch })?;
        }
        Ok(())
    }

    /// Removes steps while the servers still differ. Returns the remaining steps and their mismatch. Steps on paths that
    /// all rounds share are removed first. Their effects stay, and would cause a mismatch in every later round.
    pub(crate) async fn shrink(&mut self, steps: Vec<Step>, mismatch: Mismatch) -> (Vec<Step>, Mismatch) {
        let begun = Instant::now();
        let mut smallest = steps[..mismatch.played].to_vec();
        let mut mismatch = mismatch;
        let own: Vec<Step> = smallest.iter().filter(|step| !step.shared).cloned().collect();
        match self.play(&own).await {
            Ok(()) => return (smallest, mismatch),
            Err(found) => {
                smallest = own[..found.played].to_vec();
                mismatch = found;
            }
        }
        let mut size = smallest.len() / 2;
        while size > 0 {
            let mut from = 0;
            while from < smallest.len() && begun.elapsed() < SHRINKING {
                let mut fewer = smallest.clone();
                fewer.drain(from..(from + size).min(smallest.len()));
                match self.play(&fewer).await {
                    Err(found) => {
                        fewer.truncate(found.played);
                        (smallest, mismatch) = (fewer, found);
                    }
                    Ok(()) => from += size,
                }
            }
            size /= 2;
        }
        (smallest, mismatch)
    }

    async fn batch(&mut self, at: usize, steps: &[Step]) -> Result<(), Mismatch> {
        let slot = steps[0].slot;
        if self.ours.connected(slot) != self.theirs.connected(slot) {
            let connected = |side: &Side| format!("connected: {}", side.connected(slot));
            return Err(differ("a connection".to_owned(), connected(&self.ours), connected(&self.theirs)));
        }
        match steps[0].act {
            Act::Renew => {
                let (ours, theirs) = tokio::join!(self.ours.renew(slot), self.theirs.renew(slot));
                compare(&[], &format!("{:?}", steps[0]), &ours, &theirs)?;
                // Apache ZooKeeper deletes the ephemerals of a session in the order of a hash table.
                for slot in 0..SLOTS {
                    self.quiet(slot).await?;
                }
                Ok(())
            }
            Act::Reattach { wrong_password_first: wrong } => self.reattach(slot, wrong).await,
            Act::Ask(_) | Act::Broken { .. } => {
                if !self.ours.connected(slot) {
                    self.reattach(slot, false).await?;
                }
                let xid = |i: usize| i32::try_from(at + i + 10).expect("it is small");
                let calls: Vec<(i32, Act)> =
                    steps.iter().enumerate().map(|(i, step)| (xid(i), step.act.clone())).collect();
                self.talk(slot, &calls).await
            }
        }
    }

    async fn reattach(&mut self, slot: usize, wrong: bool) -> Result<(), Mismatch> {
        let (ours, theirs) = tokio::join!(self.ours.reattach(slot, wrong), self.theirs.reattach(slot, wrong));
        compare(&[], &format!("session {slot} goes on with another connection"), &ours, &theirs)
    }

    async fn talk(&mut self, slot: usize, calls: &[(i32, Act)]) -> Result<(), Mismatch> {
        let (ours, theirs) = tokio::join!(self.ours.talk(slot, calls), self.theirs.talk(slot, calls));
        self.tally.count(calls, &ours);
        compare(calls, &format!("session {slot}"), &ours, &theirs)
    }

    /// Compares the pending events of a session, in any order.
    async fn quiet(&mut self, slot: usize) -> Result<(), Mismatch> {
        if !self.ours.connected(slot) {
            return Ok(());
        }
        let ping = [(1, Act::Ask(Request::Ping))];
        let (mut ours, mut theirs) = tokio::join!(self.ours.talk(slot, &ping), self.theirs.talk(slot, &ping));
        ours.sort_by_key(|said| format!("{said:?}"));
        theirs.sort_by_key(|said| format!("{said:?}"));
        compare(&ping, &format!("what session {slot} was told of"), &ours, &theirs)
    }
}

fn is_call(act: &Act) -> bool {
    matches!(act, Act::Ask(_) | Act::Broken { .. })
}

fn compare(calls: &[(i32, Act)], what: &str, ours: &[Said], theirs: &[Said]) -> Result<(), Mismatch> {
    let mut answered = 0;
    for at in 0..ours.len().max(theirs.len()) {
        let call = calls.get(answered).map(|(_, act)| act);
        let (ours, theirs) = (ours.get(at), theirs.get(at));
        if ours != theirs && !excused(call, ours, theirs) {
            let what = format!("{what}, on {}", call.map_or_else(String::new, |call| format!("{call:?}")));
            return Err(differ(what, show(ours), show(theirs)));
        }
        if matches!(ours, Some(Said::Reply { .. })) {
            answered += 1;
        }
    }
    Ok(())
}

/// Returns whether a difference is intended.
fn excused(call: Option<&Act>, ours: Option<&Said>, theirs: Option<&Said>) -> bool {
    let (Some(Act::Ask(call)), Some(ours), Some(theirs)) = (call, ours, theirs) else { return false };
    match (call, ours, theirs) {
        // Apache ZooKeeper also counts watches of other clients.
        (
            Request::CheckWatches { .. },
            Said::Reply { xid: ours, zxid: our_zxid, err: -121, .. },
            Said::Reply { xid: theirs, zxid: their_zxid, err: 0, reply: Reply::Empty },
        ) => (ours, our_zxid) == (theirs, their_zxid),
        _ => false,
    }
}

fn show(said: Option<&Said>) -> String {
    said.map_or_else(|| "nothing more".to_owned(), |said| format!("{said:?}"))
}

fn differ(what: String, ours: String, theirs: String) -> Mismatch {
    Mismatch { played: 0, what, ours, theirs }
}
