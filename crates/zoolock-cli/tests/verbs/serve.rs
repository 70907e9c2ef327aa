//! `zoolock serve` as its operator sees it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::{ChildStderr, Stdio};

use crate::common::{PATIENCE, Running, Sandbox, wait_until};
use rcgen::generate_simple_self_signed;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

/// A server whose notes are read.
struct Serving {
    running: Running,
    notes: BufReader<ChildStderr>,
}

impl Serving {
    fn start(sandbox: &Sandbox, args: &[&str]) -> Self {
        let mut command = sandbox.zoolock([&["serve"], args].concat());
        command.stdout(Stdio::null());
        let mut running = Running(command.spawn().expect("the command starts"));
        let notes = BufReader::new(running.0.stderr.take().expect("it is piped"));
        Self { running, notes }
    }

    fn note(&mut self) -> String {
        let mut line = String::new();
        self.notes.read_line(&mut line).expect("text");
        line.trim_end().to_owned()
    }

    /// The address in the next note, which begins so.
    fn address(&mut self, note: &str) -> SocketAddr {
        let line = self.note();
        let text = line.strip_prefix("zoolock: ").unwrap_or(&line).strip_prefix(note);
        let text = text.unwrap_or_else(|| panic!("{note:?} is not the start of {line:?}"));
        text.trim().trim_end_matches("/metrics").parse().expect("an address")
    }

    fn stop(mut self) {
        self.running.signal(Signal::TERM);
        assert_eq!(self.running.code(), 0);
    }
}

