//! A server that means harm to its clients.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zoolock_tests::{ZoolockBinary, opcode};

use crate::attackers::{BOUND, is_obeyed, panics};
use zoolock_tests::locks::settings;

const SESSION: i64 = 0x1234_5678_9abc_def0;
const EVENT: i32 = -1;
const PING: i32 = -2;
const TRAP: &str = "\u{1b}]0;pwned\u{7}\u{1b}[2J\u{202e}";

/// What it does to whoever comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    // Before there is a session.
    Silent,
    HangsUp,
    Garbage,
    HugeFrame,
    NegativeFrame,
    ShortHello,
    NegativePassword,
    NoTime,
    NoSession,
    // After.
    NeverAnswers,
    WrongXid,
    NoBody,
    HugeAnswer,
    UnknownError,
    OtherAnswer,
    EventsThatNobodyAskedFor,
    HangsUpOnRequests,
}

const BEFORE: [Manner; 9] = [
    Manner::Silent,
    Manner::HangsUp,
    Manner::Garbage,
    Manner::HugeFrame,
    Manner::NegativeFrame,
    Manner::ShortHello,
    Manner::NegativePassword,
    Manner::NoTime,
    Manner::NoSession,
];
const AFTER: [Manner; 8] = [
    Manner::NeverAnswers,
    Manner::WrongXid,
    Manner::NoBody,
    Manner::HugeAnswer,
    Manner::UnknownError,
    Manner::OtherAnswer,
    Manner::EventsThatNobodyAskedFor,
    Manner::HangsUpOnRequests,
];

/// It ends when this is dropped.
struct Hostile {
    address: String,
    serving: JoinHandle<()>,
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn start<F: Future<Output = ()> + Send + 'static>(
    treat: impl Fn(TcpStream) -> F + Send + 'static,
) -> Hostile {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let serving = tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(treat(client));
        }
    });
    Hostile { address, serving }
}

