//! `zoolock ui`, asked by a client that is no browser: who is let in, and how it ends. What people see is tested in a
//! browser (`browser`).

mod browser;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use crate::common::{PATIENCE, Running, Sandbox, wait_until};
use rustix::process::Signal;

const TOKEN: &str = "a token that nobody guesses";

/// Starts it, and says where it listens.
fn start(sandbox: &Sandbox, flags: &[&str]) -> (Running, String) {
    let mut ui = sandbox.converse(&[&["ui", "--listen", "127.0.0.1:0"], flags].concat());
    let mut line = String::new();
    let mut stdout = BufReader::new(ui.0.stdout.take().expect("caught"));
    stdout.read_line(&mut line).expect("it says where it listens");
    let address = line.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix('/'));
    (ui, address.expect("an address").to_owned())
}

fn token_file(sandbox: &Sandbox) -> String {
    let path = sandbox.path("token");
    std::fs::write(&path, TOKEN).expect("writable");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("ours");
    path.display().to_string()
}

/// Sends a request as it is, and returns the whole answer.
fn send(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers and closes");
    answer
}

fn get(address: &str, path: &str, headers: &str) -> String {
    send(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n"))
}

fn post(address: &str, path: &str, headers: &str, form: &str) -> String {
    let length = form.len();
    let kind = "Content-Type: application/x-www-form-urlencoded";
    send(
        address,
        &format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\n{kind}\r\nContent-Length: {length}\r\n{headers}\r\n{form}"
        ),
    )
}

fn status(answer: &str) -> &str {
    answer.get(9..12).unwrap_or(answer)
}

#[test]
fn it_shows_and_ends_when_it_is_told() {
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
    assert_eq!(status(&get(&address, "/lock?name=shown", "")), "200");
    assert_eq!(status(&get(&address, "/lock?name=..", "")), "400");
    assert_eq!(status(&get(&address, "/nothing", "")), "404");
    assert!(get(&address, "/metrics", "").contains("\nzoolock_"));
    ui.signal(Signal::TERM);
    let done = ui.done();
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
}

#[test]
fn nobody_changes_anything_where_it_only_shows() {
    let sandbox = Sandbox::new();
    let (_ui, address) = start(&sandbox, &[]);
    let form = "action=break&name=/locks/x&token=0.1.0&csrf=x";
    assert_eq!(status(&post(&address, "/action", "", form)), "403");
    assert_eq!(status(&post(&address, "/login", "", "token=x")), "403");
    assert_eq!(status(&get(&address, "/confirm?action=break&name=x&token=0.1.0", "")), "403");
}

#[test]
fn it_answers_to_its_own_names_alone() {
    let sandbox = Sandbox::new();
    let (_ui, address) = start(&sandbox, &["--host", "locks.example"]);
    let as_host = |host: &str| {
        let answer = send(&address, &format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        status(&answer).to_owned()
    };
    assert_eq!((as_host("locks.example").as_str(), as_host("evil.example").as_str()), ("200", "421"));
    let answer = send(&address, "GET / HTTP/1.0\r\n\r\n");
    assert_eq!(status(&answer), "421");
}

#[test]
fn a_deed_needs_a_login_and_a_form_of_its_own_and_is_told() {
    let sandbox = Sandbox::new();
    let token = token_file(&sandbox);
    let (ui, address) = start(&sandbox, &["--allow-operate", "--token-file", &token]);
    let mut holder = sandbox.start(&["run", "doomed", "--", "sleep", "600"]);
    sandbox.wait_for_contenders("doomed", 1);
    let shown = sandbox.output(&["show", "doomed", "--json"]);
    let lock: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
    let seen = lock["holder"]["token"].as_str().expect("a token").to_owned();

    let form =
        |csrf: &str| format!("action=break&name=%2Flocks%2Fdoomed&token={seen}&note=it+hangs&csrf={csrf}");
    assert_eq!(status(&post(&address, "/action", "", &form("x"))), "303");
    assert_eq!(status(&post(&address, "/login", "", "token=wrong")), "401");
    let entered = post(&address, "/login", "", &format!("token={}", TOKEN.replace(' ', "+")));
    assert_eq!(status(&entered), "303", "{entered}");
    let cookie = entered.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
    let cookie = format!("Cookie: {}\r\n", cookie.split(';').next().expect("a pair"));
    let ask = get(&address, &format!("/confirm?action=break&name=/locks/doomed&token={seen}"), &cookie);
    let csrf = ask.split("name=\"csrf\" value=\"").nth(2).and_then(|rest| rest.split('"').next());
    let csrf = csrf.expect("the second form is that of the action");
    assert_eq!(status(&post(&address, "/action", &cookie, &form("x"))), "403");
    for header in ["Origin: http://evil.example", "Sec-Fetch-Site: cross-site"] {
        let elsewhere = format!("{cookie}{header}\r\n");
        assert_eq!(status(&post(&address, "/action", &elsewhere, &form(csrf))), "403", "{header}");
    }
    assert_eq!(sandbox.contenders("doomed"), 1);

    let done = post(&address, "/action", &cookie, &form(csrf));
    assert!(done.contains("location: /lock?name=/locks/doomed&done=broken"), "{done}");
    assert_eq!(holder.code(), 70);
    wait_until("nobody is there", || sandbox.contenders("doomed") == 0);
    // Once more: nobody has that token now.
    assert_eq!(status(&post(&address, "/action", &cookie, &form(csrf))), "409");
    ui.signal(Signal::TERM);
    let said = ui.done().stderr;
    assert!(
        said.contains(&format!("break of /locks/doomed, token {seen}, by operator at 127.0.0.1")),
        "{said}"
    );
    assert!(said.contains("it hangs: broken") && said.contains("refused"), "{said}");
}
