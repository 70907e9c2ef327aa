//! Clients and test suites of other projects on both servers, without a lock of this library.

mod c;
mod java;
mod kazoo;
mod zkcli;
