//! `zoolock doctor`.

use clap::Args as ClapArgs;

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
