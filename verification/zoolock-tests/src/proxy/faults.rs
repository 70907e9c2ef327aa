//! The faults that the proxy injects.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;

use crate::lock;

/// The direction of bytes through the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From clients to the server.
    ToServer,
    /// From the server to clients.
    ToClient,
}

/// A fault of all connections of a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFault {
    /// If true, the bytes from clients to the server are held back.
    pub blocks_requests: bool,
    /// If true, the bytes from the server to clients are held back.
    pub blocks_replies: bool,
    /// The delay of all bytes in each direction.
    pub delay: Duration,
    /// If true, new connections are closed at once.
    pub hangs_up: bool,
}

/// The faults that the proxy injects at the moment.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) link: watch::Sender<LinkFault>,
    rules: Mutex<FaultRules>,
}

#[derive(Debug, Default)]
struct FaultRules {
    requests_to_drop: HashMap<i32, u32>,
    replies_to_drop: HashMap<i32, u32>,
}

impl Faults {
    /// Waits until no fault holds back the bytes of this direction.
    pub(super) async fn wait_until_passable(&self, direction: Direction) {
        let is_open = |fault: &LinkFault| match direction {
            Direction::ToServer => !fault.blocks_requests,
            Direction::ToClient => !fault.blocks_replies,
        };
        self.link.subscribe().wait_for(is_open).await.expect("self has the sender");
    }

    pub(super) fn delay(&self) -> Duration {
        self.link.borrow().delay
    }

    pub(super) fn drop_next_request(&self, opcode: i32) {
        *self.rules().requests_to_drop.entry(opcode).or_default() += 1;
    }

    pub(super) fn drop_next_reply(&self, opcode: i32) {
        *self.rules().replies_to_drop.entry(opcode).or_default() += 1;
    }

    /// Returns whether to drop this request. If so, uses up one call of `drop_next_request`.
    pub(super) fn take_request_drop(&self, opcode: i32) -> bool {
        take_one(&mut self.rules().requests_to_drop, opcode)
    }

    /// Returns whether to drop the reply to this request. If so, uses up one call of
    /// `drop_next_reply`.
    pub(super) fn take_reply_drop(&self, opcode: i32) -> bool {
        take_one(&mut self.rules().replies_to_drop, opcode)
    }

    fn rules(&self) -> MutexGuard<'_, FaultRules> {
        lock(&self.rules)
    }
}

fn take_one(counts: &mut HashMap<i32, u32>, opcode: i32) -> bool {
    match counts.get_mut(&opcode) {
        Some(left) if *left > 0 => {
            *left -= 1;
            true
        }
        _ => false,
    }
}
