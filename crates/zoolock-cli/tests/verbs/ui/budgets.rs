//! Limits of `zoolock ui`: no client keeps others from the pages, and slow clients are disconnected.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use super::{start, status};
use crate::common::{Sandbox, connect_from, exchange_over};

/// The address of a client with good intentions.
const GUEST: [u8; 4] = [127, 0, 0, 1];
const ATTACKER: [u8; 4] = [127, 0, 1, 1];

/// Sends a request from an address, and returns the response.
fn send(source: [u8; 4], address: SocketAddr, head: &str, body: &str) -> String {
    let length = body.len();
    let kind = "Content-Type: application/x-www-form-urlencoded";
    let rest = format!("Host: localhost\r\n{kind}\r\nContent-Length: {length}\r\n\r\n{body}");
    exchange_over(connect_from(source, address), &format!("{head} HTTP/1.1\r\n{rest}"))
}

/// Reads until the server closes the connection, and returns what it sent.
fn read_to_end(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // The server may reset the connection instead of closing it.
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "the connection is closed in time");
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn idle_connections_block_no_pages() {
    let sandbox = Sandbox::new();
    let (_ui, address) = start(&sandbox, &[]);
    let address = address.parse().expect("an address");
    // Another user of the machine has the address of the guest.
    let _idle: Vec<_> = [ATTACKER, GUEST]
        .into_iter()
        .flat_map(|source| (0..300).map(move |_| connect_from(source, address)))
        .collect();
    for page in ["/", "/lock?name=x", "/deadlocks", "/style.css"] {
        assert_eq!(status(&send(GUEST, address, &format!("GET {page}"), "")), "200", "{page}");
    }
}

#[test]
fn event_streams_leave_room_for_pages() {
    let sandbox = Sandbox::new();
    let (_ui, address) = start(&sandbox, &[]);
    let address = address.parse().expect("an address");
    let open_stream = |source| {
        let mut stream = connect_from(source, address);
        stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("the server reads");
        let mut line = [0; 12];
        stream.read_exact(&mut line).expect("the server answers");
        (String::from_utf8_lossy(&line).into_owned(), stream)
    };
    let streams: Vec<_> = (0..70).map(|_| open_stream(ATTACKER)).collect();
    let count = |answer: &str| streams.iter().filter(|(line, _)| line == answer).count();
    assert_eq!((count("HTTP/1.1 200"), count("HTTP/1.1 503")), (64, 6));
    assert_eq!(open_stream(GUEST).0, "HTTP/1.1 200");
    assert_eq!(status(&send(ATTACKER, address, "GET /", "")), "200");
    // The refused streams do not count.
    let _idle: Vec<TcpStream> = (0..300).map(|_| connect_from(ATTACKER, address)).collect();
    assert_eq!(status(&send(GUEST, address, "GET /", "")), "200");
}

#[test]
fn slow_clients_are_disconnected() {
    let sandbox = Sandbox::new();
    let (_ui, address) = start(&sandbox, &[]);
    let address = address.parse().expect("an address");
    let begun = [
        ("", ""),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nX: ", ""),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\ntoken", "405"),
    ];
    let mut slow = begun.map(|(request, answer)| {
        let mut stream = connect_from(GUEST, address);
        stream.write_all(request.as_bytes()).expect("the server reads");
        (stream, answer)
    });
    for (stream, expected) in &mut slow {
        assert_eq!(status(&read_to_end(stream)), *expected);
    }
}

#[test]
fn methods_and_paths_are_checked() {
    let sandbox = Sandbox::new();
    let (_ui, address) = start(&sandbox, &[]);
    let address = address.parse().expect("an address");
    let send = |head: &str, body: &str| send(GUEST, address, head, body);
    for path in ["/", "/lock?name=x", "/deadlocks", "/metrics", "/script.js"] {
        let answer = send(&format!("HEAD {path}"), "");
        assert!(status(&answer) == "200" && answer.ends_with("\r\n\r\n"), "{path}: {answer}");
        let answer = send(&format!("DELETE {path}"), "unread");
        assert!(status(&answer) == "405" && answer.contains("\r\nallow: GET,HEAD\r\n"), "{path}: {answer}");
    }
    for method in ["GET", "HEAD", "POST"] {
        assert_eq!(status(&send(&format!("{method} /nothing"), "")), "404", "{method}");
    }
}
