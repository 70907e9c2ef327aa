//! Searches through all states of the protocol's state machines, and tests of every small queue.
//!
//! * `model/`: acquisitions of one lock and of several, on simulated servers.
//! * `clock.rs`: the lease, on two clocks.
//! * `shared_hold.rs`: the tasks of one client that pass a hold on to each other.
//! * `queue.rs`: the order of the queue, for every small queue.
//! * `search.rs`: searches any model. `table.rs`: the table of `docs/BUGS.md`, and its tests.
//!
//! With `ZOOLOCK_LONG=1` in the environment, the tests search more states.

mod clock;
mod model;
mod queue;
mod search;
mod shared_hold;
mod table;

/// A fast allocator, because a search mostly allocates and frees states.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn long() -> bool {
    std::env::var_os("ZOOLOCK_LONG").is_some()
}
