//! `zoolock serve`: its flags, limits and notifications.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::{ChildStderr, Command, Stdio};

use crate::common::process_tree::{signal, wait_until_no_zombie_of};
use crate::common::{PATIENCE, Running, Sandbox, http_get, is_alive, read_until, server_with, wait_until};
use crate::terminal::Terminal;
use rcgen::generate_simple_self_signed;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

/// A server whose standard error the test reads.
struct ServeProcess {
    running: Running,
    stderr: BufReader<ChildStderr>,
}

impl ServeProcess {
    fn start(sandbox: &Sandbox, args: &[&str]) -> Self {
        Self::spawn(sandbox.zoolock([&["serve"], args].concat()))
    }

    fn spawn(mut command: Command) -> Self {
        let mut running = Running(command.stdout(Stdio::null()).spawn().expect("zoolock starts"));
        let stderr = running.take_stderr();
        Self { running, stderr }
    }

    /// Returns the address in the next line, which must start with `prefix`.
    fn address(&mut self, prefix: &str) -> SocketAddr {
        let mut line = String::new();
        self.stderr.read_line(&mut line).expect("UTF-8");
        let line = line.trim_end();
        let text = line.strip_prefix("zoolock: ").unwrap_or(line).strip_prefix(prefix);
        let text = text.unwrap_or_else(|| panic!("{line:?} does not start with {prefix:?}"));
        text.trim().trim_end_matches("/metrics").parse().expect("an address")
    }

    fn stop(mut self) {
        self.running.signal(Signal::TERM);
        assert_eq!(self.running.code(), 0);
    }
}

