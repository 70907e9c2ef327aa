//! Runs the page of each example like a chapter of the guide, in a copy of the directory of the example.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;
use zoolock_tests::skip::Availability;

use crate::common::{Running, wait_until};
use crate::guide::blocks;
use crate::guide::book::{Page, root};
use crate::guide::machine::Machine;

/// Class path of the Curator example. The manifests of these jars name their dependencies. `slf4j-nop` turns off logging.
const CURATOR: [&str; 2] = ["/usr/share/java/curator-recipes.jar", "/usr/share/java/slf4j-nop.jar"];

const EXAMPLES: [&str; 7] = ["standby", "cron", "pool", "postgresql", "config", "curator", "shards"];

/// Returns the paths of the pages of all examples.
pub(crate) fn pages() -> impl Iterator<Item = String> {
    EXAMPLES.iter().map(|name| format!("examples/{name}/README.md"))
}

fn page(name: &str) -> Page {
    Page::read(&format!("examples/{name}/README.md"))
}

fn run(name: &str, environment: &[(&str, &str)]) {
    let page = page(name);
    let mut machine = Machine::for_page(&page);
    for entry in std::fs::read_dir(root().join("examples").join(name)).expect("the example exists") {
        let entry = entry.expect("readable entry");
        let copy = machine.sandbox.path(entry.file_name().to_str().expect("UTF-8 name"));
        std::fs::copy(entry.path(), copy).expect("file copied");
    }
    let pairs = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    machine.environment = pairs.collect();
    blocks::run_on(&page, &machine);
}

macro_rules! examples {
    ($($test:ident: $name:literal,)+) => {
        $(
            #[test]
            fn $test() {
                run($name, &[]);
            }
        )+
    };
}

examples! {
    standby_does_what_it_says: "standby",
    cron_does_what_it_says: "cron",
    pool_does_what_it_says: "pool",
    config_does_what_it_says: "config",
    shards_do_what_they_say: "shards",
}

#[test]
fn postgresql_does_what_it_says() {
    let Some(programs) = postgresql_programs() else {
        let missing = Availability::Missing("no PostgreSQL here; install postgresql".to_owned());
        assert!(!missing.or_skip("the example with PostgreSQL"));
        return;
    };
    let directory = tempfile::tempdir().expect("temporary directory");
    let mut server = start_postgresql(&programs, &directory);
    let host = directory.path().to_str().expect("UTF-8");
    run("postgresql", &[("PGHOST", host), ("PGUSER", "postgres"), ("PGDATABASE", "postgres")]);
    // Stops PostgreSQL without waiting for clients to disconnect.
    server.signal(Signal::INT);
    assert_eq!(server.code(), 0);
}

#[test]
fn curator_does_what_it_says() {
    let missing = CURATOR.into_iter().chain(["/usr/bin/java"]).find(|file| !Path::new(file).exists());
    let curator = missing.map_or(Availability::Available, |file| Availability::Missing(format!("no {file}")));
    if curator.or_skip("the example with Curator") {
        run("curator", &[("CLASSPATH", &CURATOR.join(":"))]);
    }
}

#[test]
fn every_example_is_run_and_listed() {
    let entries = std::fs::read_dir(root().join("examples"))
        .expect("the directory is readable")
        .map(|entry| entry.expect("readable entry"));
    let names = entries.filter(|entry| entry.path().is_dir()).map(|entry| entry.file_name().into_string());
    let names: BTreeSet<String> = names.map(|name| name.expect("UTF-8 name")).collect();
    assert_eq!(names, EXAMPLES.map(str::to_owned).into());
    let listed = Page::read("examples/README.md").links().into_iter().map(|(_, target)| target);
    assert_eq!(listed.collect::<BTreeSet<_>>(), EXAMPLES.map(|name| format!("{name}/README.md")).into());
    for name in EXAMPLES {
        for (location, target) in page(name).links() {
            let file = root().join("examples").join(name).join(&target);
            assert!(file.is_file(), "{location}: ({target}) does not exist");
        }
    }
}

/// Returns the directory of the programs of the newest PostgreSQL that Debian installed.
fn postgresql_programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let programs = versions.filter_map(Result::ok).map(|entry| entry.path().join("bin"));
    programs.filter(|programs| programs.join("initdb").is_file()).max()
}

/// Starts a PostgreSQL server that listens only on a Unix socket in `directory`. PostgreSQL refuses to run as root, so root
/// starts it as the user `postgres`.
fn start_postgresql(programs: &Path, directory: &TempDir) -> Running {
    const SCRIPT: &str = "set -e; as=
        if [ $(id -u) = 0 ]; then chown postgres: .; as='setpriv --reuid=postgres --regid=postgres --clear-groups'; fi
        $as $0/initdb -D data --auth=trust --no-sync --encoding=UTF8 --locale=C.UTF-8 --username=postgres
        exec $as $0/postgres -D data -k $PWD -c listen_addresses= -c fsync=off";
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT]).arg(programs).current_dir(directory.path());
    let server =
        Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the shell starts"));
    wait_until("PostgreSQL answers", || {
        let mut is_ready = Command::new(programs.join("pg_isready"));
        is_ready.arg("-q").arg("-h").arg(directory.path()).status().is_ok_and(|status| status.success())
    });
    server
}
