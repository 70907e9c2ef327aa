//! Read-write locks, semaphores, multi-locks, and the features that all kinds of lock share.

mod any_guard;
mod crashes;
mod multi;
mod namings;
mod operators;
mod rwlock;
mod seams;
mod semaphore;
