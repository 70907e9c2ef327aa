//! Attacks by a server on its clients.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zoolock_tests::locks::settings;
use zoolock_tests::{ZoolockBinary, opcode};

use crate::attackers::{BOUND, is_unsafe, panics};

const SESSION: i64 = 0x1234_5678_9abc_def0;
const EVENT: i32 = -1;
const PING: i32 = -2;
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
    ClosesOnRequest,
}

const BEFORE: [Attack; 9] = [
    Attack::Silent,
    Attack::ClosesConnection,
    Attack::Garbage,
    Attack::HugeFrame,
    Attack::NegativeFrame,
    Attack::ShortConnectResponse,
    Attack::NegativePasswordLength,
    Attack::ZeroTimeout,
    Attack::ZeroSession,
];
const AFTER: [Attack; 8] = [
    Attack::NeverAnswers,
    Attack::WrongXid,
    Attack::EmptyReply,
    Attack::HugeReply,
    Attack::UnknownError,
    Attack::WrongReplyType,
    Attack::UnrequestedEvents,
    Attack::ClosesOnRequest,
];

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

/// A buffer with ZooKeeper's encoding.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn int(mut self, value: i32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn long(mut self, value: i64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn text(self, text: &str) -> Self {
        self.int(text.len().try_into().expect("short text")).raw(text.as_bytes())
    }

    fn framed(self) -> Vec<u8> {
        let length = i32::try_from(self.0.len()).expect("short text");
        [&length.to_be_bytes()[..], &self.0].concat()
    }
}

fn reply(xid: i32, error: i32) -> Bytes {
    Bytes::default().int(xid).long(1 << 32 | 7).int(error)
}

fn stat(owner: i64) -> Vec<u8> {
    let times = Bytes::default().long(1 << 32 | 7).long(1 << 32 | 7).long(0).long(0);
    let versions = times.int(0).int(0).int(0).long(owner);
    versions.int(1 << 20).int(1).long(1 << 32 | 7).0
}

fn connect_response(timeout: i32, session: i64, password: i32) -> Bytes {
    Bytes::default().int(0).int(timeout).long(session).int(password).raw(&[7; 16]).raw(&[0])
}

/// Returns the answer to a connect request, and whether the session is open after it.
fn greet(attack: Attack) -> (Vec<u8>, bool) {
    match attack {
        Attack::Garbage => (TRAP.repeat(50).into_bytes(), false),
        Attack::HugeFrame => ([&i32::MAX.to_be_bytes()[..], &[0; 100]].concat(), false),
        Attack::NegativeFrame => ((-5i32).to_be_bytes().to_vec(), false),
        Attack::ShortConnectResponse => (Bytes::default().int(0).int(10_000).framed(), false),
        Attack::NegativePasswordLength => (connect_response(10_000, SESSION, -7).framed(), false),
        Attack::ZeroTimeout => (connect_response(0, SESSION, 16).framed(), true),
        Attack::ZeroSession => (connect_response(10_000, 0, 16).framed(), true),
        _ => (connect_response(10_000, SESSION, 16).framed(), true),
    }
}

/// Returns the answer to a request.
fn answer(attack: Attack, xid: i32, op: i32) -> Vec<u8> {
    if xid == PING {
        return reply(xid, 0).framed();
    }
    match attack {
        Attack::NeverAnswers => Vec::new(),
        Attack::WrongXid => reply(xid.wrapping_add(1000), 0).raw(&stat(SESSION)).framed(),
        Attack::EmptyReply => reply(xid, 0).framed(),
        Attack::HugeReply => [&i32::MAX.to_be_bytes()[..], &reply(xid, 0).0].concat(),
        Attack::UnknownError => reply(xid, 4711).framed(),
        // The answer to another kind of request.
        Attack::WrongReplyType => reply(xid, 0).text(TRAP).raw(&stat(SESSION)).framed(),
        Attack::UnrequestedEvents => {
            let event = |kind, path| reply(EVENT, 0).int(kind).int(3).text(path).framed();
            let events = [event(2, "/locks"), event(4, TRAP), event(99, ""), event(-1, "/")].concat();
            [events, reply(xid, if op == opcode::EXISTS { 0 } else { -101 }).raw(&stat(1)).framed()].concat()
        }
        _ => Vec::new(),
    }
}

