//! Where the process that outlives us will be.
//!
//! What is missing today: when zoolock itself is killed with KILL, the kernel kills the command with it (on
//! Linux; not a set-user-ID program), but not what the command has started, and not a command that has cleared
//! the arrangement. And while zoolock is stopped by STOP, or does not get to run, nobody ends the command at
//! the deadline. Both need a second process of ours, fed with the deadline through a pipe from us: at the
//! deadline, or when the pipe closes without a goodbye, it kills the command's group, and its control group
//! where we may make one.
