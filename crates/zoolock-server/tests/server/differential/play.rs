//! Plays a round on this server and on Apache ZooKeeper at once, and compares their replies and
//! events.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use zoolock_wire::{Reply, Request};

use super::plan::{Action, ROOT, SLOTS, Step};
use super::server::{Message, ServerUnderTest};
use super::tally::Tally;
use crate::common::create;

/// Maximum time for shrinking a failed round.
const SHRINKING: Duration = Duration::from_secs(30);

pub(crate) struct Pair {
    ours: ServerUnderTest,
    theirs: ServerUnderTest,
    rounds: usize,
    pub(crate) tally: Tally,
}

/// A difference between the servers.
#[derive(Debug)]
pub(crate) struct Mismatch {
    /// Number of steps played, including the step at which the servers differed.
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
            ours: ServerUnderTest::new("ours", ours),
            theirs: ServerUnderTest::new("theirs", theirs),
            rounds: 0,
            tally: Tally::default(),
        }
    }

    /// Plays a round below a new root znode, with new sessions.
    pub(crate) async fn play(&mut self, steps: &[Step]) -> Result<(), Mismatch> {
        self.rounds += 1;
        let root = format!("/d{:05}", self.rounds);
        tokio::join!(self.ours.begin(&root), self.theirs.begin(&root));
        let create = Action::Request(create(ROOT, 0));
        self.exchange(0, &[(1, create)]).await.map_err(|mismatch| Mismatch { played: 0, ..mismatch })?;
        let mut at = 0;
        while at < steps.len() {
            let step = &steps[at];
            let mut end = at + 1;
            while steps[end - 1].pipelined_with_next
                && steps.get(end).is_some_and(|next| next.slot == step.slot && is_call(&next.action))
            {
                end += 1;
            }
            let played = self.batch(at, &steps[at..end]).await;
            played.map_err(|mismatch| Mismatch { played: end, ..mismatch })?;
            at = end;
        }
        for slot in 0..SLOTS {
            self.compare_pending_events(slot)
                .await
                .map_err(|mismatch| Mismatch { played: at, ..mismatch })?;
        }
        Ok(())
    }

    /// Removes steps from a round as long as the servers still differ. Returns the remaining steps
    /// and their mismatch. Steps on paths that all rounds share are removed first, because their
    /// effects would cause a mismatch in every later round.
    pub(crate) async fn shrink(&mut self, steps: Vec<Step>, mismatch: Mismatch) -> (Vec<Step>, Mismatch) {
        let begun = Instant::now();
        let mut smallest = steps[..mismatch.played].to_vec();
        let mut mismatch = mismatch;
        let own: Vec<Step> = smallest.iter().filter(|step| !step.uses_shared_path).cloned().collect();
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
            let connected = |server: &ServerUnderTest| format!("connected: {}", server.connected(slot));
            return Err(differ("a connection".to_owned(), connected(&self.ours), connected(&self.theirs)));
        }
        match steps[0].action {
            Action::Renew => {
                let (ours, theirs) = tokio::join!(self.ours.renew(slot), self.theirs.renew(slot));
                compare(&[], &format!("{:?}", steps[0]), &ours, &theirs)?;
                // Apache ZooKeeper deletes the ephemerals of a session in the order of a hash table, so the order of
                // events is ignored.
                for slot in 0..SLOTS {
                    self.compare_pending_events(slot).await?;
                }
                Ok(())
            }
            Action::Reattach { wrong_password_first: wrong } => self.reattach(slot, wrong).await,
            Action::Request(_) | Action::Broken { .. } => {
                if !self.ours.connected(slot) {
                    self.reattach(slot, false).await?;
                }
                let xid = |i: usize| i32::try_from(at + i + 10).expect("it is small");
                let calls: Vec<(i32, Action)> =
                    steps.iter().enumerate().map(|(i, step)| (xid(i), step.action.clone())).collect();
                self.exchange(slot, &calls).await
            }
        }
    }

    async fn reattach(&mut self, slot: usize, wrong: bool) -> Result<(), Mismatch> {
        let (ours, theirs) = tokio::join!(self.ours.reattach(slot, wrong), self.theirs.reattach(slot, wrong));
        compare(&[], &format!("session {slot} on a new connection"), &ours, &theirs)
    }

    async fn exchange(&mut self, slot: usize, calls: &[(i32, Action)]) -> Result<(), Mismatch> {
        let (ours, theirs) = tokio::join!(self.ours.exchange(slot, calls), self.theirs.exchange(slot, calls));
        self.tally.count(calls, &ours);
        compare(calls, &format!("session {slot}"), &ours, &theirs)
    }

    /// Compares the pending events of a session, in any order.
    async fn compare_pending_events(&mut self, slot: usize) -> Result<(), Mismatch> {
        if !self.ours.connected(slot) {
            return Ok(());
        }
        let ping = [(1, Action::Request(Request::Ping))];
        let (mut ours, mut theirs) =
            tokio::join!(self.ours.exchange(slot, &ping), self.theirs.exchange(slot, &ping));
        ours.sort_by_key(|message| format!("{message:?}"));
        theirs.sort_by_key(|message| format!("{message:?}"));
        compare(&ping, &format!("pending events of session {slot}"), &ours, &theirs)
    }
}

fn is_call(action: &Action) -> bool {
    matches!(action, Action::Request(_) | Action::Broken { .. })
}

fn compare(
    calls: &[(i32, Action)],
    what: &str,
    ours: &[Message],
    theirs: &[Message],
) -> Result<(), Mismatch> {
    let mut answered = 0;
    for at in 0..ours.len().max(theirs.len()) {
        let call = calls.get(answered).map(|(_, action)| action);
        let (ours, theirs) = (ours.get(at), theirs.get(at));
        if ours != theirs && !is_intended_difference(call, ours, theirs) {
            let what = format!("{what}, on {}", call.map_or_else(String::new, |call| format!("{call:?}")));
            return Err(differ(what, show(ours), show(theirs)));
        }
        if matches!(ours, Some(Message::Reply { .. })) {
            answered += 1;
        }
    }
    Ok(())
}

/// Returns whether a difference is intended.
fn is_intended_difference(call: Option<&Action>, ours: Option<&Message>, theirs: Option<&Message>) -> bool {
    let (Some(Action::Request(call)), Some(ours), Some(theirs)) = (call, ours, theirs) else { return false };
    match (call, ours, theirs) {
        // Apache ZooKeeper also counts watches of other clients.
        (
            Request::CheckWatches { .. },
            Message::Reply { xid: ours, zxid: our_zxid, err: -121, .. },
            Message::Reply { xid: theirs, zxid: their_zxid, err: 0, reply: Reply::Empty },
        ) => (ours, our_zxid) == (theirs, their_zxid),
        _ => false,
    }
}

fn show(message: Option<&Message>) -> String {
    message.map_or_else(|| "nothing more".to_owned(), |message| format!("{message:?}"))
}

fn differ(what: String, ours: String, theirs: String) -> Mismatch {
    Mismatch { played: 0, what, ours, theirs }
}
