//! The referee: a record of which worker holds which lock, according to the reports of the workers.
//!
//! The mutex of the referee defines the global order. A worker reports a grant after it has the
//! lock, and a release before it releases the lock. So recorded holds overlap only if the real
//! holds overlap. There is one exception: a worker that has lost its lock, and has not noticed this
//! yet, is still recorded. The next check of this worker must report the loss.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use zoolock::{FencingToken, Previous};

use crate::histories::rules::{End, LockRecord, Role, may_have_ended_cleanly};

/// Number of recent events shown in a failure.
const MAX_EVENTS: usize = 400;

/// The lock names and their current holders.
pub(crate) struct Referee {
    seed: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    records: BTreeMap<&'static str, LockRecord>,
    active: HashMap<u64, ActiveHold>,
    /// Tickets of contenders whose znode an operator has started to break or delete.
    break_started: HashSet<FencingToken>,
    suspicions: Vec<Suspicion>,
    events: VecDeque<String>,
    entered: u64,
    tally: BTreeMap<String, u64>,
}

/// A grant that a worker reports.
#[derive(Clone)]
pub(crate) struct Grant {
    pub(crate) worker: String,
    pub(crate) names: Vec<&'static str>,
    pub(crate) role: Role,
    pub(crate) ticket: FencingToken,
    pub(crate) previous: Option<Previous>,
    /// True if the worker's session can expire.
    pub(crate) may_expire: bool,
}

struct ActiveHold {
    grant: Grant,
    /// The ticket by which the hold can be broken or revoked.
    ticket: FencingToken,
    upgrading: bool,
    /// True if the reader ever requested an upgrade.
    upgrade_requested: bool,
    upgraded: bool,
    break_started: bool,
    broken: bool,
    revoked: bool,
}

/// A set of holders, at least one of which must have lost its lock.
struct Suspicion {
    suspects: HashSet<u64>,
    text: String,
}

/// Result of a holder's check of its own lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Fine,
    /// The lock was revoked, so the holder must soon receive the revocation.
    Revoked,
    /// The lock was broken, so the holder must soon report the loss.
    Broken,
    Lost,
}

/// A holder, with the data by which an operator can revoke or break its lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holder {
    pub(crate) id: u64,
    pub(crate) name: &'static str,
    pub(crate) ticket: FencingToken,
}

impl Referee {
    pub(crate) fn new(seed: u64, records: impl IntoIterator<Item = LockRecord>) -> Referee {
        let records = records.into_iter().map(|record| (record.name, record)).collect();
        Referee { seed, state: Mutex::new(State { records, ..State::default() }) }
    }

    /// Records a grant. Returns the id of the hold, or `None` if the lock is already lost.
    pub(crate) fn record_grant(&self, grant: Grant, valid: impl Fn() -> bool) -> Option<u64> {
        let mut state = self.state();
        if !valid() {
            return None;
        }
        state.entered += 1;
        let id = state.entered;
        let break_started = state.break_started.contains(&grant.ticket);
        let mark = if break_started { " (about to be broken)" } else { "" };
        state.log(format!("#{id} {grant} enters{mark}"));
        state.count(format!("{} as {:?}", grant.names.join("+"), grant.role));
        if let Some(previous) = grant.previous {
            state.count(format!("previous {previous}"));
        }
        // Only `Clean` is checked. `Crashed` can be correct although the referee has recorded no
        // crash. An operator can delete the znode of a contender that has written the start of its
        // hold to the server, and has not received its grant yet.
        let is_clean = grant.previous == Some(Previous::Clean);
        if let Err(why) = state.check_grant(id, &grant, break_started, is_clean) {
            self.violation(state, &why);
        }
        let ticket = grant.ticket;
        let hold = ActiveHold {
            grant,
            ticket,
            upgrading: false,
            upgrade_requested: false,
            upgraded: false,
            break_started,
            broken: false,
            revoked: false,
        };
        state.active.insert(id, hold);
        Some(id)
    }

    /// Checks whether a recorded holder still holds its lock.
    pub(crate) fn check(&self, id: u64, valid: impl Fn() -> bool) -> Status {
        let mut state = self.state();
        let valid = valid();
        if let Err(why) = state.settle_suspicions(id, valid) {
            self.violation(state, &why);
        }
        let hold = &state.active[&id];
        match hold {
            _ if !valid => Status::Lost,
            ActiveHold { broken: true, .. } => Status::Broken,
            ActiveHold { revoked: true, .. } => Status::Revoked,
            _ => Status::Fine,
        }
    }

