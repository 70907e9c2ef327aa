//! `bench`: figures for every work, and a tree as it was before.

mod common;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Running, Sandbox, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use tokio::runtime::Runtime;
use zookeeper_client::{Acls, Client, CreateMode, Error};

const WORKS: [&str; 6] = ["create-delete", "acquire-release", "loop", "hand-over", "many", "re-acquire"];

/// An embedded server, and a look at its whole tree from outside.
struct Service {
    address: String,
    runtime: Runtime,
    client: Client,
    _server: Running,
}

impl Service {
    fn start(sandbox: &Sandbox) -> Self {
        let (server, address) = serve(sandbox, &[]);
        let runtime = Runtime::new().expect("threads");
        let client = runtime.block_on(Client::connect(&address)).expect("it serves");
        Self { address, runtime, client, _server: server }
    }

    /// Every node below, but for those of the service itself.
    fn tree(&self) -> Vec<String> {
        let (mut todo, mut found) = (vec![String::new()], Vec::new());
        while let Some(path) = todo.pop() {
            let shown = if path.is_empty() { "/" } else { &path };
            // Gone meanwhile, it has no children.
            let names = self.runtime.block_on(self.client.list_children(shown)).unwrap_or_default();
            let below = names.into_iter().map(|name| format!("{path}/{name}"));
            todo.extend(below.filter(|path| path != "/zookeeper"));
            found.push(path);
        }
        found.sort();
        found.split_off(1)
    }

    /// How many there are besides ours.
    fn sessions(&self) -> usize {
        let mut socket = TcpStream::connect(&self.address).expect("it listens");
        socket.write_all(b"mntr").expect("it reads");
        let mut figures = String::new();
        socket.read_to_string(&mut figures).expect("text");
        let sessions = figures.lines().find_map(|line| line.strip_prefix("zk_global_sessions\t"));
        sessions.expect("it is counted").parse::<usize>().expect("a number") - 1
    }

    fn make(&self, path: &str) {
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        self.runtime.block_on(self.client.create(path, b"", &options)).expect("it was not there");
    }
}

/// Starts an embedded server, and says where it listens.
fn serve(sandbox: &Sandbox, flags: &[&str]) -> (Running, String) {
    let mut command = sandbox.zoolock([&["serve", "--listen", "127.0.0.1:0"], flags].concat());
    let mut server = Running(command.stdout(Stdio::null()).spawn().expect("the command starts"));
    let mut notes = BufReader::new(server.0.stderr.take().expect("it is piped"));
    let mut line = String::new();
    while !line.contains("127.0.0.1:") {
        line.clear();
        assert_ne!(notes.read_line(&mut line).expect("text"), 0, "it ended");
    }
    let at = line.find("127.0.0.1:").expect("looked for just now");
    let address = line[at..].split_whitespace().next().expect("an address").to_owned();
    (server, address)
}

#[test]
fn every_work_has_its_line_and_nothing_is_left() {
    let sandbox = Sandbox::new();
    let service = Service::start(&sandbox);
    let done = sandbox.output(&["bench", "--connect", &service.address, "--time", "50ms"]);
    assert_eq!(done.code, 0, "{done:?}");
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!(lines.len(), 1 + WORKS.len(), "{done:?}");
    for (line, work) in lines[1..].iter().zip(WORKS) {
        assert!(line.starts_with(work), "{line}");
    }
    assert!(lines[1].contains("/s") && lines[1].contains("1.00"), "{}", lines[1]);
    assert!(done.stderr.contains("loads") && done.stderr.contains("from this machine"), "{done:?}");
    assert_eq!((service.tree(), service.sessions()), (Vec::new(), 0));
}

