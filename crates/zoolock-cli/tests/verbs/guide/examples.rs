//! The examples: their pages are run as chapters are, each in a copy of its directory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;
use zoolock_tests::skip::Availability;

use crate::common::{Running, wait_until};
use crate::guide::blocks;
use crate::guide::book::{Page, root};
use crate::guide::world::World;

/// The manifests of these jars name the others that are needed; the last one silences Curator.
const CURATOR: [&str; 2] = ["/usr/share/java/curator-recipes.jar", "/usr/share/java/slf4j-nop.jar"];

fn page(name: &str) -> Page {
    Page::read(&format!("examples/{name}/README.md"))
}

fn run(name: &str, environment: &[(&str, &str)]) {
    let page = page(name);
    let mut world = World::for_page(&page);
    for entry in std::fs::read_dir(root().join("examples").join(name)).expect("an example") {
        let entry = entry.expect("readable");
        let copy = world.sandbox.path(entry.file_name().to_str().expect("UTF-8"));
        std::fs::copy(entry.path(), copy).expect("a copy");
    }
    let pairs = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    world.environment = pairs.collect();
    blocks::run_in(&page, &world);
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
}

#[test]
fn postgresql_does_what_it_says() {
    let Some(programs) = postgresql() else {
        let missing = Availability::Missing("no PostgreSQL here; install postgresql".to_owned());
        assert!(!missing.or_skip("the example with PostgreSQL"));
        return;
    };
    let place = tempfile::tempdir().expect("a temporary directory");
    let mut server = start(&programs, &place);
    let host = place.path().to_str().expect("UTF-8");
    run("postgresql", &[("PGHOST", host), ("PGUSER", "postgres"), ("PGDATABASE", "postgres")]);
    // Stops without waiting for clients.
    server.signal(Signal::INT);
    assert_eq!(server.code(), 0);
}

#[test]
fn curator_does_what_it_says() {
    let missing = CURATOR.into_iter().chain(["/usr/bin/java"]).find(|file| !Path::new(file).exists());
    let here = missing.map_or(Availability::Available, |file| Availability::Missing(format!("no {file}")));
    if here.or_skip("the example with Curator") {
        run("curator", &[("CLASSPATH", &CURATOR.join(":"))]);
    }
}

#[test]
fn every_example_is_run_and_listed() {
    let entries = std::fs::read_dir(root().join("examples"))
        .expect("a directory")
        .map(|entry| entry.expect("readable"));
    let names = entries.filter(|entry| entry.path().is_dir()).map(|entry| entry.file_name().into_string());
    let names: BTreeSet<String> = names.map(|name| name.expect("UTF-8")).collect();
    let run = ["standby", "cron", "pool", "postgresql", "config", "curator"];
    assert_eq!(names, run.map(str::to_owned).into());
    let listed = Page::read("examples/README.md").links().into_iter().map(|(_, target)| target);
    assert_eq!(listed.collect::<BTreeSet<_>>(), run.map(|name| format!("{name}/README.md")).into());
    for name in run {
        for (place, target) in page(name).links() {
            let file = root().join("examples").join(name).join(&target);
            assert!(file.is_file(), "{place}: ({target}) leads nowhere");
        }
    }
}

/// Returns the programs of the newest PostgreSQL, where Debian installs them.
fn postgresql() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let programs = versions.filter_map(Result::ok).map(|entry| entry.path().join("bin"));
    programs.filter(|programs| programs.join("initdb").is_file()).max()
}

/// Starts a server that is reached only through a socket in `place`. It refuses to run as root.
fn start(programs: &Path, place: &TempDir) -> Running {
    const SCRIPT: &str = "set -e; as=
        if [ $(id -u) = 0 ]; then chown postgres: .; as='setpriv --reuid=postgres --regid=postgres --clear-groups'; fi
        $as $0/initdb -D data --auth=trust --no-sync --encoding=UTF8 --locale=C.UTF-8 --username=postgres
        exec $as $0/postgres -D data -k $PWD -c listen_addresses= -c fsync=off";
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT]).arg(programs).current_dir(place.path());
    let server =
        Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("there is a shell"));
    wait_until("PostgreSQL answers", || {
        let mut ask = Command::new(programs.join("pg_isready"));
        ask.arg("-q").arg("-h").arg(place.path()).status().is_ok_and(|answer| answer.success())
    });
    server
}
