//! `zoolock ui` over plain HTTP: access control and shutdown. The tests in `browser` check the pages in a real browser.

mod browser;
mod budgets;

use std::io::BufRead;

use crate::common::{Running, Sandbox, exchange, server_with, wait_until};
use rustix::process::Signal;

const TOKEN: &str = "a token that nobody guesses";

/// Starts `zoolock ui`, and returns its address.
fn start(sandbox: &Sandbox, flags: &[&str]) -> (Running, String) {
    let mut ui = sandbox.start_piped(&[&["ui", "--listen", "127.0.0.1:0"], flags].concat());
    let mut line = String::new();
    ui.take_stdout().read_line(&mut line).expect("zoolock ui prints its address");
    let address = line.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix('/'));
    (ui, address.expect("an address").to_owned())
}

fn token_file(sandbox: &Sandbox) -> String {
    sandbox.write_private("token", TOKEN)
}

fn get(address: &str, path: &str, headers: &str) -> String {
    exchange(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n"))
}

fn post(address: &str, path: &str, headers: &str, form: &str) -> String {
    let length = form.len();
    let kind = "Content-Type: application/x-www-form-urlencoded";
    exchange(
        address,
        &format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\n{kind}\r\nContent-Length: {length}\r\n{headers}\r\n{form}"
        ),
    )
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
fn read_only_ui_refuses_changes() {
    let sandbox = Sandbox::new();
    let (_ui, address) = start(&sandbox, &[]);
    let form = "action=break&name=/locks/x&token=0.1.0&csrf=x";
    assert_eq!(status(&post(&address, "/action", "", form)), "403");
    assert_eq!(status(&post(&address, "/login", "", "token=x")), "403");
    assert_eq!(status(&get(&address, "/confirm?action=break&name=x&token=0.1.0", "")), "403");
}

#[test]
fn silent_server_is_shown_on_all_pages() {
    let sandbox = Sandbox::new();
    // With a long session timeout, the client keeps its connection although no answer comes.
    let (server, connect) = server_with(&sandbox, &["--max-session-timeout", "10m"]);
    let (_ui, address) = start(&sandbox, &["--connect", &connect, "--session-timeout", "10m"]);
    let pages = ["/", "/lock?name=x", "/graph"];
    let show_outage = || {
        let pages = pages.map(|path| get(&address, path, ""));
        // A server that is stopped accepts connections, but does not answer.
        pages.map(|page| page.contains("<strong>The servers do not answer.</strong> no answer"))
    };
    wait_until("the locks are read", || get(&address, "/", "").contains("0 locks"));
    server.signal(Signal::STOP);
    wait_until("all pages show the outage", || show_outage() == [true; 3]);
    assert!(get(&address, "/", "").contains("The locks may have changed since"));
    server.signal(Signal::CONT);
    wait_until("no page shows an outage", || show_outage() == [false; 3]);
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

#[test]
fn break_needs_login_and_csrf_token() {
    let sandbox = Sandbox::new();
    let token = token_file(&sandbox);
    let (ui, address) = start(&sandbox, &["--allow-operate", "--token-file", &token]);
    let mut holder = sandbox.start(&["run", "doomed", "--", "sleep", "600"]);
    sandbox.wait_for_contenders("doomed", 1);
    let lock = sandbox.json(&["show", "doomed"]);
    let held_token = lock["holder"]["token"].as_str().expect("a token").to_owned();

    let form = |csrf: &str| {
        format!("action=break&name=%2Flocks%2Fdoomed&token={held_token}&note=it+hangs&csrf={csrf}")
    };
    assert_eq!(status(&post(&address, "/action", "", &form("x"))), "303");
    assert_eq!(status(&post(&address, "/login", "", "token=wrong")), "401");
    let logged_in = post(&address, "/login", "", &format!("token={}", TOKEN.replace(' ', "+")));
    assert_eq!(status(&logged_in), "303", "{logged_in}");
    let cookie = logged_in.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
    let cookie = format!("Cookie: {}\r\n", cookie.split(';').next().expect("a pair"));
    let ask = get(&address, &format!("/confirm?action=break&name=/locks/doomed&token={held_token}"), &cookie);
    let csrf = ask.split("name=\"csrf\" value=\"").nth(2).and_then(|rest| rest.split('"').next());
    let csrf = csrf.expect("the second form on the page asks for the break");
    assert_eq!(status(&post(&address, "/action", &cookie, &form("x"))), "403");
    for header in ["Origin: http://evil.example", "Sec-Fetch-Site: cross-site"] {
        let cross_site = format!("{cookie}{header}\r\n");
        assert_eq!(status(&post(&address, "/action", &cross_site, &form(csrf))), "403", "{header}");
    }
    assert_eq!(sandbox.contenders("doomed"), 1);

    let done = post(&address, "/action", &cookie, &form(csrf));
    assert!(done.contains("location: /lock?name=/locks/doomed&done=broken"), "{done}");
    assert_eq!(holder.code(), 70);
    wait_until("the lock is free", || sandbox.contenders("doomed") == 0);
    // No contender has that token any more.
    assert_eq!(status(&post(&address, "/action", &cookie, &form(csrf))), "409");
    ui.signal(Signal::TERM);
    let log = ui.wait_for_output().stderr;
    assert!(
        log.contains(&format!("break of /locks/doomed, token {held_token}, by operator at 127.0.0.1")),
        "{log}"
    );
    assert!(log.contains("it hangs: broken") && log.contains("it hangs: failed: "), "{log}");
}
