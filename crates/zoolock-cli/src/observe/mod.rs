//! The model of the locks that `ls`, `top`, `ui` and the metrics show, apart from words and layout.
//!
//! A [`Snapshot`](zoolock::admin::Snapshot) of the library has the contenders of one lock at one read. This module computes
//! what these views add to it, so that all of them show the same:
//!
//! * `lock.rs`: the longest hold and the longest wait of a lock.
//! * `rates.rs`: hand-over rates, from consecutive reads.
//! * `list.rs`: reads all locks repeatedly, with their rates and deadlocks.
//! * `order.rs`: filters and sorts a list of locks.
//! * `failure.rs`: the reason why a read failed.

mod failure;
mod list;
mod lock;
mod order;
mod rates;

pub(crate) use failure::ReadFailure;
pub(crate) use list::{ListReader, LockList};
pub(crate) use lock::{ListedLock, earliest_grant, held_since, longest_holder, longest_wait};
pub(crate) use order::{arrange, has_text};
