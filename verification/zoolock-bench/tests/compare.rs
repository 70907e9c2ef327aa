//! Tests of `zoolock-bench compare` with little work. They check that the benchmark runs, and do not check its figures.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use zoolock::TestServer;
use zoolock_tests::proxy::FrameCounts;
use zoolock_tests::skip::skip;
use zoolock_tests::{Proxy, ZoolockBinary, opcode};

const WORKS: [&str; 11] =
    ["alone", "far", "loop", "few", "many", "most", "locks", "process", "articles", "rest", "shared"];

/// An environment variable that all processes of a run inherit. It identifies the processes that remain.
const MARK: &str = "ZOOLOCK_BENCH_MARK";

/// A run of the benchmark. Dropping it kills the benchmark, and the processes that it started end with it.
struct Run {
    child: Child,
    mark: String,
    stderr: BufReader<ChildStderr>,
}

impl Run {
    fn start(name: &str, args: &[&str], out: &Path) -> Self {
        let zoolock = ZoolockBinary::find().expect("zoolock was built");
        let mark = format!("{name}-{}", std::process::id());
        let mut command = Command::new(env!("CARGO_BIN_EXE_zoolock-bench"));
        command.args(["compare", "--quick", "--rounds", "1"]).args(args).arg("--out").arg(out);
        command.arg("--zoolock").arg(zoolock.path()).env(MARK, &mark);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("command started");
        let stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        Self { child, mark, stderr }
    }

    /// Reads stderr until a line contains `text`.
    fn until(&mut self, text: &str) {
        let mut lines = String::new();
        while !lines.lines().last().is_some_and(|line| line.contains(text)) {
            let read = self.stderr.read_line(&mut lines).expect("stderr is text");
            assert_ne!(read, 0, "no line contains {text:?}:\n{lines}");
        }
    }

    /// Waits for the end of the run. Returns whether it succeeded, and its stdout.
    fn end(mut self) -> (bool, String) {
        let mut messages = String::new();
        self.stderr.read_to_string(&mut messages).expect("stderr is text");
        let mut table = String::new();
        let mut stdout = self.child.stdout.take().expect("stdout is piped");
        stdout.read_to_string(&mut table).expect("stdout is text");
        let status = self.child.wait().expect("child ended");
        println!("{messages}{table}");
        assert_eq!(self.processes(), Vec::<String>::new(), "processes of the run remain");
        (status.success(), table)
    }

