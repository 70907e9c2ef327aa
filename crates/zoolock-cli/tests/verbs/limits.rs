//! Limits on processes and threads: the command ends with an error that names the limit. Limits on open files: the server
//! accepts fewer connections.

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use zoolock_tests::raw_client::RawClient;
use zoolock_tests::skip::Availability;
use zoolock_wire::{Acl, CreateRequest, Reply, Request, op, perms};

use crate::common::{
    CommandOutput, Running, Sandbox, connect_from, read_until, set_mode, start_server, start_server_from,
};

/// A user without other processes. The limit counts all processes of a user, and does not apply to root.
struct User {
    sandbox: Sandbox,
    id: u32,
    zoolock: PathBuf,
}

impl User {
    /// Returns `None` if this process cannot run a command as another user.
    fn new(id: u32, test: &str) -> Option<Self> {
        let availability = match rustix::process::geteuid().is_root() {
            true => Availability::Available,
            false => Availability::Missing("only root can run a command as another user".to_owned()),
        };
        if !availability.or_skip(test) {
            return None;
        }
        let sandbox = Sandbox::new();
        // The user runs a copy of the program, because the build directory may be closed to that user.
        let zoolock = sandbox.path("zoolock");
        std::fs::copy(env!("CARGO_BIN_EXE_zoolock"), &zoolock).expect("program copied");
        set_mode(&zoolock, 0o755);
        chown(sandbox.path("."), Some(id), Some(id)).expect("directory given away");
        Some(Self { sandbox, id, zoolock })
    }

    /// Runs zoolock with a limit on the processes and threads of this user.
    fn run(&self, limit: usize, args: &[&str]) -> CommandOutput {
        let id = self.id;
        let mut command: Command = self.sandbox.command("setpriv");
        command.arg(format!("--reuid={id}")).arg(format!("--regid={id}")).arg("--clear-groups");
        command.arg("prlimit").arg(format!("--nproc={limit}")).arg(&self.zoolock).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(command.spawn().expect("setpriv starts")).wait_for_output()
    }
}

/// Asserts that `done` has succeeded, or names the limit. Returns whether it has succeeded.
fn assert_limit_is_named(limit: usize, done: &CommandOutput) -> bool {
    assert!(!done.stderr.contains("panicked"), "limit {limit}: {done:?}");
    if done.code != 0 {
        assert_eq!(done.code, 69, "limit {limit}: {done:?}");
        assert!(done.stderr.contains("ulimit -u"), "limit {limit}: {done:?}");
    }
    done.code == 0
}

/// Runs zoolock with rising limits until it succeeds. The first limit must be too low.
fn assert_lower_limits_are_named(user: &User, args: &[&str]) {
    let first = (1..64).find(|limit| assert_limit_is_named(*limit, &user.run(*limit, args)));
    assert!(first.is_some_and(|limit| limit > 1), "{first:?} {args:?}");
}

#[test]
fn refused_process_or_thread_names_the_limit() {
    let Some(user) = User::new(61_301, "refused_process_or_thread_names_the_limit") else { return };
    let (_server, address) = start_server(&user.sandbox);
    let by_name = address.replace("127.0.0.1", "localhost");
    let common = ["--timeout", "20s"];
    for address in [address, by_name] {
        let connect = ["--connect", &address, "-v"];
        let run = [&["run"], &connect[..], &common, &["x", "--", "true"]].concat();
        assert_lower_limits_are_named(&user, &run);
    }
}

#[test]
fn refused_local_server_names_the_limit() {
    let Some(user) = User::new(61_302, "refused_local_server_names_the_limit") else { return };
    let first = (1..64).find(|limit| {
        let started = assert_limit_is_named(*limit, &user.run(*limit, &["run", "x", "--", "true"]));
        // The next attempt must not count processes of a server that could not start.
        let stopped = user.run(1000, &["serve", "--stop"]);
        assert_eq!(stopped.code, 0, "limit {limit}: {stopped:?}");
        started
    });
    assert!(first.is_some_and(|limit| limit > 1), "{first:?}");
}

#[test]
fn refused_server_names_the_limit() {
    let Some(user) = User::new(61_303, "refused_server_names_the_limit") else { return };
    let args = ["serve", "--listen", "127.0.0.1:0", "--data", "data"];
    // The server has six threads. With a limit of six, it would start and run for ever.
    for limit in 1..6 {
        let done = user.run(limit, &args);
        assert!(!assert_limit_is_named(limit, &done), "limit {limit}: {done:?}");
    }
}

/// Returns a server with `flags`, which is started after a shell command that sets limits.
fn limited_server(sandbox: &Sandbox, limits: &str, flags: &str) -> Command {
    let mut shell = sandbox.command("sh");
    let script = format!("{limits}; exec \"$0\" serve --listen 127.0.0.1:0 {flags}");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_zoolock")]);
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell
}

