//! The record, and a model of holders, lost replies, late writes and operators.
//!
//! The model tries every order of events with the real functions of the record. Each rule that it can leave out must be found.

use std::collections::{HashSet, VecDeque};

use super::*;

fn attempt(key: &str, number: u32, id: &str) -> AttemptRecord {
    AttemptRecord { key: key.to_owned(), number, id: id.to_owned(), ..AttemptRecord::default() }
}

fn with_program(program: &str, attempt: AttemptRecord) -> AttemptRecord {
    AttemptRecord { program: Some(program.to_owned()), ..attempt }
}

#[test]
fn attempts_are_counted_until_one_succeeds() {
    let record = OnceRecord::default();
    assert_eq!(record.decide("a", None, 2), Decision::Begin(1));
    let record = record.begin(attempt("a", 1, "x")).finish("exit 3");
    assert_eq!(record.decide("a", None, 2), Decision::Begin(2));
    assert_eq!(record.decide("b", None, 2), Decision::Begin(1));
    // An attempt without an end counts, because its host may have died of it.
    let record = record.begin(attempt("a", 2, "y"));
    assert_eq!(record.decide("a", None, 2), Decision::GaveUp);
    assert_eq!(record.decide("a", None, 3), Decision::Begin(3));
    assert_eq!(record.finish(DONE).decide("a", None, 2), Decision::Done);
}

#[test]
fn other_program_with_the_same_key_is_named() {
    let record = OnceRecord::default().begin(with_program("backup", attempt("a", 1, "x"))).finish(DONE);
    assert_eq!(record.decide("a", Some("backup"), 3), Decision::Done);
    assert_eq!(record.decide("a", Some("report"), 3), Decision::OtherProgram("backup".to_owned()));
    assert_eq!(record.decide("a", None, 3), Decision::Done);
    assert_eq!(record.decide("b", Some("report"), 3), Decision::Begin(1));
}

#[test]
fn times_of_the_last_write_are_filled_in() {
    let record = OnceRecord::default().begin(attempt("a", 1, "x")).with_times(100);
    assert_eq!((record.attempts[0].began_ms, record.attempts[0].ended_ms), (Some(100), None));
    let record = record.with_times(150).finish(DONE).with_times(200);
    assert_eq!((record.attempts[0].began_ms, record.attempts[0].ended_ms), (Some(100), Some(200)));
}

#[test]
fn record_keeps_the_newest_and_what_it_does_not_know() {
    let mut record = OnceRecord::default();
    for number in 0..1_000_u32 {
        let key = format!("key-{number}");
        record =
            record.begin(attempt(&key, 1, &format!("{:032x}", u128::MAX - u128::from(number)))).finish(DONE);
    }
    assert!(record.is_done("key-999") && record.is_done("key-744") && !record.is_done("key-743"));
    assert_eq!(record.attempts.len(), MAX_ATTEMPTS);
    let data = record.encode();
    assert!(data.len() < 30_000, "{} bytes", data.len());
    assert_eq!(OnceRecord::parse(&data), Some(record));

    let newer = br#"{"format":"zoolock/1 once","x":1,"attempts":[{"key":"k","n":1,"id":"i","y":[2]}]}"#;
    let kept = OnceRecord::parse(newer).expect("the format is known").finish(DONE).encode();
    let kept: serde_json::Value = serde_json::from_slice(&kept).expect("JSON");
    assert_eq!((&kept["x"], &kept["attempts"][0]["y"]), (&1.into(), &serde_json::json!([2])));
    for other in [&br#"{"format":"zoolock/2 once"}"#[..], b"", b"{}", b"someone else's data"] {
        assert_eq!(OnceRecord::parse(other), None);
    }
}

// ---- the model ----

/// A rule that the model leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeftOut {
    Nothing,
    /// The write that begins an attempt names the version that its writer has read.
    VersionOfBegin,
    /// The write that ends an attempt names the version of its begin.
    VersionOfEnd,
}

const KEY: &str = "k";
const CLIENTS: usize = 2;
/// Maximum number of attempts.
const LIMIT: u32 = 2;
/// Maximum number of clients that die or lose the lock, each replaced by a new one.
const FAULTS: u8 = 2;
/// Maximum number of writes that are under way at once.
const WRITES: usize = 2;

/// The stage of a client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Stage {
    Waits,
    /// Holds the lock, and has read this version of the record.
    Read(usize, String),
    /// Has sent the write that begins an attempt.
    Begins,
    Works,
    /// Has sent the write that ends its attempt, and releases the lock without waiting for the reply.
    Ended,
}

/// A write that is under way. It arrives at any time, or never.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Write {
    /// The version that the record must have. `None` for any version.
    version: Option<usize>,
    /// The holder that the server checks, if any, and its number.
    holder: Option<(usize, u8)>,
    data: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    version: usize,
    /// The data of the record, empty if there is none.
    data: String,
    /// The stage of each client, and the number of clients that it replaces.
    clients: [(Stage, u8); CLIENTS],
    /// The client that the server knows as the holder.
    holder: Option<usize>,
    writes: Vec<Write>,
    /// Set once the key was recorded as done.
    done: bool,
    starts: u32,
    faults: u8,
}