    /// Returns the processes of the run, each with its directory in `/proc` and its command line.
    fn processes(&self) -> Vec<String> {
        let mark = format!("{MARK}={}", self.mark);
        let all = fs::read_dir("/proc").expect("/proc is mounted").flatten().map(|entry| entry.path());
        let marked = all.filter(|path| {
            let environment = fs::read(path.join("environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        });
        let named = marked.map(|path| {
            let line = fs::read(path.join("cmdline")).unwrap_or_default();
            format!("{} {}", path.display(), String::from_utf8_lossy(&line).replace('\0', " "))
        });
        named.collect()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signal sent");
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn results(out: &Path) -> Value {
    let text = fs::read_to_string(out.join("compare.json")).expect("results were written");
    serde_json::from_str(&text).expect("the results are JSON")
}

fn works(results: &Value) -> Vec<&Value> {
    results["works"].as_array().expect("works is a list").iter().collect()
}

/// Returns the names of the works, each with whether it was cut short.
fn cut_short(results: &Value) -> Vec<(Value, Value)> {
    works(results).iter().map(|work| (work["name"].clone(), work["cut_short"].clone())).collect()
}

#[test]
fn compare_measures_everything_and_leaves_no_process() {
    let out = tempfile::tempdir().expect("directory created");
    let (succeeded, table) = Run::start("everything", &[], out.path()).end();
    assert!(succeeded);
    let results = results(out.path());
    let names: Vec<&str> = works(&results).iter().filter_map(|work| work["name"].as_str()).collect();
    assert_eq!(names, WORKS);
    assert_eq!(fs::read_to_string(out.path().join("compare.md")).expect("file was written") + "\n", table);
    let csv = fs::read_to_string(out.path().join("compare.csv")).expect("file was written");
    for work in works(&results) {
        let name = work["name"].as_str().expect("a work has a name");
        assert_eq!(work["cut_short"], false, "{name}");
        let lines = csv.lines().filter(|line| line.split(',').next() == Some(name)).count();
        assert_eq!(Some(lines), work["entries"].as_array().map(Vec::len), "{name}: {csv}");
        assert!(
            table.contains(&format!("**{}**", work["title"].as_str().expect("a work has a title"))),
            "{name}"
        );
        for entry in work["entries"].as_array().expect("entries is a list") {
            let measured = format!("{} on {} in {name}", entry["client"], entry["server"]);
            match entry["failed"].as_str() {
                None => assert_eq!(entry["rounds"].as_array().map(Vec::len), Some(1), "{measured}"),
                // Only a peer that is not installed may be missing.
                Some(why) if why.contains("install") => skip(&measured, why),
                Some(why) => panic!("{measured} failed: {why}"),
            }
        }
    }
    assert!(table.contains("| at most 1.10 × create + delete | "), "the table has no targets");
}

#[test]
fn interrupted_run_keeps_results_and_leaves_no_process() {
    let out = tempfile::tempdir().expect("directory created");
    let mut run = Run::start("interrupted", &["--only", "loop", "--only", "locks"], out.path());
    run.until("locks: round 1 of 1: zoolock, zoolock serve");
    assert!(!run.processes().is_empty(), "the run has no processes");
    run.signal(Signal::INT);
    let (succeeded, table) = run.end();
    assert!(!succeeded, "the interrupted run succeeded");
    let cut = cut_short(&results(out.path()));
    assert_eq!(cut, [("loop".into(), false.into()), ("locks".into(), true.into())]);
    assert!(table.contains("(cut short"));
    // A later run keeps the figures of other works.
    let (succeeded, _) = Run::start("later", &["--only", "locks"], out.path()).end();
    assert!(succeeded);
    let cut = cut_short(&results(out.path()));
    assert_eq!(cut, [("loop".into(), false.into()), ("locks".into(), false.into())]);
}

#[test]
fn killed_client_fails_alone() {
    let out = tempfile::tempdir().expect("directory created");
    let mut run = Run::start("dying", &["--only", "loop"], out.path());
    run.until("loop: warming up: zookeeper-client, zoolock serve");
    let workers = run.processes();
    let worker =
        workers.iter().find(|worker| worker.contains("worker zoolock ")).expect("zoolock has a worker");
    let pid = worker
        .split([' ', '/'])
        .find_map(|part| part.parse().ok())
        .expect("the path contains the process id");
    kill_process(Pid::from_raw(pid).expect("the process id is valid"), Signal::KILL).expect("worker killed");
    let (succeeded, table) = run.end();
    assert!(succeeded, "the failed client has failed the run");
    let results = results(out.path());
    for entry in works(&results)[0]["entries"].as_array().expect("entries is a list") {
        let failed = entry["failed"].as_str().unwrap_or_default();
        let dead = entry["client"] == "zoolock" && failed.contains("the client ");
        let done = entry["rounds"].as_array().is_some_and(|rounds| rounds.len() == 1);
        assert!(dead || done || failed.contains("install"), "{entry}");
    }
    assert!(table.contains("failed: the client "), "the table does not report the failure");
}

/// Runs a worker on one work. Returns the counts of its requests.
async fn count_requests(client: &str, work: &str) -> FrameCounts {
    let server = TestServer::start().await.expect("server started");
    let proxy = Proxy::start(&server.address()).await.expect("proxy started");
    let mut worker = Command::new(env!("CARGO_BIN_EXE_zoolock-bench"));
    worker.args(["worker", client]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut worker = worker.spawn().expect("command started");
    let mut input = worker.stdin.take().expect("stdin is piped");
    writeln!(input, "{work} connect={} path=/b/1", proxy.addr()).expect("job sent");
    // The worker ends at the end of its input.
    drop(input);
    let answer = worker.wait_with_output().expect("worker ended");
    let answer = String::from_utf8(answer.stdout).expect("stdout is text");
    assert!(answer.starts_with("ok "), "{answer}");
    proxy.counts()
}

/// Checks that zoolock and the client `same` send the same requests for the work of a number of locks. The numbers of
/// requests of each kind may differ by `tolerance`.
async fn assert_same_requests(same: &str, work: impl Fn(u64) -> String, tolerance: u64) {
    let ops = [
        opcode::CREATE,
        opcode::CREATE2,
        opcode::DELETE,
        opcode::EXISTS,
        opcode::GET_DATA,
        opcode::SET_DATA,
        opcode::GET_CHILDREN,
        opcode::GET_CHILDREN2,
        opcode::MULTI,
    ];
    let mut added = Vec::new();
    for client in ["zoolock", same] {
        // The difference between thirty and ten locks counts the requests of twenty locks, without
        // those of the session itself.
        let (few, many) = (count_requests(client, &work(10)).await, count_requests(client, &work(30)).await);
        let requests = ops.map(|op| many.requests(op) - few.requests(op));
        added.push((requests, many.bytes_to_server - few.bytes_to_server));
    }
    let [(ours, our_bytes), (same, same_bytes)] = added[..] else { unreachable!("two clients were counted") };
    let alike = ours.iter().zip(&same).all(|(ours, same)| ours.abs_diff(*same) <= tolerance);
    assert!(alike, "{ours:?} and {same:?} of {ops:?}");
    assert!(our_bytes.abs_diff(same_bytes) * 10 < our_bytes, "{our_bytes} and {same_bytes} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_called_same_send_zoolocks_requests() {
    assert_same_requests("same", |locks| format!("spread locks={locks} sessions=1 hold_us=50000"), 0).await;
    // A worker that the machine delays may hold the lock for long enough to set a watch, so the counts may differ.
    assert_same_requests("same-at-once", |count| format!("solo count={count} warm=0 release=await"), 4).await;
}

#[test]
fn unknown_work_is_refused() {
    let out = tempfile::tempdir().expect("directory created");
    let (succeeded, table) = Run::start("none", &["--only", "nothing"], out.path()).end();
    assert!(!succeeded && table.is_empty());
    assert!(!out.path().join("compare.json").exists(), "results were written");
}
