//! Short runs of every drill, and runs with a deliberate bug that the drill must find:
//! `./check --also chaos`.

use std::process::{Command, Output, Stdio};

use zoolock_tests::apache::availability;
use zoolock_tests::skip::is_long;

/// Runs a drill to its end, and prints its output for a failing test.
fn drill(name: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zoolock-chaos"));
    command.arg(name).args(args).stdin(Stdio::null());
    let output = command.output().expect("zoolock-chaos starts");
    println!("{}\n{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    output
}

/// Asserts that the drill reported a violation with this text.
fn assert_finds(output: &Output, finding: &str) {
    assert_eq!(output.status.code(), Some(1), "the drill found no violation");
    let report = String::from_utf8_lossy(&output.stdout);
    let finds = |line: &str| line.starts_with("VIOLATION") && line.contains(finding);
    assert!(report.lines().any(finds), "no violation contains `{finding}`");
}

mod load {
    use super::*;

    /// Runs a short load drill. The tolerance covers the growth of a young process, which is a few
    /// percent. With the deliberate leak, memory grows by half.
    fn load(args: &[&str]) -> Output {
        let short = "--sessions 100 --locks 1000 --time 10s --processes 2 --rate 500 --tolerance 20";
        drill("load", &[&short.split(' ').collect::<Vec<_>>()[..], args].concat())
    }

    #[test]
    fn embedded_server_does_not_grow() {
        assert_eq!(load(&["--only", "serve"]).status.code(), Some(0), "the server grew or kept something");
    }

    #[test]
    fn apache_does_not_grow() {
        if availability().or_skip("apache_does_not_grow") {
            assert_eq!(
                load(&["--only", "apache"]).status.code(),
                Some(0),
                "the server grew or kept something"
            );
        }
    }

    #[test]
    fn leaking_clients_are_found() {
        let output = load(&["--only", "serve", "--break", "leak"]);
        assert_finds(&output, "the memory of the clients grew");
    }
}

mod loss {
    use super::*;

    #[test]
    fn holders_on_apache_learn_of_a_loss_in_time() {
        if !availability().or_skip("holders_on_apache_learn_of_a_loss_in_time") {
            return;
        }
        let output = drill("loss", &["--rounds", "1", "--holders", "3"]);
        assert_eq!(output.status.code(), Some(0), "a holder learned of the loss too late");
        let report = String::from_utf8_lossy(&output.stdout);
        for fault in
            ["link cut", "holder stopped", "follower isolated", "follower killed", "timeout shortened"]
        {
            assert!(report.contains(&format!("| {fault} | 3 |")), "no {fault}");
        }
    }

    #[test]
    fn holders_on_apache_that_ignore_a_loss_are_found() {
        if !availability().or_skip("holders_on_apache_that_ignore_a_loss_are_found") {
            return;
        }
        let args = ["--rounds", "1", "--holders", "2", "--only", "cut", "--break", "never-lost"];
        let output = drill("loss", &args);
        assert_finds(&output, ", holder of l00: its guard was valid ");
        assert_finds(&output, ", command of l01: ");
    }
}

mod outages {
    use super::*;

    #[test]
    fn short_outages_of_apache_cost_no_lock() {
        if !availability().or_skip("short_outages_of_apache_cost_no_lock") {
            return;
        }
        let output = drill("outages", &["--rounds", "1", "--holders", "10"]);
        assert_eq!(output.status.code(), Some(0), "a lock was lost, or sessions moved");
        let report = String::from_utf8_lossy(&output.stdout);
        for outage in ["leader stalled for 2 s", "one node silent", "all nodes away for T/4"] {
            assert!(report.contains(&format!("| {outage} |")), "no {outage}");
        }
    }
}

mod pairs {
    use zoolock_tests::namespaces::Namespaces;

    use super::*;

    #[test]
    fn two_faults_at_once_on_apache_cost_no_lock() {
        let name = "two_faults_at_once_on_apache_cost_no_lock";
        let namespaces = Namespaces::new().expect("files are written");
        if !availability().or_skip(name) || !namespaces.availability().or_skip(name) {
            return;
        }
        let output = drill("pairs", &["--seeds", "1"]);
        assert_eq!(output.status.code(), Some(0), "a lock was lost needlessly, or a queue was blocked");
        let report = String::from_utf8_lossy(&output.stdout);
        for pair in ["stopped follower and cut", "bad names and restart"] {
            assert!(report.contains(&format!("| {pair} |")), "no {pair}");
        }
    }

    /// Stops the only server that the clients know, for longer than the lease.
    #[test]
    fn clients_on_apache_that_know_one_server_are_found() {
        if availability().or_skip("clients_on_apache_that_know_one_server_are_found") {
            let args = ["--seeds", "1", "--seed", "12", "--only", "stopped-follower-and-cut"];
            let output = drill("pairs", &[&args[..], &["--break", "one-server"]].concat());
            assert_finds(&output, "needless loss of ");
        }
    }
}

mod strays {
    use super::*;

    /// Runs two rounds, or twenty with `ZOOLOCK_LONG=1`.
    #[test]
    fn late_creates_on_apache_block_no_queue() {
        if !availability().or_skip("late_creates_on_apache_block_no_queue") {
            return;
        }
        let rounds = if is_long() { "20" } else { "2" };
        let output = drill("strays", &["--rounds", rounds]);
        assert_eq!(output.status.code(), Some(0), "a znode was left in the queue");
    }

    /// The drill ends after the first violation. Without the library, about every second round has one.
    #[test]
    fn late_creates_on_apache_without_search_are_found() {
        if availability().or_skip("late_creates_on_apache_without_search_are_found") {
            let output = drill("strays", &["--rounds", "40", "--break", "no-search"]);
            assert_finds(&output, " strays some are left after ");
        }
    }
}

mod chaos {
    use super::*;

    #[test]
    fn apache_under_faults_accepts_no_older_token() {
        if !availability().or_skip("apache_under_faults_accepts_no_older_token") {
            return;
        }
        let faults = "kill-leader,isolate-follower,stop-client,delete-directory";
        let output = drill("run", &["--time", "40s", "--workers", "2", "--only", faults]);
        assert_eq!(output.status.code(), Some(0), "there are violations, or the run could not be judged");
        let report = String::from_utf8_lossy(&output.stdout);
        for kind in ["mutex", "read/write", "semaphore", "multi", "shared hold", "reentrant"] {
            assert!(report.contains(&format!("{kind} ")), "no {kind} was held");
        }
    }

    /// Runs three workers. Each worker connects to one server only, and each server has one worker.
    /// The faults are random, and the few faults of one run may cost no lock. So there are several
    /// runs, until one costs a lock.
    #[test]
    fn apache_with_needless_losses_is_found() {
        if availability().or_skip("apache_with_needless_losses_is_found") {
            let faults = "cut-off-node,stop-follower";
            let args = ["--time", "30s", "--workers", "3", "--only", faults, "--break", "one-server"];
            let failed = (0..6).map(|_| drill("run", &args)).find(|run| run.status.code() != Some(0));
            assert_finds(&failed.expect("no run costs a lock"), " lost it needlessly between ");
        }
    }

    fn assert_found(bug: &str, fault: &str, finding: &str) {
        if availability().or_skip(bug) {
            let output = drill("run", &["--time", "4s", "--workers", "2", "--only", fault, "--break", bug]);
            assert_finds(&output, finding);
        }
    }

    #[test]
    fn apache_without_acquiring_is_found() {
        assert_found("no-lock", "flapping-client", " held from ");
    }

    #[test]
    fn apache_without_releasing_is_found() {
        assert_found("no-release", "flapping-client", "its release was confirmed");
    }

    #[test]
    fn apache_without_lease_checks_is_found() {
        assert_found("no-check", "stop-client", " held from ");
    }

    #[test]
    fn apache_without_fencing_is_found() {
        assert_found("unfenced", "stop-client", " wrote with ");
    }
}

mod election {
    use super::*;

    #[test]
    fn leaders_on_apache_never_overlap() {
        if !availability().or_skip("leaders_on_apache_never_overlap") {
            return;
        }
        let output = drill("election", &["--rounds", "1", "--elections", "4"]);
        assert_eq!(
            output.status.code(),
            Some(0),
            "two terms were valid at once, or a term was lost in a stall"
        );
        let report = String::from_utf8_lossy(&output.stdout);
        for fault in ["Killed", "Stopped", "Cut", "Stalled", "CutShortly", "Resigned"] {
            assert!(report.contains(&format!("| {fault} |")), "no {fault}");
        }
    }

    #[test]
    fn work_on_apache_that_outlives_its_term_is_found() {
        if availability().or_skip("work_on_apache_that_outlives_its_term_is_found") {
            let args = ["--rounds", "1", "--elections", "2", "--only", "resigned", "--break", "outlives"];
            assert_finds(&drill("election", &args), " was valid ");
        }
    }

    #[test]
    fn candidate_on_apache_that_gives_up_in_a_short_outage_is_found() {
        if availability().or_skip("candidate_on_apache_that_gives_up_in_a_short_outage_is_found") {
            let args = ["--rounds", "2", "--elections", "2", "--only", "cut-shortly", "--break", "flees"];
            assert_finds(&drill("election", &args), " terms were lost");
        }
    }
}