fn connect(addr: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(addr).expect("the server listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("timeout set");
    socket
}

/// Sends a four-letter word, and returns the answer.
fn four_letter_word(addr: SocketAddr, word: &str) -> String {
    let mut socket = connect(addr);
    socket.write_all(word.as_bytes()).expect("the server reads");
    let mut answer = Vec::new();
    // The server may reset the connection instead of closing it, so errors are ignored.
    let _ = socket.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Creates a session, and returns the negotiated timeout.
fn create_session(socket: &mut TcpStream, timeout_ms: i32) -> i32 {
    let mut request = Vec::new();
    request.extend(44_i32.to_be_bytes());
    request.extend([0; 12]);
    request.extend(timeout_ms.to_be_bytes());
    request.extend([0; 8]);
    request.extend(16_i32.to_be_bytes());
    request.extend([0; 16]);
    socket.write_all(&request).expect("the server reads");
    let mut answer = [0; 4 + 36];
    socket.read_exact(&mut answer).expect("the server answers");
    answer[8..12].try_into().map(i32::from_be_bytes).expect("four bytes")
}

#[test]
fn data_directory_of_another_version_is_named() {
    let sandbox = Sandbox::new();
    let (data, format) = (sandbox.path("data"), sandbox.path("data/format"));
    let args = ["--data", data.to_str().expect("UTF-8")];
    let start = || {
        let (server, address) = server_with(&sandbox, &args);
        assert_eq!(sandbox.output(&["run", "--connect", &address, "x", "--", "true"]).code, 0);
        drop(server);
    };
    let refused = |flags: &[&str], named: &str| {
        let done = sandbox.output(&[&["serve", "--listen", "127.0.0.1:0"], &args[..], flags].concat());
        assert!(done.code == 64 && done.stderr.contains(named), "{done:?}");
        assert!(done.stderr.contains("this is format ") && !done.stderr.contains("--recover"), "{done:?}");
    };
    start();
    let ours = std::fs::read_to_string(&format).expect("the file exists");
    std::fs::write(&format, "format 99, zoolock 9.9.0\n").expect("file written");
    for flags in [&[][..], &["--recover=yes"]] {
        refused(flags, "was written by format 99, zoolock 9.9.0");
    }
    // Builds that recorded no format had the same one, or another.
    std::fs::remove_file(&format).expect("the file exists");
    start();
    assert_eq!(std::fs::read_to_string(&format).expect("the file exists"), ours);
    std::fs::remove_file(&format).expect("the file exists");
    std::fs::remove_file(sandbox.path("data/end-of-log")).expect("the file exists");
    refused(&[], "a build that recorded no format");
}

#[test]
fn readiness_is_notified_and_metrics_are_served() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("notify");
    let notify = UnixDatagram::bind(&path).expect("socket bound");
    notify.set_read_timeout(Some(PATIENCE)).expect("timeout set");
    let mut command = sandbox.zoolock(["serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", &path);
    let mut serving = ServeProcess::spawn(command);
    let mut message = [0; 64];
    let len = notify.recv(&mut message).expect("a message");
    assert_eq!(&message[..len], b"READY=1\n");
    let addr = serving.address("serving on ");
    let metrics = serving.address("metrics at http://");
    assert_eq!(four_letter_word(addr, "ruok"), "imok");
    assert!(four_letter_word(addr, "cons").contains("not in the whitelist"));
    assert!(http_get(metrics, "/ready").starts_with("HTTP/1.1 200"));
    assert!(http_get(metrics, "/metrics").contains("\nznode_count 5\n"));
    serving.stop();
    let len = notify.recv(&mut message).expect("a message");
    assert_eq!(&message[..len], b"STOPPING=1\n");
}

#[test]
fn timeout_limit_and_word_flags_take_effect() {
    let sandbox = Sandbox::new();
    let mut serving = ServeProcess::start(
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
    assert_eq!(create_session(&mut short, 1), 3000);
    assert_eq!(create_session(&mut long, 100_000), 7000);
    assert_eq!(four_letter_word(addr, "conf"), "");
    drop(short);
    wait_until("the server accepts a connection again", || four_letter_word(addr, "ruok") == "imok");
    let mut conf = String::new();
    wait_until("the last connection has closed too", || {
        conf = four_letter_word(addr, "conf");
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
    let generated = generate_simple_self_signed(vec!["localhost".to_owned()]).expect("certificate generated");
    let (certificate, key) = (sandbox.path("c.pem"), sandbox.path("k.pem"));
    std::fs::write(&certificate, generated.cert.pem()).expect("file written");
    std::fs::write(&key, generated.signing_key.serialize_pem()).expect("file written");
    let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
    let mut args = vec!["--tls-listen", "127.0.0.1:0", "--tls-cert", &certificate, "--tls-key", &key];
    args.extend(["--metrics", "127.0.0.1:0", "--require-auth", "--tls-client-ca", &certificate]);
    let mut serving = ServeProcess::start(&sandbox, &args);
    let tls = serving.address("serving TLS on ");
    let metrics = serving.address("metrics at http://");
    assert_eq!(four_letter_word(tls, "ruok"), "");
    wait_until("the failed handshake is counted", || {
        http_get(metrics, "/metrics").contains("\nunsuccessful_handshake 1\n")
    });
    serving.stop();
}

#[test]
fn required_accounts_are_enforced() {
    let sandbox = Sandbox::new();
    // The password is pw.
    let file = sandbox.write_private("users", "me:xlpJGzVhaayvpHfFn/RwowgwqI4=\n");
    let mut serving =
        ServeProcess::start(&sandbox, &["--listen", "127.0.0.1:0", "--require-auth", "--users", &file]);
    let addr = serving.address("serving on ").to_string();
    let credentials = sandbox.write_private("credentials", "me:pw\n");
    let auth = format!("digest:@{credentials}");
    let done = sandbox.output(&["ls", "--connect", &addr, "--auth", &auth]);
    assert_eq!(done.code, 0, "{done:?}");
    let done = sandbox.output(&["ls", "--connect", &addr, "ZOOLOCK_CONNECT_TIMEOUT=2s"]);
    assert_eq!(done.code, 77, "{done:?}");
    std::fs::write(&credentials, "me:wp\n").expect("file written");
    let done = sandbox.output(&["ls", "--connect", &addr, "--auth", &auth]);
    assert_eq!(done.code, 77, "{done:?}");
    serving.stop();
}

#[test]
fn server_without_terminal_ignores_hup() {
    let sandbox = Sandbox::new();
    for verb in [&["serve", "--listen", "127.0.0.1:0"][..], &["ui", "--listen", "127.0.0.1:0"]] {
        let mut command = sandbox.command("setsid");
        command.arg(env!("CARGO_BIN_EXE_zoolock")).args(verb);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = Running(command.spawn().expect("setsid starts"));
        let (mut stdout, mut stderr) = (running.take_stdout(), running.take_stderr());
        let mut printed = String::new();
        match verb[0] {
            "serve" => read_until(&mut stderr, &mut printed, "serving on "),
            _ => read_until(&mut stdout, &mut String::new(), "http://"),
        }
        running.signal(Signal::HUP);
        read_until(&mut stderr, &mut printed, "ignored HUP");
        running.signal(Signal::QUIT);
        read_until(&mut stderr, &mut printed, "QUIT received; stopping");
        assert_eq!(running.code(), 0, "{printed}");
    }
}

#[test]
fn server_reaps_inherited_children() {
    let sandbox = Sandbox::new();
    let line = format!(
        "sh -c 'while ! [ -e go ]; do sleep 0.02; done' & echo $! > child; exec {} serve --listen 127.0.0.1:0",
        env!("CARGO_BIN_EXE_zoolock")
    );
    let mut shell = sandbox.command("sh");
    shell.args(["-c", &line]).stderr(Stdio::piped());
    let mut serving = ServeProcess::spawn(shell);
    serving.address("serving on ");
    let child = sandbox.wait_for_file("child");
    std::fs::write(sandbox.path("go"), "").expect("file written");
    wait_until("the child has ended", || !is_alive(&child));
    wait_until_no_zombie_of(&serving.running.0.id().to_string());
    serving.stop();
}

#[test]
fn server_on_terminal_ends_on_hup() {
    let sandbox = Sandbox::new();
    let line = format!("echo $$ > pid; exec {} serve --listen 127.0.0.1:0", env!("CARGO_BIN_EXE_zoolock"));
    let mut terminal = Terminal::start(&sandbox, &line);
    terminal.read_until("serving on ");
    signal(&sandbox.wait_for_file("pid"), Signal::HUP);
    let rest = terminal.rest();
    assert!(rest.contains("HUP received; stopping"), "{rest}");
}

/// Returns the resident memory of a process, in KiB.
fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is alive");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the kernel reports VmRSS");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn ten_thousand_idle_sessions_cost_little() {
    // The test opens fewer sessions if the limit on open files is lower.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let count = files.saturating_sub(200).min(10_000);
    let sandbox = Sandbox::new();
    let mut serving =
        ServeProcess::start(&sandbox, &["--listen", "127.0.0.1:0", "--max-session-timeout", "1h"]);
    let addr = serving.address("serving on ");
    let pid = serving.running.0.id();
    let mut first = connect(addr);
    create_session(&mut first, 3_600_000);
    let before = resident_kib(pid);
    let idle: Vec<TcpStream> = (1..count)
        .map(|_| {
            let mut socket = connect(addr);
            create_session(&mut socket, 3_600_000);
            socket
        })
        .collect();
    let bytes_each = (resident_kib(pid) - before) * 1024 / count;
    println!("{count} idle sessions cost {bytes_each} bytes each");
    assert!(four_letter_word(addr, "srvr").contains(&format!("\nConnections: {}\n", count + 1)));
    assert!(bytes_each < 6_000, "{bytes_each} bytes each");
    drop(idle);
    wait_until("the connections have closed", || {
        four_letter_word(addr, "srvr").contains("\nConnections: 2\n")
    });
    serving.stop();
}

#[test]
fn empty_last_file_of_the_log_is_removed_with_a_note() {
    let sandbox = Sandbox::new();
    let args = ["--listen", "127.0.0.1:0", "--data", "data"];
    let mut server = ServeProcess::start(&sandbox, &args);
    let address = server.address("serving on ");
    assert_eq!(sandbox.output(&["--connect", &address.to_string(), "run", "x", "--", "true"]).code, 0);
    let answer = four_letter_word(address, "srvr");
    let zxid = answer.lines().find_map(|line| line.strip_prefix("Zxid: 0x")).expect("the last transaction");
    server.stop();
    let segment = sandbox.path("data").join(format!("log.{zxid:0>16}"));
    std::fs::write(&segment, "").expect("file written");
    let mut server = ServeProcess::start(&sandbox, &args);
    let mut line = String::new();
    server.stderr.read_line(&mut line).expect("UTF-8");
    assert!(line.contains("was empty and was removed; no acknowledged write"), "{line}");
    server.address("serving on ");
    assert!(!segment.exists());
    server.stop();
}

/// Runs a server on a directory, creates a session, and stops the server.
fn leave_session(sandbox: &Sandbox, data: &str) {
    let args = ["--listen", "127.0.0.1:0", "--data", data, "--tick", "200ms"];
    let mut serving = ServeProcess::start(sandbox, &args);
    let addr = serving.address("serving on ");
    create_session(&mut connect(addr), 4000);
    serving.stop();
}

#[test]
fn recover_asks_before_it_starts_from_what_is_left() {
    let sandbox = Sandbox::new();
    let data = sandbox.path("data").display().to_string();
    let args =
        |recover| ["--listen", "127.0.0.1:0", "--data", &data, "--tick", "50ms", recover].map(str::to_owned);
    leave_session(&sandbox, &data);
    // Nothing is wrong yet.
    let recover = args("--recover");
    let recover: Vec<&str> = recover.iter().map(String::as_str).collect();
    let mut serving = ServeProcess::start(&sandbox, &recover);
    let mut line = String::new();
    serving.stderr.read_line(&mut line).expect("UTF-8");
    assert!(line.contains("nothing to recover"), "{line}");
    serving.address("serving on ");
    serving.stop();
    let log = sandbox.path("data/log.0000000000000000");
    std::fs::remove_file(&log).expect("it exists");
    let refused = |args: &[&str]| {
        let output =
            sandbox.zoolock([&["serve"], args].concat()).stdin(Stdio::null()).output().expect("runs");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(69), "{stderr}");
        stderr
    };
    let stderr = refused(&recover[..recover.len() - 1]);
    assert!(
        stderr.contains("log.0000000000000000 is missing") && stderr.contains("zoolock serve --recover"),
        "{stderr}"
    );
    let stderr = refused(&recover);
    for part in [
        "can be restored: the state after transaction 0x0,",
        "is lost: all",
        "--recover=yes answers",
        "end-of-log",
    ] {
        assert!(stderr.contains(part), "no {part:?} in {stderr}");
    }
    assert!(sandbox.path("data/end-of-log").exists() && !log.exists(), "nothing was changed");
    let answered = args("--recover=yes");
    let answered: Vec<&str> = answered.iter().map(String::as_str).collect();
    let mut serving = ServeProcess::start(&sandbox, &answered);
    let mut lines = String::new();
    while !lines.contains("serving on ") {
        assert_ne!(serving.stderr.read_line(&mut lines).expect("UTF-8"), 0, "{lines}");
    }
    // The lost session of `leave_session` had a longer timeout than this server grants.
    assert!(lines.contains("clients are served after 4s"), "{lines}");
    serving.stop();
    assert!(sandbox.path("data/end-of-log.damaged").exists());
    leave_session(&sandbox, &data);
}

#[test]
fn recover_accepts_the_answer_of_a_terminal() {
    let sandbox = Sandbox::new();
    let data = sandbox.path("data").display().to_string();
    leave_session(&sandbox, &data);
    std::fs::remove_file(sandbox.path("data/end-of-log")).expect("it exists");
    let line = format!(
        "{} serve --listen 127.0.0.1:0 --data {data} --tick 50ms --recover",
        env!("CARGO_BIN_EXE_zoolock")
    );
    let mut terminal = Terminal::start(&sandbox, &line);
    terminal.read_until("[y/N] ");
    terminal.write(b"\n");
    assert!(terminal.rest().contains("end-of-log is missing"));
    let mut terminal = Terminal::start(&sandbox, &line);
    terminal.read_until("[y/N] ");
    terminal.write(b"y\n");
    terminal.read_until("serving on ");
    terminal.write(b"\x03");
    assert!(terminal.rest().contains("stopping"));
}

#[test]
fn data_directory_open_to_others_is_refused() {
    let sandbox = Sandbox::new();
    let data = sandbox.path("data");
    std::fs::create_dir(&data).expect("created");
    std::fs::set_permissions(&data, std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .expect("own directory");
    let path = data.display().to_string();
    let output =
        sandbox.zoolock(["serve", "--listen", "127.0.0.1:0", "--data", &path]).output().expect("runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(77), "{stderr}");
    assert!(stderr.contains(&format!("the data directory {path} has mode 0777")), "{stderr}");
}

#[test]
fn running_server_is_backed_up() {
    let sandbox = Sandbox::new();
    let times = ["--tick", "100ms", "--max-session-timeout", "6s"];
    let (server, address) = server_with(&sandbox, &[&["--data", "data"][..], &times].concat());
    let done = sandbox.output(&["run", "--connect", &address, "x", "--", "true"]);
    assert_eq!(done.code, 0, "{done:?}");
    let done = sandbox.output(&[&["serve", "--data", "data", "--backup", "copy"][..], &times].concat());
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stderr.contains("backed up all transactions up to "), "{done:?}");
    drop(server);
    let (server, address) = server_with(&sandbox, &[&["--data", "copy"][..], &times].concat());
    let history = sandbox.output(&["history", "--connect", &address, "x"]);
    assert_eq!(history.code, 0, "{history:?}");
    drop(server);
    for (args, code, why) in [
        (&["serve", "--backup", "other"][..], 64, "--data"),
        (
            &["serve", "--data", "data", "--backup", "copy", "--listen", "127.0.0.1:0"],
            64,
            "cannot be used with",
        ),
        (&["serve", "--data", "data", "--backup", "copy"], 64, "copy is not empty; choose a new directory"),
        (&["serve", "--data", "none", "--backup", "other"], 69, "cannot open the data directory"),
    ] {
        let done = sandbox.output(args);
        assert!(done.code == code && done.stderr.contains(why), "{args:?}: {done:?}");
    }
}
