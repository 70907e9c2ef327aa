//! Clients and tests that nobody of this project wrote, on our server.

mod foreign;
mod kazoo;
mod zkcli;
