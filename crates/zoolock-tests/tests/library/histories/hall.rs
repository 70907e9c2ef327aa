//! The referee: who is inside which name, as far as those inside know.
//!
//! Its own mutex is the global order. Whoever was granted a lock enters after that, and leaves before it lets go, so it
//! can only look less overlapping than it was. Somebody who has lost its lock and does not know yet may be found
//! inside: then it must know when it looks next.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use zoolock::{FencingToken, Previous};

use crate::histories::rules::{End, Role, Room, may_say};

/// How many of the last events a failure shows.
const SHOWN: usize = 400;

/// The names and those inside.
pub(crate) struct Hall {
    seed: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    rooms: BTreeMap<&'static str, Room>,
    inside: HashMap<u64, Inside>,
    /// What those are called from whom the lock may have been taken away.
    doomed: HashSet<FencingToken>,
    suspicions: Vec<Suspicion>,
    events: VecDeque<String>,
    entered: u64,
    tally: BTreeMap<String, u64>,
}

/// Who comes in.
#[derive(Clone)]
pub(crate) struct Visitor {
    pub(crate) who: String,
    pub(crate) names: Vec<&'static str>,
    pub(crate) role: Role,
    pub(crate) ticket: FencingToken,
    pub(crate) previous: Option<Previous>,
    /// Whether its session may expire.
    pub(crate) mortal: bool,
}

struct Inside {
    visitor: Visitor,
    /// What it is broken and revoked by.
    ticket: FencingToken,
    upgrading: bool,
    /// Whether it ever asked to write.
    asked: bool,
    upgraded: bool,
    doomed: bool,
    broken: bool,
    revoked: bool,
}

/// One of these must have lost its lock.
struct Suspicion {
    of: HashSet<u64>,
    text: String,
}

/// What a holder sees when it looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Fine,
    /// It will be told soon that somebody wants the lock.
    Revoked,
    /// It will be told soon that it has lost the lock.
    Broken,
    Lost,
}

/// A holder as an operator sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holder {
    pub(crate) id: u64,
    pub(crate) name: &'static str,
    pub(crate) ticket: FencingToken,
}

impl Hall {
    pub(crate) fn new(seed: u64, rooms: impl IntoIterator<Item = Room>) -> Hall {
        let rooms = rooms.into_iter().map(|room| (room.name, room)).collect();
        Hall { seed, state: Mutex::new(State { rooms, ..State::default() }) }
    }

    /// `None`: the lock was lost before.
    pub(crate) fn enter(&self, visitor: Visitor, valid: impl Fn() -> bool) -> Option<u64> {
        let mut state = self.state();
        if !valid() {
            return None;
        }
        state.entered += 1;
        let id = state.entered;
        let doomed = state.doomed.contains(&visitor.ticket);
        let mark = if doomed { " (doomed)" } else { "" };
        state.say(format!("#{id} {visitor} enters{mark}"));
        state.count(format!("{} as {:?}", visitor.names.join("+"), visitor.role));
        if let Some(previous) = visitor.previous {
            state.count(format!("previous {previous}"));
        }
        // Not `Crashed`: one that has written that it begins, and whose node somebody deletes by hand before it is told
        // that it holds, looks like a crash to the next, and has never been in here. The model checks it.
        let said = visitor.previous.filter(|said| *said == Previous::Clean);
        if let Err(why) = state.admit(id, &visitor, doomed, said) {
            self.violation(state, &why);
        }
        let ticket = visitor.ticket;
        let inside = Inside {
            visitor,
            ticket,
            upgrading: false,
            asked: false,
            upgraded: false,
            doomed,
            broken: false,
            revoked: false,
        };
        state.inside.insert(id, inside);
        Some(id)
    }

    /// Somebody inside looks whether it still holds.
    pub(crate) fn look(&self, id: u64, valid: impl Fn() -> bool) -> Look {
        let mut state = self.state();
        let valid = valid();
        if let Err(why) = state.suspect(id, valid) {
            self.violation(state, &why);
        }
        let inside = &state.inside[&id];
        match inside {
            _ if !valid => Look::Lost,
            Inside { broken: true, .. } => Look::Broken,
            Inside { revoked: true, .. } => Look::Revoked,
            _ => Look::Fine,
        }
    }

