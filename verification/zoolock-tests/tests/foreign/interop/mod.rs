//! One lock shared with clients of other libraries at the same time, on both servers.
//!
//! The clients run in processes of their own. A judge in the test checks, without the server,
//! that two contenders hold the lock at the same time only if they do not exclude each other.
//! `ZOOLOCK_LONG=1` runs 2,000 sections for each contender. A section is one hold of the lock.

pub(crate) mod contenders;
mod fairness;
mod last_numbers;
mod migration;
mod mutex;
mod refusals;
mod rwlock;
mod unknown;
mod violations;
mod visibility;