/// Bytes as the protocol writes them.
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
        self.int(text.len().try_into().expect("short")).raw(text.as_bytes())
    }

    fn framed(self) -> Vec<u8> {
        let length = i32::try_from(self.0.len()).expect("short");
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

fn hello(timeout: i32, session: i64, password: i32) -> Bytes {
    Bytes::default().int(0).int(timeout).long(session).int(password).raw(&[7; 16]).raw(&[0])
}

/// What answers a connect request, and whether it goes on.
fn greet(manner: Manner) -> (Vec<u8>, bool) {
    match manner {
        Manner::Garbage => (TRAP.repeat(50).into_bytes(), false),
        Manner::HugeFrame => ([&i32::MAX.to_be_bytes()[..], &[0; 100]].concat(), false),
        Manner::NegativeFrame => ((-5i32).to_be_bytes().to_vec(), false),
        Manner::ShortHello => (Bytes::default().int(0).int(10_000).framed(), false),
        Manner::NegativePassword => (hello(10_000, SESSION, -7).framed(), false),
        Manner::NoTime => (hello(0, SESSION, 16).framed(), true),
        Manner::NoSession => (hello(10_000, 0, 16).framed(), true),
        _ => (hello(10_000, SESSION, 16).framed(), true),
    }
}

fn answer(manner: Manner, xid: i32, op: i32) -> Vec<u8> {
    if xid == PING {
        return reply(xid, 0).framed();
    }
    match manner {
        Manner::NeverAnswers => Vec::new(),
        Manner::WrongXid => reply(xid.wrapping_add(1000), 0).raw(&stat(SESSION)).framed(),
        Manner::NoBody => reply(xid, 0).framed(),
        Manner::HugeAnswer => [&i32::MAX.to_be_bytes()[..], &reply(xid, 0).0].concat(),
        Manner::UnknownError => reply(xid, 4711).framed(),
        // As if it had been another request.
        Manner::OtherAnswer => reply(xid, 0).text(TRAP).raw(&stat(SESSION)).framed(),
        Manner::EventsThatNobodyAskedFor => {
            let event = |kind, path| reply(EVENT, 0).int(kind).int(3).text(path).framed();
            let events = [event(2, "/locks"), event(4, TRAP), event(99, ""), event(-1, "/")].concat();
            [events, reply(xid, if op == opcode::EXISTS { 0 } else { -101 }).raw(&stat(1)).framed()].concat()
        }
        _ => Vec::new(),
    }
}

async fn treat(mut client: TcpStream, manner: Manner) {
    if manner == Manner::HangsUp {
        return;
    }
    let mut greeted = false;
    loop {
        let Ok(length) = client.read_i32().await else { return };
        let mut request = vec![0; usize::try_from(length).expect("from a client of ours").min(1 << 20)];
        if client.read_exact(&mut request).await.is_err() {
            return;
        }
        let said = match (manner, greeted) {
            (Manner::Silent, _) => Vec::new(),
            (_, false) => {
                let (said, goes_on) = greet(manner);
                greeted = goes_on;
                said
            }
            (Manner::HangsUpOnRequests, true) => return,
            (_, true) => {
                let word = |at: usize| request.get(at..at + 4).and_then(|word| word.try_into().ok());
                let (Some(xid), Some(op)) = (word(0), word(4)) else { return };
                answer(manner, i32::from_be_bytes(xid), i32::from_be_bytes(op))
            }
        };
        if client.write_all(&said).await.is_err() {
            return;
        }
    }
}

/// What a program sees.
async fn lock_there(address: &str) -> Result<(), zoolock::Error> {
    let zl = settings().connect_timeout(Duration::from_secs(1)).connect(address).await?;
    let locked = zl.mutex("nightly").lock_timeout(Duration::from_secs(1)).await.map(drop);
    let seen = timeout(Duration::from_secs(2), zl.mutex("nightly").snapshot()).await;
    let listed = timeout(Duration::from_secs(2), zl.locks(None)).await;
    drop((seen, listed));
    zl.close().await;
    locked
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_gets_an_error_in_time_whatever_the_server_says() {
    panics();
    let mut tries = tokio::task::JoinSet::new();
    for manner in BEFORE.into_iter().chain(AFTER) {
        tries.spawn(async move {
            let server = start(move |client| treat(client, manner)).await;
            let outcome = timeout(BOUND, lock_there(&server.address)).await;
            match outcome.unwrap_or_else(|_| panic!("{manner:?} makes us hang")) {
                Ok(()) => panic!("{manner:?} makes us hold"),
                Err(error) => {
                    let words = format!("{error} {error:?}");
                    assert!(!words.contains("123456789abcdef0"), "{manner:?}: {words}");
                    assert!(!error.to_string().contains(is_obeyed), "{manner:?}: {error:?}");
                }
            }
        });
    }
    tries.join_all().await;
    assert_eq!(panics(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_ends_in_time_whatever_the_server_says() {
    let zoolock = ZoolockBinary::find().expect("built");
    let mut tries = tokio::task::JoinSet::new();
    for manner in BEFORE.into_iter().chain(AFTER) {
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
        tries.spawn(async move {
            let server = start(move |client| treat(client, manner)).await;
            command.env("ZOOLOCK_CONNECT", &server.address);
            let done = timeout(BOUND, command.output()).await;
            let done = done.unwrap_or_else(|_| panic!("{manner:?} makes it hang")).expect("it starts");
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            assert!(done.stdout.is_empty(), "{manner:?}: CMD ran");
            // It says that itself; a panic would be 101.
            let code = done.status.code();
            assert!(matches!(code, Some(64 | 69 | 70 | 75 | 77)), "{manner:?}: {code:?} {said}");
            assert!(said.starts_with("zoolock: ") && !said.contains(is_obeyed), "{manner:?}: {said:?}");
        });
    }
    tries.join_all().await;
}

/// Serves a tree of one lock whose every text is a trap.
async fn pretend(mut client: TcpStream) {
    let mut greeted = false;
    loop {
        let Ok(length) = client.read_i32().await else { return };
        let mut request = vec![0; usize::try_from(length).expect("from a client of ours").min(1 << 20)];
        if client.read_exact(&mut request).await.is_err() {
            return;
        }
        let said = if greeted {
            let word = |at: usize| {
                let word = request.get(at..at + 4).and_then(|word| word.try_into().ok());
                word.map_or(0, i32::from_be_bytes)
            };
            let path = request.get(12..).and_then(|rest| rest.get(..usize::try_from(word(8)).unwrap_or(0)));
            let path = String::from_utf8_lossy(path.unwrap_or_default()).into_owned();
            tell(word(0), word(4), &path)
        } else {
            greeted = true;
            greet(Manner::OtherAnswer).0
        };
        if client.write_all(&said).await.is_err() {
            return;
        }
    }
}

fn tell(xid: i32, op: i32, path: &str) -> Vec<u8> {
    if xid == PING {
        return reply(xid, 0).framed();
    }
    let below = match path.matches('/').count() {
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
        opcode::GET_CHILDREN => ok.int(1).text(&below).framed(),
        opcode::GET_CHILDREN2 => ok.int(1).text(&below).raw(&stat(0)).framed(),
        opcode::SYNC => ok.text(path).framed(),
        _ => reply(xid, -6).framed(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn traps_in_what_a_server_says_are_shown_and_not_obeyed() {
    let server = start(pretend).await;
    let zoolock = ZoolockBinary::find().expect("built");
    let name = format!("evil{TRAP}");
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
        let done = timeout(BOUND, command.output()).await.expect("it ends").expect("it starts");
        let said =
            format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert_ne!(done.status.code(), Some(101), "{args:?}: {said}");
        assert!(!said.contains(is_obeyed), "{args:?}: {said:?}");
        assert!(!said.contains("123456789abcdef0"), "{args:?}: {said:?}");
        shown += usize::from(said.contains("pwned"));
    }
    // Or the traps were never shown at all.
    assert!(shown >= 4, "{shown}");
    assert!(name.contains(is_obeyed));
}