    /// Records the start or the end of an upgrade request.
    pub(crate) fn set_upgrading(&self, id: u64, asks: bool) {
        let mut state = self.state();
        state.log(format!("#{id} {}", if asks { "requests an upgrade" } else { "keeps its read lock" }));
        let hold = state.holder_mut(id);
        (hold.upgrading, hold.upgrade_requested) = (asks, true);
    }

    /// Records an upgrade. Returns false if the lock is already lost.
    pub(crate) fn record_upgrade(&self, id: u64, token: FencingToken, valid: impl Fn() -> bool) -> bool {
        let mut state = self.state();
        if !valid() {
            return false;
        }
        state.log(format!("#{id} upgraded to a writer, {token}"));
        state.count("upgrades".to_owned());
        let hold = state.holder_mut(id);
        (hold.grant.role, hold.upgraded) = (Role::Writer, true);
        let (grant, break_started) = (hold.grant.clone(), hold.break_started);
        let mut outcome = state.check_exclusion(id, &grant, break_started);
        if token != grant.ticket && outcome.is_ok() {
            outcome = Err(format!("#{id} entered with {} and upgraded to {token}", grant.ticket));
        }
        match (&outcome, break_started) {
            (Ok(()), false) => outcome = state.record_writer(id, &grant, token),
            (Ok(()), true) => state.record_unknown_end(&grant.names),
            (Err(_), _) => {}
        }
        if let Err(why) = outcome {
            self.violation(state, &why);
        }
        true
    }

    /// Records the start of a downgrade.
    pub(crate) fn begin_downgrade(&self, id: u64, valid: impl Fn() -> bool) {
        let mut state = self.state();
        if let Err(why) = state.settle_suspicions(id, valid()) {
            self.violation(state, &why);
        }
        state.log(format!("#{id} begins to downgrade"));
        state.count("downgrades".to_owned());
        state.record_end(id, |certain| if certain { End::Clean } else { End::Unsure });
        let hold = state.holder_mut(id);
        (hold.grant.role, hold.upgrading) = (Role::Reader, false);
    }

    /// Records the end of a downgrade and the reader's ticket.
    pub(crate) fn record_downgrade(&self, id: u64, ticket: FencingToken) {
        let mut state = self.state();
        state.log(format!("#{id} downgraded to a reader, {ticket}"));
        let break_started = state.break_started.contains(&ticket);
        let hold = state.holder_mut(id);
        (hold.ticket, hold.revoked) = (ticket, false);
        hold.break_started |= break_started;
    }

    /// Records a reported loss. Returns true if the loss has a known cause.
    pub(crate) fn record_loss(&self, id: u64) -> bool {
        let mut state = self.state();
        state.log(format!("#{id} lost its lock"));
        let hold = state.holder_mut(id);
        let (break_started, may_expire) = (hold.break_started, hold.grant.may_expire);
        state.count(if break_started { "lost to an operator" } else { "lost" }.to_owned());
        let end = if break_started { End::NotClean } else { End::Crashed };
        state.record_end(id, |_| end);
        state.remove(id);
        break_started || may_expire
    }

    /// Records the start of a release, or of a panic if `crash` is set.
    pub(crate) fn begin_release(&self, id: u64, crash: bool, valid: impl Fn() -> bool) {
        let mut state = self.state();
        let valid = valid();
        if let Err(why) = state.settle_suspicions(id, valid) {
            self.violation(state, &why);
        }
        state.log(format!("#{id} begins to release{}", if crash { " in a panic" } else { "" }));
        let end = if crash { End::Crashed } else { End::Clean };
        state.record_end(id, |certain| if certain { end } else { End::Unsure });
        let hold = state.holder_mut(id);
        hold.grant.role = Role::Releasing;
    }

    /// Records the result of a release. Returns true if the release succeeded or its failure has a known cause.
    pub(crate) fn end_release(&self, id: u64, released: bool) -> bool {
        let mut state = self.state();
        state.log(format!("#{id} ended its release, {}", if released { "released" } else { "lost" }));
        let hold = state.holder_mut(id);
        let explained = released || hold.break_started || hold.grant.may_expire;
        // The write znode of an upgraded reader is released separately, without waiting for the
        // reply. So it is not certain here that the write lock is released.
        if released && !hold.break_started && !hold.upgraded {
            state.record_end(id, |_| End::Clean);
        }
        state.remove(id);
        explained
    }

    /// Records that the future with the guard was dropped, so the outcome is unknown.
    pub(crate) fn record_dropped_future(&self, id: u64) {
        let mut state = self.state();
        state.log(format!("#{id} drops the future that has its guard"));
        state.record_end(id, |certain| if certain { End::Clean } else { End::Unsure });
        state.remove(id);
    }