fn connect(addr: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(addr).expect("it listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    socket
}

fn say(addr: SocketAddr, text: &str) -> String {
    let mut socket = connect(addr);
    socket.write_all(text.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    // A reset is an end too.
    let _ = socket.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(addr: SocketAddr, path: &str) -> String {
    say(addr, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
}

/// Begins a session, and returns the timeout granted.
fn greet(socket: &mut TcpStream, timeout_ms: i32) -> i32 {
    let mut greeting = Vec::new();
    greeting.extend(44_i32.to_be_bytes());
    greeting.extend([0; 12]);
    greeting.extend(timeout_ms.to_be_bytes());
    greeting.extend([0; 8]);
    greeting.extend(16_i32.to_be_bytes());
    greeting.extend([0; 16]);
    socket.write_all(&greeting).expect("it reads");
    let mut answer = [0; 4 + 36];
    socket.read_exact(&mut answer).expect("it answers");
    answer[8..12].try_into().map(i32::from_be_bytes).expect("four bytes")
}

#[test]
fn readiness_is_notified_and_metrics_are_served() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("notify");
    let notify = UnixDatagram::bind(&path).expect("a socket");
    notify.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let mut command = sandbox.zoolock(["serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", &path).stdout(Stdio::null());
    let mut running = Running(command.spawn().expect("the command starts"));
    let notes = BufReader::new(running.0.stderr.take().expect("it is piped"));
    let mut serving = Serving { running, notes };
    let mut heard = [0; 64];
    let len = notify.recv(&mut heard).expect("a message");
    assert_eq!(&heard[..len], b"READY=1\n");
    let addr = serving.address("serving on ");
    let metrics = serving.address("metrics at http://");
    assert_eq!(say(addr, "ruok"), "imok");
    assert!(say(addr, "cons").contains("not in the whitelist"));
    assert!(get(metrics, "/ready").starts_with("HTTP/1.1 200"));
    assert!(get(metrics, "/metrics").contains("\nznode_count 5\n"));
    serving.stop();
    let len = notify.recv(&mut heard).expect("a message");
    assert_eq!(&heard[..len], b"STOPPING=1\n");
}

#[test]
fn timeout_limit_and_word_flags_take_effect() {
    let sandbox = Sandbox::new();
    let mut serving = Serving::start(
        &sandbox,
        &[
            "--listen",
            "127.0.0.1:0",
            "--tick",
            "100ms",
            "--min-session-timeout",
            "3s",
            "--max-session-timeout",
            "7s",
            "--max-connections-per-address",
            "2",
            "--words",
            "conf,ruok",
        ],
    );
    let addr = serving.address("serving on ");
    let (mut short, mut long) = (connect(addr), connect(addr));
    assert_eq!(greet(&mut short, 1), 3000);
    assert_eq!(greet(&mut long, 100_000), 7000);
    assert_eq!(say(addr, "conf"), "");
    drop(short);
    wait_until("there is room again", || say(addr, "ruok") == "imok");
    let mut conf = String::new();
    wait_until("that one is gone too", || {
        conf = say(addr, "conf");
        !conf.is_empty()
    });
    for line in ["tickTime=100", "minSessionTimeout=3000", "maxSessionTimeout=7000", "maxClientCnxns=2"] {
        assert!(conf.contains(line), "{line} is not in {conf}");
    }
    serving.stop();
}

#[test]
fn tls_listens_on_its_own_address() {
    let sandbox = Sandbox::new();
    let made = generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let (certificate, key) = (sandbox.path("c.pem"), sandbox.path("k.pem"));
    std::fs::write(&certificate, made.cert.pem()).expect("writable");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("writable");
    let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
    let mut args = vec!["--tls-listen", "127.0.0.1:0", "--tls-cert", &certificate, "--tls-key", &key];
    args.extend(["--metrics", "127.0.0.1:0", "--require-auth", "--tls-client-ca", &certificate]);
    let mut serving = Serving::start(&sandbox, &args);
    let tls = serving.address("serving TLS on ");
    let metrics = serving.address("metrics at http://");
    assert_eq!(say(tls, "ruok"), "");
    wait_until("the handshake is counted", || {
        get(metrics, "/metrics").contains("\nunsuccessful_handshake 1\n")
    });
    serving.stop();
}

#[test]
fn required_accounts_are_enforced() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("users");
    // me:pw
    std::fs::write(&file, "me:xlpJGzVhaayvpHfFn/RwowgwqI4=\n").expect("writable");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("ours");
    let file = file.display().to_string();
    let mut serving =
        Serving::start(&sandbox, &["--listen", "127.0.0.1:0", "--require-auth", "--users", &file]);
    let addr = serving.address("serving on ").to_string();
    let credentials = sandbox.path("credentials");
    std::fs::write(&credentials, "me:pw\n").expect("writable");
    std::fs::set_permissions(&credentials, PermissionsExt::from_mode(0o600)).expect("ours");
    let auth = format!("digest:@{}", credentials.display());
    let done = sandbox.output(&["ls", "--connect", &addr, "--auth", &auth]);
    assert_eq!(done.code, 0, "{done:?}");
    let done = sandbox.output(&["ls", "--connect", &addr, "--connect-timeout", "2s"]);
    assert_eq!(done.code, 77, "{done:?}");
    std::fs::write(&credentials, "me:wp\n").expect("writable");
    let done = sandbox.output(&["ls", "--connect", &addr, "--auth", &auth]);
    assert_eq!(done.code, 77, "{done:?}");
    serving.stop();
}

/// The memory of a process, in KiB.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is alive");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn ten_thousand_idle_sessions_cost_little() {
    // As many as this process may have, where that is less.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let count = files.saturating_sub(200).min(10_000);
    let sandbox = Sandbox::new();
    let mut serving = Serving::start(&sandbox, &["--listen", "127.0.0.1:0", "--max-session-timeout", "1h"]);
    let addr = serving.address("serving on ");
    let pid = serving.running.0.id();
    let mut first = connect(addr);
    greet(&mut first, 3_600_000);
    let before = memory(pid);
    let idle: Vec<TcpStream> = (1..count)
        .map(|_| {
            let mut socket = connect(addr);
            greet(&mut socket, 3_600_000);
            socket
        })
        .collect();
    let each = (memory(pid) - before) * 1024 / count;
    println!("{count} idle sessions cost {each} bytes each");
    assert!(say(addr, "srvr").contains(&format!("\nConnections: {}\n", count + 1)));
    assert!(each < 6_000, "{each} bytes each");
    drop(idle);
    wait_until("they are gone", || say(addr, "srvr").contains("\nConnections: 2\n"));
    serving.stop();
}
