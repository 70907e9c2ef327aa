//! Metrics of `run`, `hold` and `serve`.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, channel};

use crate::common::{Sandbox, connect_from, exchange, exchange_over, http_get, wait_until};
use serde_json::Value;

const DOCS: &str = include_str!("../../../../docs/METRICS.md");

/// Returns the metrics, with the head of the response.
fn scrape(address: &str) -> String {
    let answer = http_get(address, "/metrics");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

/// Reads lines until a line has the address of the metrics, and returns that address.
pub(crate) fn metrics_address(mut stderr: impl BufRead) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(stderr.read_line(&mut line).expect("UTF-8"), 0, "no line has the address of the metrics");
        if let Some((_, url)) = line.trim().split_once("metrics at http://") {
            return url.trim_end_matches("/metrics").to_owned();
        }
    }
}

#[test]
fn holder_serves_metrics_with_the_path_of_its_lock() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.start_piped(&["hold", "--metrics", "127.0.0.1:0", "x"]);
    let address = metrics_address(holder.take_stderr());
    sandbox.wait_for_contenders("x", 1);
    wait_until("the lock is held", || {
        scrape(&address).contains("zoolock_holding{kind=\"mutex\",lock=\"/locks/x\"} 1")
    });
    let shown = scrape(&address);
    for line in [
        "# TYPE zoolock_acquire_seconds histogram",
        "zoolock_acquire_seconds_count{kind=\"mutex\",lock=\"/locks/x\",outcome=\"acquired\"} 1",
        "zoolock_sessions_alive 1",
    ] {
        assert!(shown.lines().any(|it| it == line), "{line}\n{shown}");
    }
    holder.end_of_input();
    assert_eq!(holder.code(), 0);
}

#[test]
fn metrics_of_holder_have_limits() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.start_piped(&["hold", "--metrics", "127.0.0.1:0", "x"]);
    let address: SocketAddr = metrics_address(holder.take_stderr()).parse().expect("an address");
    let _idle: Vec<_> = (0..20).map(|_| connect_from([127, 0, 1, 1], address)).collect();
    let request = |method: &str, path: &str| format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let head = exchange_over(connect_from([127, 0, 0, 1], address), &request("HEAD", "/metrics"));
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    let refused = exchange(address, &request("PUT", "/metrics"));
    assert!(refused.starts_with("HTTP/1.1 405") && refused.contains("\r\nallow: GET,HEAD\r\n"), "{refused}");
    assert!(exchange(address, &request("GET", "/")).starts_with("HTTP/1.1 404"));
    holder.end_of_input();
    assert_eq!(holder.code(), 0);
}

#[test]
fn taken_metrics_address_does_not_stop_the_command() {
    let sandbox = Sandbox::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let done = sandbox.output(&["run", "--metrics", &address, "x", "--", "sh", "-c", "sleep 1; touch ran"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stderr.contains(&format!("--metrics {address}: cannot listen there")), "{done:?}");
    assert!(sandbox.path("ran").exists());
    let required = format!("{address},required");
    let done = sandbox.output(&["run", "--metrics", &required, "x", "--", "touch", "ran too"]);
    assert!(done.code == 69 && done.stderr.contains("cannot listen there"), "{done:?}");
    assert!(!sandbox.path("ran too").exists());
    // A second run of a crontab line says that the lock is busy, and cron sends no mail.
    let _holder = sandbox.start(&["run", "x", "--", "sleep", "1000"]);
    sandbox.wait_for_contenders("x", 1);
    let flags = ["run", "--quiet", "--metrics", &address, "--try", "--on-busy-exit", "0"];
    let done = sandbox.output(&[&flags[..], &["x", "--", "true"]].concat());
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
}

#[test]
fn metrics_begin_when_the_address_is_free() {
    let sandbox = Sandbox::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let mut holder = sandbox.start_piped(&["hold", "--metrics", &address, "x"]);
    sandbox.wait_for_contenders("x", 1);
    drop(taken);
    assert_eq!(metrics_address(holder.take_stderr()), address);
    assert!(scrape(&address).contains("zoolock_holding"));
    holder.end_of_input();
    assert_eq!(holder.code(), 0);
}

/// Starts a collector that accepts every request, and returns its URL and the requests: their head and body.
fn collector() -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let (pushed, received) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.expect("a client connects"));
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                assert_ne!(stream.read_line(&mut head).expect("UTF-8"), 0, "{head}");
            }
            let length =
                head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length");
            let mut body = vec![0; length.parse().expect("a number")];
            stream.read_exact(&mut body).expect("a whole body");
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
            stream.get_mut().write_all(answer).expect("the client reads");
            if pushed.send((head, serde_json::from_slice(&body).expect("JSON"))).is_err() {
                return;
            }
        }
    });
    (url, received)
}

#[test]
fn collector_receives_final_metrics() {
    let sandbox = Sandbox::new();
    let (url, received) = collector();
    let done = sandbox.output(&[&format!("ZOOLOCK_OTLP={url}"), "run", "x", "--", "true"]);
    assert_eq!(done.code, 0, "{done:?}");
    let (head, last) = received.try_iter().last().expect("metrics are pushed before zoolock ends");
    assert!(head.starts_with("POST /v1/metrics HTTP/1.1\r\n") && head.contains("application/json"), "{head}");
    let resource = &last["resourceMetrics"][0];
    assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "zoolock");
    let metrics = resource["scopeMetrics"][0]["metrics"].as_array().expect("a list");
    let metric = |name: &str| {
        let found = metrics.iter().find(|metric| metric["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {last:#}"))
    };
    let hold = &metric("zoolock_hold_seconds")["histogram"]["dataPoints"][0];
    assert_eq!(hold["count"], "1", "{hold:#}");
    assert_eq!(metric("zoolock_sessions_opened_total")["sum"]["dataPoints"][0]["asInt"], "1");
    assert_eq!(metric("zoolock_holding")["gauge"]["dataPoints"][0]["asDouble"], 0.0);
}

#[test]
fn missing_collector_does_not_stop_the_command() {
    let sandbox = Sandbox::new();
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let done = sandbox.output(&[&format!("ZOOLOCK_OTLP=http://{closed}"), "run", "x", "--", "touch", "ran"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(sandbox.path("ran").exists() && done.stderr.contains("ZOOLOCK_OTLP"), "{done:?}");
}

#[test]
fn server_metrics_match_documentation() {
    let sandbox = Sandbox::new();
    let mut server = sandbox.start_piped(&["serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
    let address = metrics_address(server.take_stderr());
    let shown = scrape(&address);
    let shown: BTreeSet<(&str, &str)> =
        shown.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let section = DOCS.split("\n## ").find(|section| section.starts_with("The server")).expect("a section");
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let documented: BTreeSet<(&str, &str)> = rows
        .map(|row| {
            let mut cells = row.trim_matches('|').split('|').map(str::trim);
            (cells.next().expect("a name").trim_matches('`'), cells.next().expect("a type"))
        })
        .collect();
    assert_eq!(shown, documented);
}