    // ---- for operators ----

    /// Returns the holders in a deterministic order.
    pub(crate) fn holders(&self) -> Vec<Holder> {
        let state = self.state();
        let mut holders: Vec<Holder> = state
            .active
            .iter()
            .flat_map(|(id, hold)| {
                let names = hold.grant.names.iter();
                names.map(|name| Holder { id: *id, name, ticket: hold.ticket })
            })
            .collect();
        holders.sort_by_key(|holder| (holder.id, holder.name));
        holders
    }

    /// Records that an operator is about to break a hold. From now on, the referee accepts any
    /// other holder beside this hold.
    pub(crate) fn begin_break(&self, ticket: FencingToken, name: &'static str) {
        let mut state = self.state();
        state.log(format!("{ticket} is about to be broken in {name}"));
        state.break_started.insert(ticket);
        let known = state.active.values().any(|hold| hold.ticket == ticket);
        let here: Vec<u64> = state
            .active
            .iter()
            .filter(|(_, hold)| {
                // The write znode of an upgrading reader has a ticket that the worker does not know.
                let perhaps = !known && (hold.upgrading || hold.upgraded);
                hold.ticket == ticket || (perhaps && hold.grant.names.contains(&name))
            })
            .map(|(id, _)| *id)
            .collect();
        for id in here {
            let hold = state.holder_mut(id);
            hold.break_started = true;
            let (upgrade_requested, names) = (hold.upgrade_requested, hold.grant.names.clone());
            if hold.grant.role == Role::Releasing {
                state.record_end(id, |_| End::Unsure);
            } else if upgrade_requested {
                // The upgrade may have succeeded already, although the worker does not know it yet.
                for name in &names {
                    state.record_mut(name).last.1 = End::Unsure;
                }
            }
            state.suspicions.retain(|suspicion| !suspicion.suspects.contains(&id));
        }
    }

    /// Records that a hold was broken.
    pub(crate) fn record_break(&self, ticket: FencingToken) {
        let mut state = self.state();
        state.log(format!("{ticket} is broken"));
        state.count("broken".to_owned());
        for hold in state.active.values_mut().filter(|hold| hold.ticket == ticket) {
            hold.broken = true;
        }
    }

    pub(crate) fn record_revocation(&self, ticket: FencingToken) {
        let mut state = self.state();
        state.log(format!("{ticket} is revoked"));
        state.count("revoked".to_owned());
        for hold in state.active.values_mut().filter(|hold| hold.ticket == ticket) {
            hold.revoked = true;
        }
    }

    pub(crate) fn is_never_broken(&self, name: &str) -> bool {
        self.state().records[name].never_broken
    }

    pub(crate) fn note(&self, text: String) {
        self.state().log(text);
    }

    pub(crate) fn count(&self, what: &str) {
        self.state().count(what.to_owned());
    }

    pub(crate) fn counted(&self, what: &str) -> u64 {
        self.state().tally.iter().filter(|(key, _)| key.contains(what)).map(|(_, count)| count).sum()
    }

    /// Returns the count of each kind of event.
    pub(crate) fn summary(&self) -> String {
        let state = self.state();
        let tally = state.tally.iter().map(|(what, count)| format!("{count} × {what}"));
        tally.collect::<Vec<_>>().join(", ")
    }

    /// Fails the test with the last events.
    pub(crate) fn fail(&self, why: &str) -> ! {
        self.violation(self.state(), why)
    }

    fn violation(&self, state: MutexGuard<'_, State>, why: &str) -> ! {
        let events: Vec<&str> = state.events.iter().rev().map(String::as_str).collect();
        panic!("{why}\nZOOLOCK_SEED={}\nthe last events, newest first:\n{}", self.seed, events.join("\n"));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Display for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Grant { worker, names, role, ticket, previous, may_expire } = self;
        write!(f, "{worker} {role:?} in {} with {ticket}, after {previous:?}", names.join("+"))?;
        f.write_str(if *may_expire { ", session may expire" } else { "" })
    }
}

impl State {
    fn log(&mut self, event: String) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn count(&mut self, what: String) {
        *self.tally.entry(what).or_default() += 1;
    }

    fn record_mut(&mut self, name: &str) -> &mut LockRecord {
        self.records.get_mut(name).expect("name has a record")
    }

    fn holder_mut(&mut self, id: u64) -> &mut ActiveHold {
        self.active.get_mut(&id).expect("holder is recorded")
    }

