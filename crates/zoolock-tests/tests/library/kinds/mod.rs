//! Read-write locks, semaphores, multi-locks, and the features that all kinds of lock share.

mod crashes;
mod multi;
mod namings;
mod operators;
mod rwlock;
mod seams;
mod semaphore;
