//! The commands that tell how the service does.

use clap::{Args as ClapArgs, ValueEnum};

const BENCH_HELP: &str = "\
The service is loaded while this runs: one work at a time, each for --time in all. Everything is below a directory of \
its own in the root, of at most some 1100 znodes at a time, and removed at the end, after ^C as well.

What is printed was measured from this machine, the way to the server and back included. RATIO is the median beside the \
one of create-delete: two writes, one awaited after the other, are the least that acquiring and releasing a lock can \
cost where both are awaited. Below 1 is what waits for less; 1/500 is what asks the service for nothing. All works \
take turns, so that they meet the same weather.";

/// `zoolock bench`.
#[derive(Debug, ClapArgs)]
#[command(after_help = BENCH_HELP)]
pub(crate) struct BenchArgs {
    /// How long each work goes on, at most 1m
    #[arg(long, value_name = "TIME", default_value = "3s")]
    pub(crate) time: String,

    /// Only this work; may be given several times
    #[arg(long, value_name = "WORK")]
    pub(crate) only: Vec<Work>,

    /// How many tasks hand the lock over to each other, on two sessions
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) tasks: usize,
}

/// What `zoolock bench` measures, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Work {
    /// A znode created and deleted, both awaited, and no lock: what the others are compared with
    CreateDelete,
    /// A lock that nobody else wants, acquired and released, both awaited
    AcquireRelease,
    /// The same in a loop, let go of without waiting for the answer
    Loop,
    /// From one task's release to the next one's grant
    HandOver,
    /// Five hundred different locks at once, through one session
    Many,
    /// A lock that its process keeps for a while, taken again
    ReAcquire,
}

const DOCTOR_HELP: &str = "\
Looks at each server (four-letter words), a session and what it is granted, how long requests take, the clock, access, and at \
the directories at and below the root: their access control lists, how near they are to the end of their numbers, and who \
stands in their queues. It makes one ephemeral node to measure with, and deletes it.

Levels: ok; note, worth knowing; warning, locks work, but less well than they could; error, locks fail or more than one \
may hold. With --strict the worst of them is in the exit code: 1 for a warning, 2 for an error; without it the code is 0 \
whatever was found. 69 and 77: it could not look.";

/// `zoolock doctor`.
#[derive(Debug, ClapArgs)]
#[command(after_help = DOCTOR_HELP)]
pub(crate) struct DoctorArgs {
    /// Say the worst finding in the exit code: 1 for a warning, 2 for an error
    #[arg(long)]
    pub(crate) strict: bool,

    /// How many directories to look at
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub(crate) limit: usize,
}