    fn check_grant(
        &mut self,
        id: u64,
        grant: &Grant,
        break_started: bool,
        is_clean: bool,
    ) -> Result<(), String> {
        self.check_exclusion(id, grant, break_started)?;
        if break_started {
            if grant.role == Role::Writer {
                self.record_unknown_end(&grant.names);
            }
            return Ok(());
        }
        if is_clean {
            let records: Vec<&LockRecord> = grant.names.iter().map(|name| &self.records[name]).collect();
            if !may_have_ended_cleanly(&records) {
                let ends: Vec<_> = records.iter().map(|record| (record.name, record.last)).collect();
                return Err(format!("#{id} was told `clean`, but the previous holds ended as {ends:?}"));
            }
        }
        for name in &grant.names {
            let ahead = self.active.values().filter(|hold| {
                let here = hold.grant.names.contains(name) && hold.grant.ticket < grant.ticket;
                here && !hold.break_started && !hold.grant.may_expire
            });
            let ahead = ahead.map(|hold| hold.grant.role.weight()).sum();
            let record = self.record_mut(name);
            let order = record.check_order(grant.role, grant.ticket, ahead);
            order.map_err(|why| format!("#{id} in {name}: {why}"))?;
        }
        if grant.role == Role::Writer {
            self.record_writer(id, grant, grant.ticket)?;
        }
        Ok(())
    }

    /// Marks the end of the exclusive hold as unknown, because the holder can release cleanly
    /// before the break takes effect.
    fn record_unknown_end(&mut self, names: &[&'static str]) {
        for name in names {
            // No hold has the id 0, so the end of a hold does not change this value.
            self.record_mut(name).last = (0, End::Unsure);
        }
    }

    fn record_writer(&mut self, id: u64, grant: &Grant, token: FencingToken) -> Result<(), String> {
        for name in &grant.names {
            let record = self.record_mut(name);
            record.record_writer(id, token).map_err(|why| format!("{name}: {why}"))?;
        }
        Ok(())
    }

    /// Checks the grant against the recorded holders. If some of them conflict with the grant, at
    /// least one of these must have lost its lock.
    ///
    /// Returns an error if none of the conflicting holders can have lost its lock. Otherwise,
    /// records a suspicion against them.
    fn check_exclusion(&mut self, id: u64, grant: &Grant, break_started: bool) -> Result<(), String> {
        if break_started {
            return Ok(());
        }
        for name in &grant.names {
            let here = |hold: &ActiveHold| hold.grant.names.contains(name) && !hold.break_started;
            let others = self.active.iter().filter(|(other, hold)| **other != id && here(hold));
            let others = others.map(|(other, hold)| (other, hold.grant.role));
            let conflicting = self.records[name].conflicting(grant.role, others);
            if conflicting.is_empty() {
                continue;
            }
            let roles = conflicting.iter().map(|other| format!("#{other} {}", self.active[other].grant));
            let text = format!("#{id} {grant} holds beside {}", roles.collect::<Vec<_>>().join(", "));
            if conflicting.iter().all(|other| !self.active[other].grant.may_expire) {
                return Err(text);
            }
            self.log(format!("suspicious: {text}"));
            self.count("suspicions".to_owned());
            self.suspicions.push(Suspicion { suspects: conflicting.into_iter().collect(), text });
        }
        Ok(())
    }

    /// Clears the suspicions of a holder that lost its lock. Removes a holder with a valid lock
    /// from the suspects. Returns an error if that leaves a suspicion without suspects.
    fn settle_suspicions(&mut self, id: u64, valid: bool) -> Result<(), String> {
        if !valid {
            self.suspicions.retain(|suspicion| !suspicion.suspects.contains(&id));
            return Ok(());
        }
        for suspicion in &mut self.suspicions {
            if suspicion.suspects.remove(&id) && suspicion.suspects.is_empty() {
                return Err(format!("{}, and none of these holders had lost its lock", suspicion.text));
            }
        }
        Ok(())
    }

    /// Records how an exclusive hold ended. `end` is called with true if the end is certain.
    fn record_end(&mut self, id: u64, end: impl Fn(bool) -> End) {
        let hold = &self.active[&id];
        if hold.grant.role != Role::Writer && hold.grant.role != Role::Releasing {
            return;
        }
        let end = end(!hold.break_started && !hold.grant.may_expire);
        for name in hold.grant.names.clone() {
            self.record_mut(name).record_end(id, end);
        }
    }

    fn remove(&mut self, id: u64) {
        self.active.remove(&id);
        self.suspicions.retain(|suspicion| !suspicion.suspects.contains(&id));
    }
}