/// Serves a connection as the attack says.
async fn treat(mut client: TcpStream, attack: Attack) {
    if attack == Attack::ClosesConnection {
        return;
    }
    let mut session_open = false;
    loop {
        let Ok(length) = client.read_i32().await else { return };
        let mut request =
            vec![0; usize::try_from(length).expect("the client sends a valid length").min(1 << 20)];
        if client.read_exact(&mut request).await.is_err() {
            return;
        }
        let bytes = match (attack, session_open) {
            (Attack::Silent, _) => Vec::new(),
            (_, false) => {
                let (bytes, opens) = greet(attack);
                session_open = opens;
                bytes
            }
            (Attack::ClosesOnRequest, true) => return,
            (_, true) => {
                let word = |at: usize| request.get(at..at + 4).and_then(|word| word.try_into().ok());
                let (Some(xid), Some(op)) = (word(0), word(4)) else { return };
                answer(attack, i32::from_be_bytes(xid), i32::from_be_bytes(op))
            }
        };
        if client.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Uses the library as a program does, and returns the result of its lock call.
async fn lock_there(address: &str) -> Result<(), zoolock::Error> {
    let zl = settings().connect_timeout(Duration::from_secs(1)).connect(address).await?;
    let locked = zl.mutex("nightly").lock_timeout(Duration::from_secs(1)).await.map(drop);
    let snapshot = timeout(Duration::from_secs(2), zl.mutex("nightly").snapshot()).await;
    let listed = timeout(Duration::from_secs(2), zl.locks(None)).await;
    drop((snapshot, listed));
    zl.close().await;
    locked
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_server_causes_library_error_in_time() {
    panics();
    let mut attempts = tokio::task::JoinSet::new();
    for attack in BEFORE.into_iter().chain(AFTER) {
        attempts.spawn(async move {
            let server = start(move |client| treat(client, attack)).await;
            let outcome = timeout(BOUND, lock_there(&server.address)).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn hostile_server_causes_command_error_in_time() {
    let zoolock = ZoolockBinary::find().expect("zoolock was built");
    let mut attempts = tokio::task::JoinSet::new();
    for attack in BEFORE.into_iter().chain(AFTER) {
        let mut command = zoolock.command([
            "--connect-timeout",
            "1s",
            "run",
            "--timeout",
            "1s",
            "nightly",
            "--",
            "echo",
            "ran",
        ]);
        attempts.spawn(async move {
            let server = start(move |client| treat(client, attack)).await;
            command.env("ZOOLOCK_CONNECT", &server.address);
            let done = timeout(BOUND, command.output()).await;
            let done = done
                .unwrap_or_else(|_| panic!("{attack:?} makes the command hang"))
                .expect("command started");
            let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
            assert!(done.stdout.is_empty(), "{attack:?}: CMD ran");
            // These are the command's own exit codes. A panic would be 101.
            let code = done.status.code();
            assert!(matches!(code, Some(64 | 69 | 70 | 75 | 77)), "{attack:?}: {code:?} {stderr}");
            assert!(stderr.starts_with("zoolock: ") && !stderr.contains(is_unsafe), "{attack:?}: {stderr:?}");
        });
    }
    attempts.join_all().await;
}

/// Serves a tree with one lock in which every text contains [`TRAP`].
async fn serve_trapped_tree(mut client: TcpStream) {
    let mut session_open = false;
    loop {
        let Ok(length) = client.read_i32().await else { return };
        let mut request =
            vec![0; usize::try_from(length).expect("the client sends a valid length").min(1 << 20)];
        if client.read_exact(&mut request).await.is_err() {
            return;
        }
        let bytes = if session_open {
            let word = |at: usize| {
                let word = request.get(at..at + 4).and_then(|word| word.try_into().ok());
                word.map_or(0, i32::from_be_bytes)
            };
            let path = request.get(12..).and_then(|rest| rest.get(..usize::try_from(word(8)).unwrap_or(0)));
            let path = String::from_utf8_lossy(path.unwrap_or_default()).into_owned();
            answer_from_trapped_tree(word(0), word(4), &path)
        } else {
            session_open = true;
            greet(Attack::WrongReplyType).0
        };
        if client.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

fn answer_from_trapped_tree(xid: i32, op: i32, path: &str) -> Vec<u8> {
    if xid == PING {
        return reply(xid, 0).framed();
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
    let ok = reply(xid, 0);
    match op {
        opcode::GET_DATA => ok.text(&data).raw(&stat(owner)).framed(),
        opcode::EXISTS => ok.raw(&stat(owner)).framed(),
        opcode::GET_CHILDREN => ok.int(1).text(&child).framed(),
        opcode::GET_CHILDREN2 => ok.int(1).text(&child).raw(&stat(0)).framed(),
        opcode::SYNC => ok.text(path).framed(),
        _ => reply(xid, -6).framed(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_escapes_from_server_are_shown_escaped() {
    let server = start(serve_trapped_tree).await;
    let zoolock = ZoolockBinary::find().expect("zoolock was built");
    let mut shown = 0;
    for args in [
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
    ] {
        let mut command = zoolock.command(args);
        command.env("ZOOLOCK_CONNECT", &server.address).env("ZOOLOCK_CONNECT_TIMEOUT", "2s");
        let done = timeout(BOUND, command.output()).await.expect("command ended").expect("command started");
        let output =
            format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert_ne!(done.status.code(), Some(101), "{args:?} panics: {output}");
        assert!(!output.contains(is_unsafe), "{args:?}: {output:?}");
        assert!(!output.contains("123456789abcdef0"), "{args:?}: {output:?}");
        shown += usize::from(output.contains("pwned"));
    }
    // Otherwise the commands did not show the texts at all.
    assert!(shown >= 4, "only {shown} commands show the text");
    assert!(TRAP.contains(is_unsafe));
}
