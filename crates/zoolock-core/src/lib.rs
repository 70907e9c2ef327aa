//! The pure heart of zoolock: the queue, one acquisition, the lease.
//!
//! Nothing in here opens a socket, reads a clock, spawns a task or rolls a die: time and answers are
//! arguments, requests and grants are return values. The product, the model checker and the simulation
//! drive the same machines, so what was searched is what runs.
//!
//! * [`names`]: the names of contenders, in every known family.
//! * [`census`]: who of them sees whom.
//! * [`queue`]: their order, and who waits for whom.
//! * [`graph`]: who waits for whom in several queues, and who for ever.
//! * [`layout`]: semaphores of other makes, which are more than one directory.
//! * [`record`]: the release marker that a lock directory carries in its own data.
//! * [`contender`]: one acquisition as a state machine, from the create to the last clean-up.
//! * [`multi`]: several locks at once, in one transaction.
//! * [`lease`]: how long a holder may rely on its session.
//! * [`pace`]: how often to renew that.
//! * [`tenure`]: one place in the queue for all tasks of a process.
//! * [`token`]: the fencing token.

#![forbid(unsafe_code)]

pub mod census;
pub mod contender;
pub mod graph;
pub mod ids;
pub mod layout;
pub mod lease;
pub mod multi;
pub mod names;
pub mod pace;
pub mod queue;
pub mod record;
pub mod rules;
pub mod tenure;
pub mod token;

pub use contender::{Action, Config, Contender, Event, Kind, Mode};
pub use ids::{ContenderId, Sequence, SessionId, Zxid};
pub use lease::{Instant, Lease};
pub use multi::Multi;
pub use record::{Marker, Record};
pub use rules::{Rule, Rules};
pub use token::FencingToken;
