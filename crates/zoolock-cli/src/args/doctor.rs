//! `zoolock doctor`.

use clap::Args as ClapArgs;

use super::values::at_least_one;

const DOCTOR_HELP: &str = "\
Checks each server (with four-letter words), the session and its negotiated timeout, the request latency, the server's \
clock, and access. Of the directories at and below --root, checks the access control lists, the remaining sequence \
numbers and the queues. Does not judge how long locks are held: see zoolock ls --sort held. Creates one ephemeral znode to measure latency, and deletes it.

Levels: ok; note (for information); warning (locks work with a limitation); error (locks fail, or two clients can hold \
a lock at once). The exit code is 1 if the worst finding is a warning, and 2 if it is an error. Exit codes 69 and 77 \
mean that the checks could not run.";

/// `zoolock doctor`.
#[derive(Debug, ClapArgs)]
#[command(after_help = DOCTOR_HELP)]
pub(crate) struct DoctorArgs {
    /// Maximum number of directories to check
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2000,
        value_parser = at_least_one::<usize>("must be at least 1; the default is 2000")
    )]
    pub(crate) limit: usize,
}
