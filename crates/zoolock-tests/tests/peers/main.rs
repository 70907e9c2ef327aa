//! Clients and tests that nobody of this project wrote, on our server.

mod foreign;
mod java;
mod kazoo;
mod zkcli;
