//! The first bytes of an unknown client, in arbitrary pieces: four-letter words, connect requests,
//! other protocols, HTTP.
//!
//! The clock is paused and advances only when no task can run, so that timeouts end at once.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex, split};
use tokio::task::yield_now;
use tokio::time::timeout;
use zoolock_fuzz::{CREDENTIALS, Input};
use zoolock_server::acl;
use zoolock_server::fuzzing::{FuzzServer, UNSUPPORTED_WORDS};
use zoolock_server::{Access, FourLetterWord, Secret, Users};

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let choice = input.byte();
    let sizes: Vec<usize> = (0..choice % 8).map(|_| 1 + usize::from(input.byte() % 64)).collect();
    let room = [1, 16, 64, 4096][usize::from(choice / 8 % 4)];
    let bytes = input.rest();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("the runtime starts").block_on(async {
        if choice & 64 != 0 {
            let whole = http(&[bytes], 1 << 16).await;
            let parts = http(&pieces(bytes, &sizes), room).await;
            // If invalid input comes in parts, hyper may wait for the rest and answer nothing. Only the status lines
            // are compared, because the rest of an answer contains times and counts.
            if !whole.is_empty() && !parts.is_empty() {
                assert_eq!(whole[..12], parts[..12], "the answer depends on the pieces of the input");
            }
        } else {
            let access = || access(choice >> 5);
            let whole = plain(access(), &[bytes], 1 << 16).await;
            let parts = plain(access(), &pieces(bytes, &sizes), room).await;
            if !is_word(bytes) {
                assert_eq!(whole.len(), parts.len(), "the answer depends on the pieces of the input");
            }
        }
    });
});

fn access(choice: u8) -> Access {
    let users =
        Users::parse(&acl::digest_identity(CREDENTIALS[0].as_bytes()).id).expect("the account is valid");
    match choice {
        4 => Access { secret: Some(Secret::new("secret")), ..Access::default() },
        5 => Access { required: true, users: Some(users), ..Access::default() },
        _ => Access::default(),
    }
}

/// Splits bytes into pieces of these sizes, which repeat until no bytes are left.
fn pieces<'a>(mut bytes: &'a [u8], sizes: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    for &size in sizes.iter().cycle() {
        if bytes.is_empty() {
            break;
        }
        let (piece, rest) = bytes.split_at(size.min(bytes.len()));
        pieces.push(piece);
        bytes = rest;
    }
    pieces.push(bytes);
    pieces
}

fn is_word(bytes: &[u8]) -> bool {
    bytes.first_chunk().is_some_and(|typed: &[u8; 4]| {
        FourLetterWord::ALL.iter().any(|word| word.name().as_bytes() == typed)
            || UNSUPPORTED_WORDS.contains(&typed)
    })
}

async fn plain(access: Access, pieces: &[&[u8]], room: usize) -> Vec<u8> {
    let server = FuzzServer::new(access).expect("the server starts without a thread");
    let (ours, theirs) = duplex(room);
    let served = tokio::spawn(server.serve(theirs));
    let received = exchange(ours, pieces).await;
    let ended = timeout(Duration::from_secs(3600), served).await;
    ended.expect("the connection ends in time").expect("the server does not panic");
    let stats = server.stats();
    assert_eq!((stats.connections, stats.queued, stats.watches), (0, 0, 0));
    let sent = pieces.concat();
    match sent.first_chunk::<4>() {
        None | Some([22, 3, ..] | b"GET " | b"POST" | b"SSH-") => {
            assert!(received.is_empty() && stats.received == 0, "the server answered another protocol");
        }
        Some(b"ruok") => assert_eq!(received, b"imok"),
        Some(_) if is_word(&sent) => {
            assert!(std::str::from_utf8(&received).is_ok_and(|text| !text.is_empty()), "no answer to a word");
        }
        Some(len) => {
            let longest = stats.received == 0 || u32::from_be_bytes(*len) <= 4096;
            assert!(longest, "the server accepted a greeting of {len:?} bytes");
            let mut rest = &received[..];
            while let Some((len, tail)) = rest.split_first_chunk() {
                rest = tail.get(u32::from_be_bytes(*len) as usize..).expect("the answer has the whole frame");
            }
            assert!(rest.is_empty(), "the answer ends within a frame");
        }
    }
    received
}

async fn http(pieces: &[&[u8]], room: usize) -> Vec<u8> {
    let server = FuzzServer::new(Access::default()).expect("the server starts without a thread");
    let (ours, theirs) = duplex(room);
    let answered = tokio::spawn(server.answer_http(theirs));
    let received = exchange(ours, pieces).await;
    let ended = timeout(Duration::from_secs(3600), answered).await;
    let _ = ended.expect("the connection ends in time").expect("the server does not panic");
    assert!(received.is_empty() || received.starts_with(b"HTTP/1."), "the answer is no HTTP");
    let sent = pieces.concat();
    if sent.starts_with(b"GET /live HTTP/1.1\r\n\r\n") {
        assert!(received.starts_with(b"HTTP/1.1 200 OK\r\n"));
    }
    received
}

/// Sends all pieces, and reads until the stream ends or stays silent.
async fn exchange(stream: DuplexStream, pieces: &[&[u8]]) -> Vec<u8> {
    let (mut reader, mut writer) = split(stream);
    let write = async {
        for piece in pieces {
            if writer.write_all(piece).await.is_err() {
                return;
            }
            for _ in 0..3 {
                yield_now().await;
            }
        }
    };
    let read = async {
        let mut received = Vec::new();
        while let Ok(Ok(1..)) = timeout(Duration::from_secs(1), reader.read_buf(&mut received)).await {}
        received
    };
    tokio::join!(write, read).1
}
