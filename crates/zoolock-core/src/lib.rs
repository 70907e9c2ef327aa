//! The core of zoolock as pure state machines: the queue, one acquisition, the lease.
//!
//! This crate opens no socket, reads no clock, spawns no task and draws no random numbers. Time and
//! answers are arguments; requests and grants are results. The library, the model checker and the
//! simulation run the same machines. So the code that the model checker searches is the code that
//! runs.
//!
//! * [`ids`]: the types of ids and numbers.
//! * [`names`]: the names of contenders, in the format of each known client library.
//! * [`census`]: which contenders see each other.
//! * [`queue`]: the order of contenders, and the predecessor of each.
//! * [`graph`]: which owners wait for each other in several queues, and deadlocks.
//! * [`layout`]: semaphores of other client libraries, which use more than one directory.
//! * [`record`]: the release marker or the size of a semaphore, in the lock directory's own data.
//! * [`acquisition`]: one acquisition as a state machine, of one lock or of several, from the
//!   create of its znodes to the last clean-up.
//! * [`rules`]: the safety rules of the protocol.
//! * [`lease`]: the time until which a holder may rely on its session.
//! * [`pace`]: the requests that renew the lease.
//! * [`shared_hold`]: the tasks of one client that pass a hold on to each other.
//! * [`token`]: the fencing token.

#![forbid(unsafe_code)]

pub mod acquisition;
pub mod census;
pub mod graph;
pub mod ids;
pub mod layout;
pub mod lease;
pub mod names;
pub mod pace;
pub mod queue;
pub mod record;
pub mod rules;
pub mod shared_hold;
pub mod token;

pub use acquisition::{Action, Config, Event, Kind, Machine, Mode};
pub use ids::{ContenderId, Sequence, SessionId, Zxid};
pub use lease::{Instant, Lease};
pub use record::{Marker, Record};
pub use rules::{Rule, Rules};
pub use token::{FencingToken, ParseTokenError};
