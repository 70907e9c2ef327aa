//! `zoolock-bench compare`, with little of everything: that it works, not what it measures.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use zoolock::TestServer;
use zoolock_tests::proxy::Counts;
use zoolock_tests::skip::skip;
use zoolock_tests::{Proxy, ZoolockBinary, opcode};

const WORKS: [&str; 11] =
    ["alone", "far", "loop", "few", "many", "most", "locks", "process", "articles", "rest", "tenure"];

/// By which the processes of a run are known: they inherit it.
const MARK: &str = "ZOOLOCK_BENCH_MARK";

/// A run of the harness. It is killed when dropped, and what it started ends with its own handles.
struct Run {
    child: Child,
    mark: String,
    talk: BufReader<ChildStderr>,
}

impl Run {
    fn start(name: &str, args: &[&str], out: &Path) -> Self {
        let zoolock = ZoolockBinary::find().expect("the command is built");
        let mark = format!("{name}-{}", std::process::id());
        let mut command = Command::new(env!("CARGO_BIN_EXE_zoolock-bench"));
        command.args(["compare", "--quick", "--rounds", "1"]).args(args).arg("--out").arg(out);
        command.arg("--zoolock").arg(zoolock.path()).env(MARK, &mark);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it can be executed");
        let talk = BufReader::new(child.stderr.take().expect("it is piped"));
        Self { child, mark, talk }
    }

    /// Reads until it says so.
    fn until(&mut self, what: &str) {
        let mut said = String::new();
        while !said.lines().last().is_some_and(|line| line.contains(what)) {
            let read = self.talk.read_line(&mut said).expect("it writes text");
            assert_ne!(read, 0, "it never said {what:?}:\n{said}");
        }
    }

    /// Whether it ended well, and what it printed.
    fn end(mut self) -> (bool, String) {
        let mut talk = String::new();
        std::io::Read::read_to_string(&mut self.talk, &mut talk).expect("it writes text");
        let mut table = String::new();
        let mut output = self.child.stdout.take().expect("it is piped");
        std::io::Read::read_to_string(&mut output, &mut table).expect("it writes text");
        let status = self.child.wait().expect("it is ours");
        println!("{talk}{table}");
        assert_eq!(self.processes(), Vec::<String>::new(), "it left them behind");
        (status.success(), table)
    }