    /// A reader asks to write, or has stopped asking.
    pub(crate) fn upgrading(&self, id: u64, asks: bool) {
        let mut state = self.state();
        state.say(format!("#{id} {}", if asks { "asks to write" } else { "reads on" }));
        let inside = state.inside_mut(id);
        (inside.upgrading, inside.asked) = (asks, true);
    }

    /// A reader has become a writer. `false`: it lost the lock before.
    pub(crate) fn writes(&self, id: u64, token: FencingToken, valid: impl Fn() -> bool) -> bool {
        let mut state = self.state();
        if !valid() {
            return false;
        }
        state.say(format!("#{id} has become a writer, {token}"));
        state.count("upgrades".to_owned());
        let inside = state.inside_mut(id);
        (inside.visitor.role, inside.upgraded) = (Role::Writer, true);
        let (visitor, doomed) = (inside.visitor.clone(), inside.doomed);
        let mut outcome = state.exclude(id, &visitor, doomed);
        if token != visitor.ticket && outcome.is_ok() {
            outcome = Err(format!("#{id} came with {} and writes with {token}", visitor.ticket));
        }
        match (&outcome, doomed) {
            (Ok(()), false) => outcome = state.alone(id, &visitor, token),
            (Ok(()), true) => state.nobody_knows(&visitor.names),
            (Err(_), _) => {}
        }
        if let Err(why) = outcome {
            self.violation(state, &why);
        }
        true
    }

    /// A writer is about to become a reader.
    pub(crate) fn stops_writing(&self, id: u64, valid: impl Fn() -> bool) {
        let mut state = self.state();
        if let Err(why) = state.suspect(id, valid()) {
            self.violation(state, &why);
        }
        state.say(format!("#{id} is about to read on"));
        state.count("downgrades".to_owned());
        state.end(id, |sure| if sure { End::Clean } else { End::Unsure });
        let inside = state.inside_mut(id);
        (inside.visitor.role, inside.upgrading) = (Role::Reader, false);
    }

    /// A writer is a reader under this name.
    pub(crate) fn reads(&self, id: u64, ticket: FencingToken) {
        let mut state = self.state();
        state.say(format!("#{id} reads, {ticket}"));
        let doomed = state.doomed.contains(&ticket);
        let inside = state.inside_mut(id);
        (inside.ticket, inside.revoked) = (ticket, false);
        inside.doomed |= doomed;
    }

    /// It knows that it lost the lock.
    pub(crate) fn lost(&self, id: u64) -> bool {
        let mut state = self.state();
        state.say(format!("#{id} has lost it"));
        let inside = state.inside_mut(id);
        let (doomed, mortal) = (inside.doomed, inside.visitor.mortal);
        state.count(if doomed { "lost to an operator" } else { "lost" }.to_owned());
        let end = if doomed { End::NotClean } else { End::Crashed };
        state.end(id, |_| end);
        state.gone(id);
        doomed || mortal
    }

    /// It is about to let go, or to `crash`.
    pub(crate) fn leaves(&self, id: u64, crash: bool, valid: impl Fn() -> bool) {
        let mut state = self.state();
        let valid = valid();
        if let Err(why) = state.suspect(id, valid) {
            self.violation(state, &why);
        }
        state.say(format!("#{id} leaves{}", if crash { " in a panic" } else { "" }));
        let end = if crash { End::Crashed } else { End::Clean };
        state.end(id, |sure| if sure { end } else { End::Unsure });
        let inside = state.inside_mut(id);
        inside.visitor.role = Role::Leaving;
    }

    /// Its release was answered. Whether it may have been refused.
    pub(crate) fn left(&self, id: u64, released: bool) -> bool {
        let mut state = self.state();
        state.say(format!("#{id} has left, {}", if released { "released" } else { "lost" }));
        let inside = state.inside_mut(id);
        let explained = released || inside.doomed || inside.visitor.mortal;
        // What a reader wrote is let go of on its own, and nobody waits for the answer.
        if released && !inside.doomed && !inside.upgraded {
            state.end(id, |_| End::Clean);
        }
        state.gone(id);
        explained
    }

