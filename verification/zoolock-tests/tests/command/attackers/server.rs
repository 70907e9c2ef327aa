//! Attacks by a server on its clients.

use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use zoolock_tests::locks::settings;
use zoolock_tests::{ZoolockBinary, opcode};
use zoolock_wire::{ConnectResponse, Hidden, Reader, ReplyHeader, RequestHeader, Stat, Writer};

use crate::attackers::{BOUND, is_unsafe, panics, safe_outputs};

const SESSION: i64 = 0x1234_5678_9abc_def0;
const ZXID: i64 = 1 << 32 | 7;
/// Text with characters that `is_unsafe` finds.
const TRAP: &str = "\u{1b}]0;pwned\u{7}\u{1b}[2J\u{202e}";

/// The behaviour of a hostile server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    // Before the session is open.
    Silent,
    ClosesConnection,
    Garbage,
    HugeFrame,
    NegativeFrame,
    ShortConnectResponse,
    NegativePasswordLength,
    ZeroTimeout,
    ZeroSession,
    // After the session is open.
    NeverAnswers,
    WrongXid,
    EmptyReply,
    HugeReply,
    UnknownError,
    WrongReplyType,
    UnrequestedEvents,
    ManyEvents,
    EndlessEvents,
    HugeList,
    ReplacedSession,
    FallingZxid,
    ClosesOnRequest,
}

const ATTACKS: [Attack; 22] = [
    Attack::Silent,
    Attack::ClosesConnection,
    Attack::Garbage,
    Attack::HugeFrame,
    Attack::NegativeFrame,
    Attack::ShortConnectResponse,
    Attack::NegativePasswordLength,
    Attack::ZeroTimeout,
    Attack::ZeroSession,
    Attack::NeverAnswers,
    Attack::WrongXid,
    Attack::EmptyReply,
    Attack::HugeReply,
    Attack::UnknownError,
    Attack::WrongReplyType,
    Attack::UnrequestedEvents,
    Attack::ManyEvents,
    Attack::EndlessEvents,
    Attack::HugeList,
    Attack::ReplacedSession,
    Attack::FallingZxid,
    Attack::ClosesOnRequest,
];

/// Number of events that `ManyEvents` sends before an answer, and `EndlessEvents` in one write.
const MANY_EVENTS: usize = 2_000;

/// Maximum memory of a command that a hostile server attacks, in KiB.
const MAX_MEMORY: u64 = 64 << 10;

/// A hostile server. It ends when it is dropped.
struct Hostile {
    address: String,
    serving: JoinHandle<()>,
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Starts a server that calls `treat` with each connection.
async fn start<F: Future<Output = ()> + Send + 'static>(
    treat: impl Fn(TcpStream) -> F + Send + 'static,
) -> Hostile {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listening");
    let address = listener.local_addr().expect("bound").to_string();
    let serving = tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(treat(client));
        }
    });
    Hostile { address, serving }
}

