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

/// The faults that the proxy injects at the moment.
#[derive(Debug)]
pub(super) struct Faults {
    holes: watch::Sender<Blackholes>,
    rules: Mutex<FaultRules>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Blackholes {
    to_server: bool,
    to_client: bool,
}

#[derive(Debug, Default)]
struct FaultRules {
    delay: Duration,
    requests_to_drop: HashMap<i32, u32>,
    replies_to_drop: HashMap<i32, u32>,
}

impl Faults {
    pub(super) fn none() -> Self {
        Self { holes: watch::Sender::new(Blackholes::default()), rules: Mutex::default() }
    }

    pub(super) fn blackhole(&self, direction: Direction, on: bool) {
        self.holes.send_modify(|holes| match direction {
            Direction::ToServer => holes.to_server = on,
            Direction::ToClient => holes.to_client = on,
        });
    }

    /// Waits until no fault holds back the bytes of this direction.
    pub(super) async fn wait_until_passable(&self, direction: Direction) {
        let open = |holes: &Blackholes| match direction {
            Direction::ToServer => !holes.to_server,
            Direction::ToClient => !holes.to_client,
        };
        self.holes.subscribe().wait_for(open).await.expect("self has the sender");
    }

    pub(super) fn delay(&self) -> Duration {
        self.rules().delay
    }

    pub(super) fn set_delay(&self, delay: Duration) {
        self.rules().delay = delay;
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