    /// It goes, and nobody can say what it still knows.
    pub(crate) fn vanishes(&self, id: u64) {
        let mut state = self.state();
        state.say(format!("#{id} drops the future that has its guard"));
        state.end(id, |sure| if sure { End::Clean } else { End::Unsure });
        state.gone(id);
    }

    // ---- for operators ----

    /// Those inside who can be asked for it, in an order that does not depend on chance.
    pub(crate) fn holders(&self) -> Vec<Holder> {
        let state = self.state();
        let mut holders: Vec<Holder> = state
            .inside
            .iter()
            .flat_map(|(id, inside)| {
                let names = inside.visitor.names.iter();
                names.map(|name| Holder { id: *id, name, ticket: inside.ticket })
            })
            .collect();
        holders.sort_by_key(|holder| (holder.id, holder.name));
        holders
    }

    /// Somebody is about to take the lock away from it: it counts for nothing from now on.
    pub(crate) fn doom(&self, ticket: FencingToken, name: &'static str) {
        let mut state = self.state();
        state.say(format!("{ticket} is doomed in {name}"));
        state.doomed.insert(ticket);
        let known = state.inside.values().any(|inside| inside.ticket == ticket);
        let here: Vec<u64> = state
            .inside
            .iter()
            .filter(|(_, inside)| {
                // The writer's place of a reader has a ticket that nobody is told.
                let perhaps = !known && (inside.upgrading || inside.upgraded);
                inside.ticket == ticket || (perhaps && inside.visitor.names.contains(&name))
            })
            .map(|(id, _)| *id)
            .collect();
        for id in here {
            let inside = state.inside_mut(id);
            inside.doomed = true;
            let (asked, names) = (inside.asked, inside.visitor.names.clone());
            if inside.visitor.role == Role::Leaving {
                state.end(id, |_| End::Unsure);
            } else if asked {
                // It may write already, without having been told.
                for name in &names {
                    state.room_mut(name).last.1 = End::Unsure;
                }
            }
            state.suspicions.retain(|suspicion| !suspicion.of.contains(&id));
        }
    }

    /// It was done.
    pub(crate) fn broken(&self, ticket: FencingToken) {
        let mut state = self.state();
        state.say(format!("{ticket} is broken"));
        state.count("broken".to_owned());
        for inside in state.inside.values_mut().filter(|inside| inside.ticket == ticket) {
            inside.broken = true;
        }
    }

    pub(crate) fn revoked(&self, ticket: FencingToken) {
        let mut state = self.state();
        state.say(format!("{ticket} is revoked"));
        state.count("revoked".to_owned());
        for inside in state.inside.values_mut().filter(|inside| inside.ticket == ticket) {
            inside.revoked = true;
        }
    }

    pub(crate) fn is_exact(&self, name: &str) -> bool {
        self.state().rooms[name].exact
    }

    pub(crate) fn note(&self, text: String) {
        self.state().say(text);
    }

    pub(crate) fn count(&self, what: &str) {
        self.state().count(what.to_owned());
    }

    pub(crate) fn counted(&self, what: &str) -> u64 {
        self.state().tally.iter().filter(|(key, _)| key.contains(what)).map(|(_, count)| count).sum()
    }

    /// How often what was seen.
    pub(crate) fn summary(&self) -> String {
        let state = self.state();
        let tally = state.tally.iter().map(|(what, count)| format!("{count} × {what}"));
        tally.collect::<Vec<_>>().join(", ")
    }

    /// Ends the test.
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

impl std::fmt::Display for Visitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Visitor { who, names, role, ticket, previous, mortal } = self;
        write!(f, "{who} {role:?} in {} with {ticket}, after {previous:?}", names.join("+"))?;
        f.write_str(if *mortal { ", mortal" } else { "" })
    }
}

