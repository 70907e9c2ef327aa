//! Every kind of lock besides the mutex, on both servers.

mod crashes;
mod multi;
mod namings;
mod operators;
mod rwlock;
mod seams;
mod semaphore;
