//! The durable log: what comes back after crashes, faults and damage.

mod codec;
mod crash;
mod damage;
mod live;
mod server;

/// How much more the long run does.
fn effort(short: usize, long: usize) -> usize {
    if std::env::var_os("ZOOLOCK_LONG").is_some() { long } else { short }
}