impl State {
    fn say(&mut self, event: String) {
        if self.events.len() == SHOWN {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn count(&mut self, what: String) {
        *self.tally.entry(what).or_default() += 1;
    }

    fn room_mut(&mut self, name: &str) -> &mut Room {
        self.rooms.get_mut(name).expect("only these names are used")
    }

    fn inside_mut(&mut self, id: u64) -> &mut Inside {
        self.inside.get_mut(&id).expect("whoever acts is inside")
    }

    fn admit(
        &mut self,
        id: u64,
        visitor: &Visitor,
        doomed: bool,
        said: Option<Previous>,
    ) -> Result<(), String> {
        self.exclude(id, visitor, doomed)?;
        if doomed {
            if visitor.role == Role::Writer {
                self.nobody_knows(&visitor.names);
            }
            return Ok(());
        }
        if let Some(said) = said {
            let rooms: Vec<&Room> = visitor.names.iter().map(|name| &self.rooms[name]).collect();
            if !may_say(said, &rooms) {
                let ends: Vec<_> = rooms.iter().map(|room| (room.name, room.last)).collect();
                return Err(format!("#{id} was told {said}, but the last ones left so: {ends:?}"));
            }
        }
        for name in &visitor.names {
            let ahead = self.inside.values().filter(|inside| {
                let here = inside.visitor.names.contains(name) && inside.visitor.ticket < visitor.ticket;
                here && !inside.doomed && !inside.visitor.mortal
            });
            let ahead = ahead.map(|inside| inside.visitor.role.weight()).sum();
            let room = self.room_mut(name);
            let order = room.in_turn(visitor.role, visitor.ticket, ahead);
            order.map_err(|why| format!("#{id} in {name}: {why}"))?;
        }
        if visitor.role == Role::Writer {
            self.alone(id, visitor, visitor.ticket)?;
        }
        Ok(())
    }

    /// Somebody doomed holds alone: it may let go before it is broken, and then it has left cleanly.
    fn nobody_knows(&mut self, names: &[&'static str]) {
        for name in names {
            // Nobody has this number, so that nobody's end changes it.
            self.room_mut(name).last = (0, End::Unsure);
        }
    }

    fn alone(&mut self, id: u64, visitor: &Visitor, token: FencingToken) -> Result<(), String> {
        for name in &visitor.names {
            let room = self.room_mut(name);
            room.alone(id, token).map_err(|why| format!("{name}: {why}"))?;
        }
        Ok(())
    }

    /// One of those who are in the way, if there are any, must have lost its lock.
    fn exclude(&mut self, id: u64, visitor: &Visitor, doomed: bool) -> Result<(), String> {
        if doomed {
            return Ok(());
        }
        for name in &visitor.names {
            let here = |inside: &Inside| inside.visitor.names.contains(name) && !inside.doomed;
            let others = self.inside.iter().filter(|(other, inside)| **other != id && here(inside));
            let others = others.map(|(other, inside)| (other, inside.visitor.role));
            let in_the_way = self.rooms[name].in_the_way(visitor.role, others);
            if in_the_way.is_empty() {
                continue;
            }
            let roles = in_the_way.iter().map(|other| format!("#{other} {}", self.inside[other].visitor));
            let text = format!("#{id} {visitor} holds beside {}", roles.collect::<Vec<_>>().join(", "));
            if in_the_way.iter().all(|other| !self.inside[other].visitor.mortal) {
                return Err(text);
            }
            self.say(format!("suspicious: {text}"));
            self.count("suspicions".to_owned());
            self.suspicions.push(Suspicion { of: in_the_way.into_iter().collect(), text });
        }
        Ok(())
    }

    /// It says whether it still holds. Whoever still does was not the one.
    fn suspect(&mut self, id: u64, valid: bool) -> Result<(), String> {
        if !valid {
            self.suspicions.retain(|suspicion| !suspicion.of.contains(&id));
            return Ok(());
        }
        for suspicion in &mut self.suspicions {
            if suspicion.of.remove(&id) && suspicion.of.is_empty() {
                return Err(format!("{}, and nobody had lost it", suspicion.text));
            }
        }
        Ok(())
    }

    /// How its time alone ended, if it was alone.
    fn end(&mut self, id: u64, end: impl Fn(bool) -> End) {
        let inside = &self.inside[&id];
        if inside.visitor.role != Role::Writer && inside.visitor.role != Role::Leaving {
            return;
        }
        let end = end(!inside.doomed && !inside.visitor.mortal);
        for name in inside.visitor.names.clone() {
            self.room_mut(name).ended(id, end);
        }
    }

    fn gone(&mut self, id: u64) {
        self.inside.remove(&id);
        self.suspicions.retain(|suspicion| !suspicion.of.contains(&id));
    }
}