#[test]
fn its_json_has_a_figure_for_every_work() {
    let sandbox = Sandbox::new();
    let service = Service::start(&sandbox);
    // A chroot that is there stays, the root that is made in it goes.
    service.make("/team");
    let connect = format!("{}/team", service.address);
    let done = sandbox.output(&["bench", "--connect", &connect, "--time", "50ms", "--tasks", "4", "--json"]);
    assert_eq!(done.code, 0, "{done:?}");
    let json: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(
        (&json["service"], &json["tasks"], &json["complete"]),
        (&connect.into(), &4.into(), &true.into())
    );
    assert!(json["path"].as_str().expect("text").starts_with("/locks/bench-"), "{json}");
    let works = json["works"].as_array().expect("a list");
    assert_eq!(works.iter().map(|work| work["work"].as_str().expect("text")).collect::<Vec<_>>(), WORKS);
    for work in works {
        for figure in ["turns", "median_ns", "p99_ns", "per_second"] {
            assert!(work[figure].as_f64().is_some_and(|figure| figure > 0.0), "{work}");
        }
        assert!(work["median_ns"].as_u64() <= work["p99_ns"].as_u64(), "{work}");
        assert_eq!(work["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), work["work"] != "many", "{work}");
    }
    assert_eq!(service.tree(), ["/team"]);
}

#[test]
fn works_can_be_chosen_and_others_locks_stay() {
    let sandbox = Sandbox::new();
    let service = Service::start(&sandbox);
    for path in ["/locks", "/locks/nightly"] {
        service.make(path);
    }
    let only = ["--only", "hand-over", "--only", "acquire-release"];
    let line = [&["bench", "--connect", &service.address, "--time", "20ms", "--json"][..], &only].concat();
    let done = sandbox.output(&line);
    assert_eq!(done.code, 0, "{done:?}");
    let json: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!((&json["works"][0]["work"], &json["works"][1]["work"]), (&WORKS[1].into(), &WORKS[3].into()));
    // There is nothing to compare with.
    assert!(json["works"][0]["ratio"].is_null(), "{json}");
    assert_eq!(service.tree(), ["/locks", "/locks/nightly"]);
}

#[test]
fn the_help_names_every_work_and_says_that_it_loads_the_service() {
    let done = Sandbox::new().output(&["bench", "--help"]);
    for word in WORKS.iter().chain(&["--time", "--tasks", "--only", "loaded", "removed"]) {
        assert!(done.stdout.contains(word), "{word}: {done:?}");
    }
}

#[test]
fn an_unknown_work_is_refused_with_the_names_of_all() {
    let sandbox = Sandbox::new();
    let done = sandbox.output(&["bench", "--only", "frobnicate"]);
    assert_eq!((done.code, done.stdout.as_str()), (64, ""), "{done:?}");
    for word in WORKS.iter().chain(&["frobnicate"]) {
        assert!(done.stderr.contains(word), "{word}: {done:?}");
    }
    assert!(!sandbox.state().exists(), "nothing is started");
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let sandbox = Sandbox::new();
    let service = Service::start(&sandbox);
    for (work, signal, code) in [
        ("create-delete", Signal::INT, 130),
        ("loop", Signal::TERM, 143),
        ("hand-over", Signal::INT, 130),
        ("many", Signal::INT, 130),
        ("re-acquire", Signal::INT, 130),
    ] {
        let line = ["bench", "--connect", &service.address, "--time", "1m", "--only", work];
        let running = sandbox.converse(&line);
        // In the middle of it: what is held, or was, is below the directory of the run.
        wait_until(work, || service.tree().iter().any(|path| path.matches('/').count() > 3));
        let told = Instant::now();
        running.signal(signal);
        let done = running.done();
        assert_eq!((done.code, done.stdout.as_str()), (code, ""), "{done:?}");
        // Each goes on for ten seconds in a round.
        assert!(told.elapsed() < Duration::from_secs(5), "{work}: {:?}", told.elapsed());
        assert!(done.stderr.contains(work) && done.stderr.contains("is removed"), "{done:?}");
        assert_eq!((service.tree(), service.sessions()), (Vec::new(), 0), "{work}");
    }
}

#[test]
fn works_take_turns_and_what_was_measured_is_shown_after_an_interrupt() {
    let sandbox = Sandbox::new();
    let service = Service::start(&sandbox);
    let line = ["bench", "--connect", &service.address, "--time", "3s", "--json"];
    let running = sandbox.converse(&[&line[..], &["--only", "create-delete", "--only", "loop"]].concat());
    wait_until("the second work", || service.tree().iter().any(|path| path.ends_with("/loop")));
    wait_until("the first work again", || {
        service.tree().iter().any(|path| path.contains("/create-delete/node-"))
    });
    running.signal(Signal::INT);
    let done = running.done();
    assert_eq!(done.code, 130, "{done:?}");
    assert!(done.stderr.contains("a part of the time"), "{done:?}");
    let json: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!((&json["complete"], json["works"].as_array().map(Vec::len)), (&false.into(), Some(2)));
    assert_eq!(service.tree(), Vec::<String>::new());
}

/// ZooKeeper looks once a minute for directories that are empty just then.
#[test]
fn a_directory_is_not_removed_between_two_turns() {
    let sandbox = Sandbox::new();
    let service = Service::start(&sandbox);
    let line = ["bench", "--connect", &service.address, "--time", "1m", "--only", "create-delete"];
    let running = sandbox.converse(&line);
    let mut directory = None;
    wait_until("a turn", || {
        let tree = service.tree();
        let turn = tree.iter().find(|path| path.contains("/create-delete/node-"));
        directory = turn.and_then(|turn| Some(turn.rsplit_once('/')?.0.to_owned()));
        directory.is_some()
    });
    let directory = directory.expect("just seen");
    for _ in 0..500 {
        let removed = service.runtime.block_on(service.client.delete(&directory, None));
        assert!(matches!(removed, Err(Error::NotEmpty)), "{removed:?}");
    }
    running.signal(Signal::INT);
    let done = running.done();
    assert_eq!(done.code, 130, "{done:?}");
}

#[test]
fn a_server_that_dies_ends_it_with_what_was_measured() {
    let sandbox = Sandbox::new();
    let mut service = Service::start(&sandbox);
    let line = ["bench", "--connect", &service.address, "--session-timeout", "6s", "--json", "--time", "3s"];
    let running =
        sandbox.converse(&[&line[..], &["--only", "create-delete", "--only", "hand-over"]].concat());
    wait_until("the second work", || service.tree().iter().any(|path| path.ends_with("/hand-over")));
    service._server.0.kill().expect("it runs");
    let done = running.done();
    assert!([69, 70].contains(&done.code), "{done:?}");
    assert!(done.stderr.contains("hand-over: ") && done.stderr.contains("could not be removed"), "{done:?}");
    let json: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!((&json["complete"], json["works"].as_array().map(Vec::len)), (&false.into(), Some(1)));
}

#[test]
fn every_session_shows_the_credentials() {
    let sandbox = Sandbox::new();
    let private = |name: &str, text: &str| {
        let path = sandbox.path(name);
        std::fs::write(&path, text).expect("writable");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("ours");
        path.display().to_string()
    };
    let accounts = private("accounts", "me:CkqrY5jjJBnObUhMNbd4/OO0J9Y=\n");
    let auth = format!("digest:@{}", private("secret", "me:hunter2\n"));
    let (_server, address) = serve(&sandbox, &["--require-auth", "--users", &accounts]);
    let line = ["bench", "--connect", &address, "--time", "20ms", "--only", "create-delete"];
    let done = sandbox.output(&[&line[..], &["--only", "hand-over", "--auth", &auth]].concat());
    assert_eq!((done.code, done.stdout.lines().count()), (0, 3), "{done:?}");
    assert!(done.stderr.contains("is removed") && !done.stderr.contains("hunter2"), "{done:?}");
    assert_ne!(sandbox.output(&line).code, 0);
}

#[test]
fn this_users_server_is_measured_where_no_other_is_named() {
    let sandbox = Sandbox::new();
    let done = sandbox.output(&["bench", "--time", "20ms", "--only", "create-delete", "--json"]);
    assert_eq!(done.code, 0, "{done:?}");
    let json: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(json["service"], "local");
    let done = sandbox.output(&["ls", "/", "--json"]);
    let json: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!((done.code, &json["locks"]), (0, &Value::Array(Vec::new())), "{done:?}");
}
