//! Every kind of lock besides the mutex, on both servers.

mod crashes;
mod layouts;
mod multi;
mod namings;
mod operators;
mod permits;
mod rwlock;
mod seams;
mod semaphore;
