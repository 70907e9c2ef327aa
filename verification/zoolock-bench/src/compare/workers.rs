//! The workers: one process for each client during the whole run, so that Java compiles the code
//! only once.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use zoolock_tests::other_libraries::{self, PYTHON, compile_java, java_availability, kazoo_availability};
use zoolock_tests::process::last_lines;
use zoolock_tests::skip::Availability;

use super::client::{ComparedClient, Program};
use crate::Outcome;
use crate::job::{Job, Measurement};

/// The id of a worker: its client, and its number. A client may have a second worker.
type WorkerId = (ComparedClient, usize);

/// Workers. They are started on first use and killed when dropped.
pub(super) struct WorkerPool {
    workers: BTreeMap<WorkerId, WorkerProcess>,
    dir: TempDir,
}

impl WorkerPool {
    pub(super) fn new() -> Outcome<Self> {
        Ok(Self { workers: BTreeMap::new(), dir: TempDir::with_prefix("zoolock-bench-")? })
    }

    /// Returns a directory that workers can read.
    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Sends a job to a worker. Does not wait for its end.
    pub(super) async fn send_job(&mut self, client: ComparedClient, number: usize, job: &Job) -> Outcome<()> {
        let id = (client, number);
        if !self.workers.contains_key(&id) {
            let worker = WorkerProcess::start(self.command(client).await?, self.stderr_path(id))?;
            self.workers.insert(id, worker);
        }
        let worker = self.workers.get_mut(&id).expect("the worker was just added");
        let sent = worker.input.write_all(format!("{}\n", job.line()).as_bytes()).await;
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
        format!("the client {how}: {}", last_lines(&self.stderr_path(id), 3).replace('\n', "; ")).into()
    }

    fn stderr_path(&self, (client, number): WorkerId) -> PathBuf {
        self.dir().join(format!("{client:?}-{number}.txt"))
    }

    async fn command(&self, client: ComparedClient) -> Outcome<Command> {
        match client.program() {
            Program::Rust(name) => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("worker").arg(name);
                Ok(command)
            }
            Program::Java(name) => {
                require(java_availability())?;
                let classes = compile_java(&[peers_file("Peers.java")], self.dir()).await?;
                let mut command = other_libraries::java(&classes);
                command.args(["-Xmx2g", "-Xss256k", "-Djava.net.preferIPv4Stack=true", "Peers", name]);
                Ok(command)
            }
            Program::Python => {
                require(kazoo_availability())?;
                let mut command = Command::new(PYTHON);
                command.arg("-u").arg(peers_file("peers.py"));
                Ok(command)
            }
        }
    }
}

fn require(availability: Availability) -> Outcome<()> {
    match availability {
        Availability::Available => Ok(()),
        Availability::Missing(reason) => Err(reason.into()),
    }
}

fn peers_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}

struct WorkerProcess {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl WorkerProcess {
    fn start(mut command: Command, errors: PathBuf) -> Outcome<Self> {
        // In its own process group, the worker gets no interrupt from the terminal.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(errors)?).process_group(0);
        command.kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let input = child.stdin.take().expect("stdin is piped");
        let output = child.stdout.take().expect("stdout is piped");
        Ok(Self { _child: child, input, output: BufReader::new(output).lines() })
    }
}