    /// What belongs to the run: number and command line.
    fn processes(&self) -> Vec<String> {
        let mark = format!("{MARK}={}", self.mark);
        let all = fs::read_dir("/proc").expect("this is Linux").flatten().map(|entry| entry.path());
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
        kill_process(Pid::from_child(&self.child), signal).expect("it is ours");
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn results(out: &Path) -> Value {
    let text = fs::read_to_string(out.join("compare.json")).expect("it was written");
    serde_json::from_str(&text).expect("it is well-formed")
}

fn works(results: &Value) -> Vec<&Value> {
    results["works"].as_array().expect("a list").iter().collect()
}

#[test]
fn compare_measures_everything_and_leaves_no_process() {
    let out = tempfile::tempdir().expect("a directory");
    let (well, table) = Run::start("everything", &[], out.path()).end();
    assert!(well);
    let results = results(out.path());
    let names: Vec<&str> = works(&results).iter().filter_map(|work| work["name"].as_str()).collect();
    assert_eq!(names, WORKS);
    assert_eq!(fs::read_to_string(out.path().join("compare.md")).expect("it was written") + "\n", table);
    let csv = fs::read_to_string(out.path().join("compare.csv")).expect("it was written");
    for work in works(&results) {
        let name = work["name"].as_str().expect("a name");
        assert_eq!(work["cut_short"], false, "{name}");
        let lines = csv.lines().filter(|line| line.split(',').next() == Some(name)).count();
        assert_eq!(Some(lines), work["entries"].as_array().map(Vec::len), "{name}: {csv}");
        assert!(table.contains(&format!("**{}**", work["title"].as_str().expect("a title"))), "{name}");
        for entry in work["entries"].as_array().expect("a list") {
            let who = format!("{} on {} in {name}", entry["client"], entry["server"]);
            match entry["failed"].as_str() {
                None => assert_eq!(entry["rounds"].as_array().map(Vec::len), Some(1), "{who}"),
                // Only what is not installed may be missing.
                Some(why) if why.contains("install") => skip(&who, why),
                Some(why) => panic!("{who} failed: {why}"),
            }
        }
    }
    assert!(table.contains("| at most 1.10 × create + delete | "), "what must be shown is there");
}

#[test]
fn interrupted_it_keeps_what_it_has_and_leaves_no_process() {
    let out = tempfile::tempdir().expect("a directory");
    let mut run = Run::start("interrupted", &["--only", "loop", "--only", "locks"], out.path());
    run.until("locks: round 1 of 1: zoolock, zoolock serve");
    assert!(!run.processes().is_empty(), "its processes can be seen");
    run.signal(Signal::INT);
    let (well, table) = run.end();
    assert!(!well, "an interrupted run is no success");
    let results = results(out.path());
    let cut: Vec<_> =
        works(&results).iter().map(|work| (work["name"].clone(), work["cut_short"].clone())).collect();
    assert_eq!(cut, [("loop".into(), false.into()), ("locks".into(), true.into())]);
    assert!(table.contains("(cut short"));
    // A later run puts its figures beside those.
    let (well, _) = Run::start("later", &["--only", "locks"], out.path()).end();
    assert!(well);
    let results = self::results(out.path());
    let cut: Vec<_> =
        works(&results).iter().map(|work| (work["name"].clone(), work["cut_short"].clone())).collect();
    assert_eq!(cut, [("loop".into(), false.into()), ("locks".into(), false.into())]);
}

#[test]
fn a_client_that_dies_fails_alone() {
    let out = tempfile::tempdir().expect("a directory");
    let mut run = Run::start("dying", &["--only", "loop"], out.path());
    run.until("loop: warming up: zookeeper-client, zoolock serve");
    let workers = run.processes();
    let worker =
        workers.iter().find(|worker| worker.contains("worker zoolock ")).expect("it has been at work");
    let number = worker.split([' ', '/']).find_map(|part| part.parse().ok()).expect("the path ends with it");
    kill_process(Pid::from_raw(number).expect("a number of a process"), Signal::KILL).expect("it is there");
    let (well, table) = run.end();
    assert!(well, "one that fails does not stop the others");
    let results = results(out.path());
    for entry in works(&results)[0]["entries"].as_array().expect("a list") {
        let failed = entry["failed"].as_str().unwrap_or_default();
        let dead = entry["client"] == "zoolock" && failed.contains("the client ");
        let done = entry["rounds"].as_array().is_some_and(|rounds| rounds.len() == 1);
        assert!(dead || done || failed.contains("install"), "{entry}");
    }
    assert!(table.contains("failed: the client "), "the table says so");
}

/// What the worker sends for this work.
async fn counted(client: &str, work: &str) -> Counts {
    let server = TestServer::start().await.expect("a server");
    let proxy = Proxy::start(&server.address()).await.expect("a port");
    let mut worker = Command::new(env!("CARGO_BIN_EXE_zoolock-bench"));
    worker.args(["worker", client]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut worker = worker.spawn().expect("it can be executed");
    let mut input = worker.stdin.take().expect("it is piped");
    writeln!(input, "{work} connect={} path=/b/1", proxy.addr()).expect("it reads");
    // The end of its input ends it.
    drop(input);
    let answer = worker.wait_with_output().expect("it is ours");
    let answer = String::from_utf8(answer.stdout).expect("it writes text");
    assert!(answer.starts_with("ok "), "{answer}");
    proxy.counts()
}

/// `work` of a number of locks: at most so many requests of a kind are only ours, or only `same`'s.
async fn sends_the_same(same: &str, work: impl Fn(u64) -> String, apart: u64) {
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
    let mut more = Vec::new();
    for client in ["zoolock", same] {
        // Twenty locks more: what a session costs, and how it is looked after, falls out.
        let (few, many) = (counted(client, &work(10)).await, counted(client, &work(30)).await);
        let requests = ops.map(|op| many.requests(op) - few.requests(op));
        more.push((requests, many.bytes_to_server - few.bytes_to_server));
    }
    let [(ours, our_bytes), (same, same_bytes)] = more[..] else { unreachable!("there are two") };
    let alike = ours.iter().zip(&same).all(|(ours, same)| ours.abs_diff(*same) <= apart);
    assert!(alike, "{ours:?} and {same:?} of {ops:?}");
    assert!(our_bytes.abs_diff(same_bytes) * 10 < our_bytes, "{our_bytes} and {same_bytes} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_called_our_requests_is_what_we_send() {
    sends_the_same("same", |locks| format!("spread locks={locks} sessions=1 hold_us=50000"), 0).await;
    // Whoever is held up holds it for long enough to set a watch.
    sends_the_same("same-at-once", |count| format!("solo count={count} warm=0 release=await"), 4).await;
}

#[test]
fn a_work_that_is_none_is_refused() {
    let out = tempfile::tempdir().expect("a directory");
    let (well, table) = Run::start("none", &["--only", "nothing"], out.path()).end();
    assert!(!well && table.is_empty());
    assert!(!out.path().join("compare.json").exists(), "it began to measure");
}