/// Returns a frame with the content that `write` writes.
fn frame(write: impl FnOnce(&mut Writer<'_>)) -> BytesMut {
    let mut out = BytesMut::new();
    Writer::frame(&mut out, write);
    out
}

/// Returns a reply with the body that `write` writes.
fn reply(xid: i32, err: i32, write: impl FnOnce(&mut Writer<'_>)) -> BytesMut {
    frame(|writer| {
        ReplyHeader { xid, zxid: ZXID, err }.encode(writer);
        write(writer);
    })
}

fn empty(_: &mut Writer<'_>) {}

fn stat(ephemeral_owner: i64) -> Stat {
    Stat {
        czxid: ZXID,
        mzxid: ZXID,
        ephemeral_owner,
        data_length: 1 << 20,
        num_children: 1,
        pzxid: ZXID,
        ..Stat::default()
    }
}

fn connect_response(timeout_ms: i32, session: i64) -> BytesMut {
    let password = Hidden(vec![7; 16]);
    let response = ConnectResponse { protocol: 0, timeout_ms, session, password, read_only: Some(false) };
    frame(|writer| response.encode(writer))
}

/// Returns the answer to a connect request, and whether the session is open after it.
fn answer_connect(attack: Attack) -> (BytesMut, bool) {
    match attack {
        Attack::Silent => (BytesMut::new(), false),
        Attack::Garbage => (BytesMut::from(TRAP.repeat(50).as_str()), false),
        Attack::HugeFrame => (BytesMut::from(&[&i32::MAX.to_be_bytes()[..], &[0; 100]].concat()[..]), false),
        Attack::NegativeFrame => (BytesMut::from(&(-5i32).to_be_bytes()[..]), false),
        Attack::ShortConnectResponse => {
            let short = frame(|writer| {
                writer.int(0);
                writer.int(10_000);
            });
            (short, false)
        }
        Attack::NegativePasswordLength => {
            let mut response = connect_response(10_000, SESSION);
            // The length of the password follows the frame's length, the version, the timeout and the session.
            response[20..24].copy_from_slice(&(-7i32).to_be_bytes());
            (response, false)
        }
        Attack::ZeroTimeout => (connect_response(0, SESSION), true),
        Attack::ZeroSession => (connect_response(10_000, 0), true),
        Attack::ReplacedSession => {
            static CONNECTIONS: AtomicI64 = AtomicI64::new(0);
            (connect_response(10_000, SESSION + CONNECTIONS.fetch_add(1, Ordering::Relaxed)), true)
        }
        _ => (connect_response(10_000, SESSION), true),
    }
}

/// Returns the answer to a request, or `None` to close the connection.
fn answer(attack: Attack, xid: i32, op: i32) -> Option<BytesMut> {
    if matches!(attack, Attack::ClosesOnRequest | Attack::ReplacedSession) {
        return None;
    }
    if attack == Attack::FallingZxid {
        static REPLIES: AtomicI64 = AtomicI64::new(0);
        let zxid = ZXID - REPLIES.fetch_add(1, Ordering::Relaxed);
        return Some(frame(|writer| ReplyHeader { xid, zxid, err: 0 }.encode(writer)));
    }
    if xid == opcode::XID_PING {
        return Some(reply(xid, 0, empty));
    }
    let with_stat = |xid, err, owner| reply(xid, err, |writer| stat(owner).encode(writer));
    Some(match attack {
        Attack::WrongXid => with_stat(xid.wrapping_add(1000), 0, SESSION),
        Attack::EmptyReply => reply(xid, 0, empty),
        Attack::HugeReply => {
            let mut huge = reply(xid, 0, empty);
            huge[..4].copy_from_slice(&i32::MAX.to_be_bytes());
            huge
        }
        Attack::UnknownError => reply(xid, 4711, empty),
        // The body of a reply to `create2`, whatever the request was.
        Attack::WrongReplyType => reply(xid, 0, |writer| {
            writer.string(TRAP);
            stat(SESSION).encode(writer);
        }),
        Attack::UnrequestedEvents => {
            let mut events = BytesMut::new();
            for (kind, path) in [(2, "/locks"), (4, TRAP), (99, ""), (-1, "/")] {
                events.extend_from_slice(&event(kind, path));
            }
            events.extend_from_slice(&with_stat(xid, if op == opcode::EXISTS { 0 } else { -101 }, 1));
            events
        }
        Attack::ManyEvents => {
            let mut events = event(4, "/locks/nightly").repeat(MANY_EVENTS);
            events.extend_from_slice(&reply(xid, -101, empty));
            BytesMut::from(&events[..])
        }
        Attack::HugeList => reply(xid, 0, |writer| writer.int(i32::MAX)),
        _ => BytesMut::new(),
    })
}

fn event(kind: i32, path: &str) -> BytesMut {
    reply(opcode::XID_EVENT, 0, |writer| {
        writer.int(kind);
        writer.int(3);
        writer.string(path);
    })
}

/// Serves a connection. `greet` answers until the session is open, and `answer` after that.
async fn serve(
    mut client: TcpStream,
    greet: impl Fn() -> (BytesMut, bool),
    answer: impl Fn(RequestHeader, &mut Reader<'_>) -> Option<BytesMut>,
) {
    let mut session_open = false;
    loop {
        let Ok(length) = client.read_i32().await else { return };
        let mut request =
            vec![0; usize::try_from(length).expect("the client sends a valid length").min(1 << 20)];
        if client.read_exact(&mut request).await.is_err() {
            return;
        }
        let bytes = if session_open {
            let mut reader = Reader::new(&request);
            let Ok(header) = RequestHeader::decode(&mut reader) else { return };
            let Some(bytes) = answer(header, &mut reader) else { return };
            bytes
        } else {
            let (bytes, opens) = greet();
            session_open = opens;
            bytes
        };
        if client.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Opens the session, then sends events until the connection ends.
async fn flood(mut client: TcpStream) {
    let (greeting, _) = answer_connect(Attack::EndlessEvents);
    let mut request = vec![0; 1 << 10];
    let mut sent = match client.read(&mut request).await {
        Ok(bytes) if bytes > 0 => client.write_all(&greeting).await,
        _ => return,
    };
    let events = event(4, "/locks/nightly").repeat(MANY_EVENTS);
    while sent.is_ok() {
        sent = client.write_all(&events).await;
    }
}

/// Serves a connection with the behaviour of `attack`.
async fn serve_attack(client: TcpStream, attack: Attack) {
    if attack == Attack::EndlessEvents {
        flood(client).await;
    } else if attack != Attack::ClosesConnection {
        let answer = move |header: RequestHeader, _: &mut Reader<'_>| answer(attack, header.xid, header.op);
        serve(client, move || answer_connect(attack), answer).await;
    }
}

/// Uses the library as a program does. Returns the error of the connect, or the result of the lock
/// call.
async fn try_to_lock(address: &str) -> Result<(), zoolock::Error> {
    let zl = settings().connect_timeout(Duration::from_secs(1)).connect(address).await?;
    let locked = zl.mutex("nightly").lock_timeout(Duration::from_secs(1)).await.map(drop);
    let snapshot = timeout(Duration::from_secs(2), zl.admin().snapshot("nightly")).await;
    let listed = timeout(Duration::from_secs(2), zl.admin().locks(None, usize::MAX)).await;
    drop((snapshot, listed));
    zl.close().await;
    locked
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_server_causes_library_error_in_time() {
    panics();
    let mut attempts = tokio::task::JoinSet::new();
    for attack in ATTACKS {
        attempts.spawn(async move {
            let server = start(move |client| serve_attack(client, attack)).await;
            let outcome = timeout(BOUND, try_to_lock(&server.address)).await;
            match outcome.unwrap_or_else(|_| panic!("{attack:?} makes the library hang")) {
                Ok(()) => panic!("{attack:?} makes the library hold the lock"),
                Err(error) => {
                    let words = format!("{error} {error:?}");
                    assert!(!words.contains("123456789abcdef0"), "{attack:?}: {words}");
                    assert!(!error.to_string().contains(is_unsafe), "{attack:?}: {error:?}");
                }
            }
        });
    }
    attempts.join_all().await;
    assert_eq!(panics(), 0);
}

/// Runs a command to its end. Returns its output and its maximum memory in KiB.
async fn run(mut command: tokio::process::Command) -> (Output, u64) {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let child = command.spawn().expect("command started");
    let status = format!("/proc/{}/status", child.id().expect("child was not reaped"));
    let ended = child.wait_with_output();
    tokio::pin!(ended);
    let mut most = 0;
    loop {
        let status = std::fs::read_to_string(&status).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|peak| peak.trim().trim_end_matches(" kB").parse().ok());
        most = most.max(peak.unwrap_or(0));
        tokio::select! {
            output = &mut ended => return (output.expect("the output is read"), most),
            () = sleep(Duration::from_millis(10)) => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_server_causes_command_error_in_time() {
    let zoolock = ZoolockBinary::find().expect("zoolock was built");
    const RUN: &[&str] = &["run", "--timeout", "1s", "nightly", "--", "echo", "ran"];
    const LIST: &[&str] = &["ls"];
    let mut attempts = tokio::task::JoinSet::new();
    for attack in ATTACKS {
        for args in [RUN, LIST] {
            let mut command = zoolock.command(args);
            attempts.spawn(async move {
                let server = start(move |client| serve_attack(client, attack)).await;
                command.env("ZOOLOCK_CONNECT", &server.address).env("ZOOLOCK_CONNECT_TIMEOUT", "1s");
                let done = timeout(BOUND, run(command)).await;
                let (done, memory) = done.unwrap_or_else(|_| panic!("{attack:?} makes the command hang"));
                let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
                assert!(done.stdout.is_empty(), "{attack:?}: CMD ran, or a lock is listed");
                // The expected exit code is 69. A panic would give 101. The code 75 would mean that
                // the lock is held.
                let code = done.status.code();
                println!("{attack:?} {args:?}: {code:?}, {memory} KiB, {stderr}");
                // With `ManyEvents` the server also answers that the znode does not exist, so `ls` lists nothing.
                let lists_nothing = attack == Attack::ManyEvents && args == LIST && code == Some(0);
                assert!(lists_nothing || code == Some(69), "{attack:?}: {code:?} {stderr}");
                assert!(
                    stderr.starts_with("zoolock: ") && !stderr.contains(is_unsafe),
                    "{attack:?}: {stderr:?}"
                );
                assert!(memory <= MAX_MEMORY, "{attack:?}: {memory} KiB");
                memory
            });
        }
    }
    // A command can end before its memory is read, but most commands do not.
    let memories = attempts.join_all().await;
    let seen = memories.iter().filter(|memory| **memory > 0).count();
    assert!(seen > memories.len() / 2, "the memory of {seen} commands was seen");
}

/// Serves a tree with one lock in which every text contains [`TRAP`].
async fn serve_trapped_tree(client: TcpStream) {
    let answer = |header: RequestHeader, reader: &mut Reader<'_>| {
        let path = reader.string("path").unwrap_or_default();
        Some(answer_from_trapped_tree(header.xid, header.op, &path))
    };
    serve(client, || (connect_response(10_000, SESSION), true), answer).await;
}

fn answer_from_trapped_tree(xid: i32, op: i32, path: &str) -> BytesMut {
    if xid == opcode::XID_PING {
        return reply(xid, 0, empty);
    }
    let child = match path.matches('/').count() {
        1 => format!("evil{TRAP}"),
        _ => "lock-0000000007".to_owned(),
    };
    let note = TRAP.replace('\u{1b}', "\\u001b").replace('\u{7}', "\\u0007");
    let data = match path.contains("lock-") {
        true => {
            format!("{{\"v\":1,\"host\":\"{note}\",\"program\":\"{note}\",\"note\":\"{note}\",\"pid\":1}}")
        }
        false => String::new(),
    };
    let owner = if path.contains("lock-") { SESSION } else { 0 };
    match op {
        opcode::GET_DATA => reply(xid, 0, |writer| {
            writer.string(&data);
            stat(owner).encode(writer);
        }),
        opcode::EXISTS => reply(xid, 0, |writer| stat(owner).encode(writer)),
        opcode::GET_CHILDREN => reply(xid, 0, |writer| writer.strings(&[&child])),
        opcode::GET_CHILDREN2 => reply(xid, 0, |writer| {
            writer.strings(&[&child]);
            stat(0).encode(writer);
        }),
        opcode::SYNC => reply(xid, 0, |writer| writer.string(path)),
        opcode::CLOSE_SESSION => reply(xid, 0, empty),
        _ => reply(xid, -6, empty),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_escapes_from_server_are_shown_escaped() {
    let server = start(serve_trapped_tree).await;
    let zoolock = ZoolockBinary::find().expect("zoolock was built");
    let commands = [
        &["ls"][..],
        &["ls", "--json"],
        &["ls", "--color", "never"],
        &["deadlocks"],
        &["deadlocks", "--json"],
        &["show", "evil"],
        &["show", "evil", "--json"],
        &["why", "evil"],
        &["why", "evil", "--json"],
        &["doctor"],
        &["doctor", "--json"],
    ];
    let outputs = safe_outputs(&server.address, &zoolock, &commands).await;
    assert!(outputs.iter().all(|output| !output.contains("123456789abcdef0")), "{outputs:?}");
    // If too few commands showed the text, the checks above would prove nothing.
    let shown = outputs.iter().filter(|output| output.contains("pwned")).count();
    assert!(shown >= 4, "only {shown} commands show the text");
    assert!(TRAP.contains(is_unsafe));
}