#[test]
fn server_with_too_little_memory_names_the_limits() {
    for limits in ["ulimit -v 196608", "ulimit -v 262144", "ulimit -v 524287", "ulimit -d 65535"] {
        let server = limited_server(&Sandbox::new(), limits, "").spawn().expect("sh starts");
        let done = Running(server).wait_for_output();
        assert_eq!(done.code, 69, "{limits}: {done:?}");
        assert!(done.stderr.contains("a server needs 64 MiB of memory"), "{limits}: {done:?}");
        assert!(done.stderr.contains("(ulimit -v) to 512 MiB"), "{limits}: {done:?}");
    }
}

#[test]
fn local_mode_needs_no_large_address_space() {
    let sandbox = Sandbox::new();
    let mut shell = sandbox.command("sh");
    shell.args(["-c", "ulimit -v 262144; exec \"$0\" run x -- echo held", env!("CARGO_BIN_EXE_zoolock")]);
    let done = CommandOutput::from(shell.stdin(Stdio::null()).output().expect("sh starts"));
    assert_eq!((done.code, done.stdout.as_str()), (0, "held\n"), "{done:?}");
}

#[tokio::test]
async fn full_server_with_little_memory_restarts() {
    let sandbox = Sandbox::new();
    let start = || start_server_from(limited_server(&sandbox, "ulimit -v 524288", "--data data"));
    let (mut server, address) = start();
    let address = address.parse().expect("an address");
    let mut client = RawClient::open_session(address, 30_000, 0).await.expect("a session");
    let create = |path: String| {
        let (data, acl) = (Some(vec![b'x'; 700].into()), vec![Acl::anyone(perms::ALL)]);
        Request::Create(CreateRequest { op: op::CREATE, path, data, acl, flags: 0, ttl: -1 })
    };
    let mut rounds = 0;
    loop {
        let creates = (0..1000).map(|number| create(format!("/{rounds}.{number}")));
        let (header, _) = client.call(Request::Multi(creates.collect())).await.expect("an answer");
        if header.err != 0 {
            assert_eq!(header.err, -125, "after {rounds} rounds");
            break;
        }
        rounds += 1;
        assert!(rounds < 1000, "the server has no limit");
    }
    server.signal(Signal::KILL);
    server.wait();
    let (mut server, _) = start();
    server.signal(Signal::TERM);
    assert_eq!(server.code(), 0);
}

#[tokio::test]
async fn full_server_with_few_files_still_writes() {
    let sandbox = Sandbox::new();
    let flags = "--metrics 127.0.0.1:0 --data data --max-session-timeout 1h";
    let mut server = Running(limited_server(&sandbox, "ulimit -n 300", flags).spawn().expect("sh starts"));
    let (mut stderr, mut printed) = (server.take_stderr(), String::new());
    read_until(&mut stderr, &mut printed, "/metrics\n");
    let address = |before: &str| -> SocketAddr {
        let rest = printed.split_once(before).expect("the address is printed").1;
        rest.split(['\n', '/']).next().and_then(|text| text.parse().ok()).expect("an address")
    };
    let (clients, http) = (address("serving on "), address("metrics at http://"));

    let open_session = || RawClient::open_session(clients, 3_600_000, 0);
    let mut writer = open_session().await.expect("the first session");
    let mut sessions = Vec::new();
    while let Ok(session) = open_session().await {
        sessions.push(session);
    }
    assert!(sessions.len() > 150, "only {} sessions", sessions.len());
    let _unfinished: Vec<_> = (0..128)
        .map(|number| {
            let mut stream = connect_from([127, 0, 1, number], http);
            // The server closes connections above its limit.
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nX: ");
            stream
        })
        .collect();

    // The server begins a new file of the log after 64 MiB.
    let (path, acl) = ("/big".to_owned(), vec![Acl::anyone(perms::ALL)]);
    let create = CreateRequest { op: op::CREATE, path: path.clone(), data: None, acl, flags: 0, ttl: -1 };
    let (header, _) = writer.call(Request::Create(create)).await.expect("an answer");
    assert_eq!(header.err, 0);
    for _ in 0..80 {
        let data = Some(vec![b'x'; 1_000_000].into());
        let set = Request::SetData { path: path.clone(), data, version: -1 };
        let (header, reply) = writer.call(set).await.expect("an answer");
        assert!(header.err == 0 && matches!(reply, Reply::Stat(_)), "{header:?}");
    }
    let files = std::fs::read_dir(sandbox.path("data")).expect("the data directory");
    let names = files.map(|file| file.expect("an entry").file_name().to_string_lossy().into_owned());
    assert!(names.filter(|name| name.starts_with("log.")).count() > 1, "no new file of the log");
    server.signal(Signal::TERM);
    assert_eq!(server.code(), 0);
}
