//! The workers: one process for each client during the whole run, so that Java compiles the code
//! only once.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::ChildStdout;

use super::client::{ComparedClient, Program};
use crate::Outcome;
use crate::job::{Job, Measurement};

const JARS: [&str; 4] = [
    "/usr/share/java/curator-recipes.jar",
    "/usr/share/java/zookeeper-recipes-lock.jar",
    "/usr/share/java/zookeeper.jar",
    "/usr/share/java/slf4j-nop.jar",
];
const JAVA: &str = include_str!("../../peers/Peers.java");
const PYTHON: &str = include_str!("../../peers/peers.py");
/// Debian's interpreter, which has Debian's kazoo.
const INTERPRETER: &str = "/usr/bin/python3";

/// The id of a worker: its client, and its number. A client may have a second worker.
type WorkerId = (ComparedClient, usize);

/// Workers. They are started on first use and killed when dropped.
pub(super) struct WorkerPool {
    workers: BTreeMap<WorkerId, WorkerProcess>,
    dir: TempDir,
    /// The compiled Java classes, or the error of the compiler.
    classes: Option<Result<PathBuf, String>>,
}

impl WorkerPool {
    pub(super) fn new() -> Outcome<Self> {
        Ok(Self { workers: BTreeMap::new(), dir: TempDir::with_prefix("zoolock-bench-")?, classes: None })
    }

    /// Returns a directory that workers can read.
    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Sends a job to a worker. Does not wait for its end.
    pub(super) fn send_job(&mut self, client: ComparedClient, number: usize, job: &Job) -> Outcome<()> {
        let id = (client, number);
        if !self.workers.contains_key(&id) {
            let worker = WorkerProcess::start(self.command(client)?, self.stderr_path(id))?;
            self.workers.insert(id, worker);
        }
        let worker = self.workers.get_mut(&id).expect("the worker was just added");
        let sent = writeln!(worker.input, "{}", job.line());
        sent.map_err(|error| self.remove_failed(id, &format!("does not accept jobs: {error}")))
    }

    /// Waits for the result of the job. Kills a worker that does not answer in time.
    pub(super) async fn receive_result(
        &mut self,
        client: ComparedClient,
        number: usize,
        limit: Duration,
    ) -> Outcome<Measurement> {
        let id = (client, number);
        let Some(worker) = self.workers.get_mut(&id) else { return Err("it was given no job".into()) };
        match tokio::time::timeout(limit, worker.output.next_line()).await {
            Ok(Ok(Some(line))) => Measurement::parse(&line).inspect_err(|_| {
                // After a failed job, the sessions and threads of the worker may be in any state.
                // So the worker is killed.
                self.workers.remove(&id);
            }),
            Ok(Ok(None)) => Err(self.remove_failed(id, "ended")),
            Ok(Err(error)) => Err(self.remove_failed(id, &format!("cannot be read: {error}"))),
            Err(_) => {
                self.workers.remove(&id);
                Err(format!("not done within {} s", limit.as_secs()).into())
            }
        }
    }

    /// Kills a worker.
    pub(super) fn stop(&mut self, client: ComparedClient, number: usize) {
        self.workers.remove(&(client, number));
    }

    fn remove_failed(&mut self, id: WorkerId, how: &str) -> Box<dyn std::error::Error + Send + Sync> {
        self.workers.remove(&id);
        let output = fs::read(self.stderr_path(id)).unwrap_or_default();
        let output = String::from_utf8_lossy(&output);
        let last: Vec<&str> = output.lines().rev().take(3).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        format!("the client {how}: {}", last.join("; ")).into()
    }

    fn stderr_path(&self, (client, number): WorkerId) -> PathBuf {
        self.dir().join(format!("{client:?}-{number}.txt"))
    }

    fn command(&mut self, client: ComparedClient) -> Outcome<Command> {
        match client.program() {
            Program::Rust(name) => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("worker").arg(name);
                Ok(command)
            }
            Program::Java(name) => {
                let classes = self.classes.take().unwrap_or_else(|| self.compile());
                let classes = self.classes.insert(classes).clone()?;
                let mut command = Command::new("java");
                command.args(["-Xmx2g", "-Xss256k", "-Djava.net.preferIPv4Stack=true"]);
                command.args(["-cp", &class_path(&classes), "Peers", name]);
                Ok(command)
            }
            Program::Python => {
                let mut look = Command::new(INTERPRETER);
                look.args(["-c", "import kazoo"]).stderr(Stdio::null()).stdin(Stdio::null());
                if !look.status().is_ok_and(|status| status.success()) {
                    return Err("no kazoo, install the package python3-kazoo".into());
                }
                let file = self.dir().join("peers.py");
                fs::write(&file, PYTHON)?;
                let mut command = Command::new(INTERPRETER);
                command.arg("-u").arg(file);
                Ok(command)
            }
        }
    }

    fn compile(&self) -> Result<PathBuf, String> {
        if let Some(missing) = JARS.iter().find(|jar| !Path::new(jar).exists()) {
            return Err(format!(
                "no {missing}, install the packages libcurator-recipes-java and libzookeeper-java"
            ));
        }
        let (source, classes) = (self.dir().join("Peers.java"), self.dir().join("classes"));
        fs::write(&source, JAVA).map_err(|error| error.to_string())?;
        let mut javac = Command::new("javac");
        javac.arg("-d").arg(&classes).args(["-cp", &class_path(Path::new(""))]).arg(&source);
        let output = javac.stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("no javac, install default-jdk-headless ({error})"))?;
        if output.status.success() {
            Ok(classes)
        } else {
            Err(format!("javac ends with {}: {}", output.status, String::from_utf8_lossy(&output.stderr)))
        }
    }
}

fn class_path(classes: &Path) -> String {
    let jars = JARS.map(str::to_owned);
    [classes.display().to_string()].into_iter().chain(jars).collect::<Vec<_>>().join(":")
}

struct WorkerProcess {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl WorkerProcess {
    fn start(mut command: Command, errors: PathBuf) -> Outcome<Self> {
        // In its own process group, the worker gets no interrupt from the terminal.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(errors)?).process_group(0);
        let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let input = child.stdin.take().expect("stdin is piped");
        let output = ChildStdout::from_std(child.stdout.take().expect("stdout is piped"))?;
        Ok(Self { child, input, output: BufReader::new(output).lines() })
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
