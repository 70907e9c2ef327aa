//! `zoolock ui` over plain HTTP: what it serves, what it refuses, and shutdown. The tests in `browser` check the pages in a real browser.

mod browser;
mod budgets;

use std::io::BufRead;

use crate::common::{Running, Sandbox, exchange, server_with, wait_until};
use rustix::process::Signal;

/// Starts `zoolock ui`, and returns its address.
fn start(sandbox: &Sandbox, flags: &[&str]) -> (Running, String) {
    let mut ui = sandbox.start_piped(&[&["ui", "--listen", "127.0.0.1:0"], flags].concat());
    let mut line = String::new();
    ui.take_stdout().read_line(&mut line).expect("zoolock ui prints its address");
    let address = line.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix('/'));
    (ui, address.expect("an address").to_owned())
}

fn get(address: &str, path: &str, headers: &str) -> String {
    exchange(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n"))
}

/// Returns the status code of a response.
fn status(answer: &str) -> &str {
    answer.get(9..12).unwrap_or(answer)
}

#[test]
fn ui_serves_pages_and_ends_on_term() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.start(&["run", "shown", "--", "sleep", "600"]);
    sandbox.wait_for_contenders("shown", 1);
    let (ui, address) = start(&sandbox, &[]);
    let page = get(&address, "/", "");
    assert_eq!(status(&page), "200", "{page}");
    assert!(page.contains("shown") && page.contains("sleep"), "{page}");
    assert!(page.contains("<span class=\"ensemble\">this user's server · /locks</span>"), "{page}");
    let headers =
        ["x-frame-options: DENY", "x-content-type-options: nosniff", "referrer-policy: same-origin"];
    let policy = ["default-src 'none'", "frame-ancestors 'none'", "form-action 'self'", "script-src 'self'"];
    for header in headers.iter().chain(&policy).chain(&["cache-control: no-store"]) {
        assert!(page.contains(header), "{header}: {page}");
    }
    let page = get(&address, "/lock?name=shown", "");
    assert!(status(&page) == "200" && page.contains("<code>zoolock break shown --token "), "{page}");
    assert_eq!(status(&get(&address, "/lock?name=..", "")), "400");
    assert_eq!(status(&get(&address, "/nothing", "")), "404");
    assert!(get(&address, "/metrics", "").contains("\nzoolock_"));
    ui.signal(Signal::TERM);
    let done = ui.wait_for_output();
    assert_eq!((done.code, done.stderr.as_str()), (0, "zoolock: TERM received; stopping\n"));
}

#[test]
fn lock_page_links_to_its_deadlock() {
    let sandbox = Sandbox::new();
    let nested = |outer: &str, inner: &str| {
        let zoolock = env!("CARGO_BIN_EXE_zoolock");
        let script = format!("until [ -e both ]; do sleep 0.02; done; {zoolock} run {inner} -- true");
        sandbox.start(&["run", outer, "--", "sh", "-c", &script])
    };
    let _running = [nested("a", "b"), nested("b", "a")];
    sandbox.wait_for_contenders("a", 1);
    sandbox.wait_for_contenders("b", 1);
    let (_ui, address) = start(&sandbox, &[]);
    let links_to_deadlock =
        || get(&address, "/lock?name=a", "").contains("<a href=\"/deadlocks#deadlock-1\">");
    assert!(!links_to_deadlock());
    sandbox.write_private("both", "");
    wait_until("the page links to the deadlock", links_to_deadlock);
}

#[test]
fn requests_change_no_lock() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.start(&["run", "kept", "--", "sleep", "600"]);
    sandbox.wait_for_contenders("kept", 1);
    let token = sandbox.json(&["show", "kept"])["holder"]["token"].clone();
    let token = token.as_str().expect("a token");
    let (_ui, address) = start(&sandbox, &[]);
    let form = format!("action=break&name=/locks/kept&token={token}");
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        for (path, expected) in
            [("/", "405"), ("/lock?name=kept", "405"), ("/action", "404"), ("/login", "404")]
        {
            let length = form.len();
            let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}");
            let answer = exchange(&address, &format!("{head}\r\n\r\n{form}"));
            assert_eq!(status(&answer), expected, "{method} {path}: {answer}");
            assert!(!answer.contains("set-cookie"), "{answer}");
        }
    }
    assert_eq!(sandbox.json(&["show", "kept"])["holder"]["token"].as_str(), Some(token));
}

#[test]
fn silent_server_is_shown_on_all_pages() {
    let sandbox = Sandbox::new();
    // With a long session timeout, the client keeps its connection although no answer comes.
    let (server, connect) = server_with(&sandbox, &["--max-session-timeout", "10m"]);
    let (_ui, address) = start(&sandbox, &["--connect", &connect, "--session-timeout", "10m"]);
    let pages = ["/", "/lock?name=x", "/deadlocks"];
    let show_outage = || {
        let pages = pages.map(|path| get(&address, path, ""));
        // A server that is stopped accepts connections, but does not answer.
        pages.map(|page| {
            let is_shown = page.contains("<strong>The servers do not answer.</strong> no answer");
            assert!(!is_shown || page.contains("data-outage"), "{page}");
            is_shown
        })
    };
    wait_until("the locks are read", || get(&address, "/", "").contains("0 locks"));
    server.signal(Signal::STOP);
    wait_until("all pages show the outage", || show_outage() == [true; 3]);
    assert!(get(&address, "/", "").contains("The locks may have changed since"));
    server.signal(Signal::CONT);
    wait_until("no page shows an outage", || show_outage() == [false; 3]);
}

#[test]
fn outage_names_the_end_of_the_connection() {
    let sandbox = Sandbox::new();
    let (server, connect) = server_with(&sandbox, &[]);
    let (_ui, address) = start(&sandbox, &["--connect", &connect]);
    wait_until("the locks are read", || get(&address, "/", "").contains("0 locks"));
    server.signal(Signal::KILL);
    for path in ["/", "/lock?name=x"] {
        wait_until("the page names the cause", || {
            let page = get(&address, path, "");
            assert!(!page.contains("too many requests"), "{page}");
            page.contains("onnection refused")
        });
    }
}

#[test]
fn unknown_host_header_is_refused() {
    let sandbox = Sandbox::new();
    let (_ui, address) = start(&sandbox, &["--host", "locks.example"]);
    let as_host = |host: &str| {
        let answer = exchange(&address, &format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        status(&answer).to_owned()
    };
    assert_eq!((as_host("locks.example").as_str(), as_host("evil.example").as_str()), ("200", "421"));
    let answer = exchange(&address, "GET / HTTP/1.0\r\n\r\n");
    assert_eq!(status(&answer), "421");
}