fn record_of(data: &str) -> OnceRecord {
    if data.is_empty() {
        OnceRecord::default()
    } else {
        OnceRecord::parse(data.as_bytes()).expect("a record")
    }
}

fn text_of(record: &OnceRecord) -> String {
    String::from_utf8(record.encode()).expect("UTF-8")
}

impl World {
    fn with(&self, client: usize, stage: Stage) -> World {
        let mut world = self.clone();
        world.clients[client].0 = stage;
        world
    }

    /// Returns the world after a client has left the queue.
    fn without_holder(mut self, client: usize) -> World {
        if self.holder == Some(client) {
            self.holder = None;
        }
        self
    }

    fn carry_out(&mut self, write: &Write) {
        let holds = write
            .holder
            .is_none_or(|(client, round)| self.holder == Some(client) && self.clients[client].1 == round);
        if holds && write.version.is_none_or(|version| version == self.version) {
            self.version += 1;
            self.data.clone_from(&write.data);
            self.done |= record_of(&self.data).is_done(KEY);
        }
    }

    /// Returns the worlds after each event that is possible now, or a violation.
    fn next(&self, left_out: LeftOut) -> Result<Vec<World>, String> {
        let mut worlds = Vec::new();
        for at in 0..self.writes.len() {
            let mut world = self.clone();
            let write = world.writes.remove(at);
            worlds.push(world.clone());
            world.carry_out(&write);
            worlds.push(world);
        }
        for client in 0..CLIENTS {
            let (stage, round) = &self.clients[client];
            let id = format!("{client}-{round}");
            let has_room = self.writes.len() < WRITES;
            match stage {
                Stage::Waits if self.holder.is_none() => {
                    let mut world = self.with(client, Stage::Read(self.version, self.data.clone()));
                    world.holder = Some(client);
                    worlds.push(world);
                }
                Stage::Read(version, data) => match record_of(data).decide(KEY, None, LIMIT) {
                    Decision::Begin(number) if has_room => {
                        let data = text_of(&record_of(data).begin(attempt(KEY, number, &id)));
                        let version = (left_out != LeftOut::VersionOfBegin).then_some(*version);
                        let mut world = self.with(client, Stage::Begins);
                        world.writes.push(Write { version, holder: Some((client, *round)), data });
                        worlds.push(world);
                    }
                    Decision::Begin(_) => {}
                    _ => worlds.push(self.with(client, Stage::Ended).without_holder(client)),
                },
                // Reads the outcome of the write. If its attempt is not there, decides anew; the write may still arrive.
                Stage::Begins => match record_of(&self.data).newest_of(&id) {
                    Some(_) if self.done => return Err("an attempt began after the key was done".to_owned()),
                    Some(_) if self.starts == LIMIT => return Err("too many attempts began".to_owned()),
                    Some(_) => {
                        let mut world = self.with(client, Stage::Works);
                        world.starts += 1;
                        worlds.push(world);
                    }
                    None => worlds.push(self.with(client, Stage::Read(self.version, self.data.clone()))),
                },
                // The holder knows the record as its own begin has left it.
                Stage::Works if has_room && record_of(&self.data).newest_of(&id).is_some() => {
                    for end in [DONE, "exit 1"] {
                        let version = (left_out != LeftOut::VersionOfEnd).then_some(self.version);
                        let data = text_of(&record_of(&self.data).finish(end));
                        let mut world = self.with(client, Stage::Ended).without_holder(client);
                        world.writes.push(Write { version, holder: None, data });
                        worlds.push(world);
                    }
                }
                Stage::Waits | Stage::Works | Stage::Ended => {}
            }
            if self.faults < FAULTS {
                let mut world = self.with(client, Stage::Waits).without_holder(client);
                world.clients[client].1 += 1;
                world.faults += 1;
                worlds.push(world);
            }
        }
        Ok(worlds)
    }
}

/// Returns the number of worlds, or a violation.
fn explore(left_out: LeftOut) -> Result<usize, String> {
    let first = World {
        version: 0,
        data: String::new(),
        clients: std::array::from_fn(|_| (Stage::Waits, 0)),
        holder: None,
        writes: Vec::new(),
        done: false,
        starts: 0,
        faults: 0,
    };
    let (mut seen, mut left) = (HashSet::from([first.clone()]), VecDeque::from([first]));
    while let Some(world) = left.pop_front() {
        for next in world.next(left_out)? {
            if seen.insert(next.clone()) {
                left.push_back(next);
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn no_attempt_begins_after_the_key_is_done() {
    let worlds = explore(LeftOut::Nothing).expect("no violation");
    println!("{worlds} worlds");
    assert!(worlds > 1_000, "{worlds} worlds");
}

#[test]
fn each_rule_that_is_left_out_is_found() {
    for left_out in [LeftOut::VersionOfBegin, LeftOut::VersionOfEnd] {
        let violation = explore(left_out).expect_err("a violation");
        println!("{left_out:?}: {violation}");
    }
}
