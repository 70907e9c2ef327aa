//! Queues in which clients of every make stand: how they are read, and how one asks another to let go.

mod breaking;
mod make;
mod queue;
mod reading;
mod revoking;
mod semaphores;
mod unread;
mod views;
mod waiting;
mod zkcli;
