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

/// Their manifests name the jars they need; the last one keeps Curator from talking.
const CURATOR: [&str; 2] = ["/usr/share/java/curator-recipes.jar", "/usr/share/java/slf4j-nop.jar"];

fn page(name: &str) -> Page {
    Page::read(&format!("examples/{name}/README.md"))
}

fn run(name: &str, environment: &[(&str, &str)]) {
    let page = page(name);
    let mut world = World::for_page(&page);
    let directory = root().join("examples").join(name);
    for entry in std::fs::read_dir(directory).expect("it is there") {
        let path = entry.expect("readable").path();
        let file = path.file_name().expect("a name").to_str().expect("UTF-8");
        std::fs::copy(&path, world.sandbox.path(file)).expect("a copy");
    }
    world.environment =
        environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    blocks::run_in(&page, &world);
}

#[test]
fn standby_does_what_it_says() {
    run("standby", &[]);
}

#[test]
fn cron_does_what_it_says() {
    run("cron", &[]);
}

#[test]
fn pool_does_what_it_says() {
    run("pool", &[]);
}

#[test]
fn config_does_what_it_says() {
    run("config", &[]);
}

#[test]
fn postgresql_does_what_it_says() {
    let Some(programs) = Postgres::programs() else {
        let missing = Availability::Missing("no PostgreSQL here; install postgresql".to_owned());
        assert!(!missing.or_skip("the example with PostgreSQL"));
        return;
    };
    let database = Postgres::start(&programs);
    let host = database.place.path().to_str().expect("UTF-8").to_owned();
    run("postgresql", &[("PGHOST", &host), ("PGUSER", "postgres"), ("PGDATABASE", "postgres")]);
    database.stop();
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
    let entries = std::fs::read_dir(root().join("examples")).expect("it is there");
    let entries = entries.map(|entry| entry.expect("readable").path()).filter(|path| path.is_dir());
    let names: BTreeSet<String> =
        entries.map(|path| path.file_name().expect("a name").to_string_lossy().into_owned()).collect();
    let run = ["standby", "cron", "pool", "postgresql", "config", "curator"];
    assert_eq!(names, run.map(str::to_owned).into_iter().collect());
    let listed = Page::read("examples/README.md");
    let listed: BTreeSet<String> = listed.links().into_iter().map(|link| link.target).collect();
    assert_eq!(listed, run.map(|name| format!("{name}/README.md")).into_iter().collect());
    for page in run.map(page) {
        for link in page.links() {
            let file = root().join(&page.path).parent().expect("a directory").join(&link.target);
            assert!(file.is_file(), "{}: ({}) leads nowhere", link.place, link.target);
        }
    }
}

/// A server of the test's own, which is reached through a socket in its directory alone.
struct Postgres {
    place: TempDir,
    server: Running,
}

impl Postgres {
    /// Where Debian has the newest.
    fn programs() -> Option<PathBuf> {
        let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
        let programs = versions.filter_map(Result::ok).map(|entry| entry.path().join("bin"));
        programs.filter(|programs| programs.join("initdb").is_file()).max()
    }

    fn start(programs: &Path) -> Self {
        let place = tempfile::tempdir().expect("a temporary directory");
        let root = rustix::process::geteuid().is_root();
        // It does not serve as root.
        let as_itself = |program: &str| {
            if !root {
                return Command::new(programs.join(program));
            }
            let mut command = Command::new("setpriv");
            command
                .args(["--reuid=postgres", "--regid=postgres", "--clear-groups"])
                .arg(programs.join(program));
            command
        };
        if root {
            let owned = Command::new("chown").arg("postgres:").arg(place.path()).status().expect("it starts");
            assert!(owned.success(), "there is an account of that name where the package is");
        }
        let data = place.path().join("data");
        let made = as_itself("initdb")
            .arg("-D")
            .arg(&data)
            .args(["--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C.UTF-8", "--username=postgres"])
            .current_dir(place.path())
            .output()
            .expect("it starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let server = as_itself("postgres")
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(place.path())
            .args(["-c", "listen_addresses=", "-c", "fsync=off"])
            .current_dir(place.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let database = Self { place, server: Running(server) };
        wait_until("PostgreSQL answers", || {
            let mut ask = Command::new(programs.join("pg_isready"));
            let asked = ask.arg("-q").arg("-h").arg(database.place.path()).status();
            asked.is_ok_and(|answer| answer.success())
        });
        database
    }

    fn stop(mut self) {
        // Fast: its clients are not waited for.
        self.server.signal(Signal::INT);
        assert_eq!(self.server.code(), 0);
    }
}
