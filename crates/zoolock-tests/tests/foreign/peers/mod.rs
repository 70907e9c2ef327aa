//! Clients and tests that nobody of this project wrote, on our server.

mod c;
mod java;
mod kazoo;
mod zkcli;
