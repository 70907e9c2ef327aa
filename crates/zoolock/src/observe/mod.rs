//! Live views of one queue, and of all queues.
//!
//! A view reads the queues repeatedly, and spends at most a fifth of the time on reads. After an outage it connects
//! again and continues. A watched [`Queue`] also reads when a watch event arrives. Each [`Queue`] yields the [`Diff`]s
//! between its reads.
//!
//! ```no_run
//! # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
//! let mut queue = zoolock::observe::Queue::watched(zl.admin().poller("nightly", usize::MAX));
//! loop {
//!     queue.next().await?;
//!     for diff in queue.take_diffs() {
//!         println!("{}: {:?}", diff.event, diff.contender);
//!     }
//! }
//! # }
//! ```

mod all;
mod diff;
mod queue;
mod reads;
mod watch;

pub use all::All;
pub use diff::{Change, Diff};
pub use queue::Queue;
pub use reads::{ReadOutcome, ReadTime};
