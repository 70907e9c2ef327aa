//! Tests of the lock library, most of them on both servers.

mod access;
mod again;
mod ahead;
mod blocking;
mod edges;
mod embedded;
mod faults;
mod forked;
mod glances;
mod histories;
mod kinds;
mod limits;
mod locker;
mod metrics;
mod metrics_by_lock;
mod mutex;
mod old_server;
mod outages;
mod queue;
mod reentrant;
mod sasl;
mod secrets;
mod sharded;
mod spans;
mod tenure;
mod tls;
