//! A standalone Apache ZooKeeper from Debian's packages, as a child process.

use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use crate::four_letter::send_four_letter_word;
use crate::ports::Port;
use crate::process::last_lines;
pub use crate::skip::Availability;
use crate::{Result, ServerOptions, TestFailure, lock};

/// The jar of the server. Its manifest names most of the other jars that the server needs.
pub const SERVER_JAR: &str = "/usr/share/java/zookeeper.jar";

/// The jar of a logger that writes to standard error.
pub const LOGGER_JAR: &str = "/usr/share/java/slf4j-simple.jar";

/// The server's main class. Its argument is the configuration file.
pub const SERVER_CLASS: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

/// Jars that Netty needs for TLS and that the manifest of the server's jar does not name.
const NETTY_JARS: &str = "/usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar:\
                          /usr/share/java/netty-transport-native-unix-common.jar";

/// Time limit for a start of the server. It is generous, because a Java virtual machine starts slowly on a busy machine.
const START_BOUND: Duration = Duration::from_secs(60);
const STOP_BOUND: Duration = Duration::from_secs(20);
const PROBE_BOUND: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(10);

/// Returns whether Apache ZooKeeper can be started on this machine.
pub fn availability() -> Availability {
    static AVAILABILITY: OnceLock<Availability> = OnceLock::new();
    AVAILABILITY.get_or_init(check_availability).clone()
}

fn check_availability() -> Availability {
    if !Path::new(SERVER_JAR).exists() {
        return Availability::Missing(format!("no {SERVER_JAR}, install the package libzookeeper-java"));
    }
    let mut java = Command::new("java");
    match java.arg("-version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(status) if status.success() => Availability::Available,
        Ok(status) => Availability::Missing(format!("`java -version` ends with {status}")),
        Err(error) => Availability::Missing(format!("no java, install default-jdk-headless ({error})")),
    }
}

/// A running Apache ZooKeeper. Dropping it kills the process and waits for its end.
#[derive(Debug)]
pub struct Apache {
    options: ServerOptions,
    /// The maximum session timeout that the server grants. [`Apache::restart_with_limit`] changes it.
    longest_session: Mutex<Duration>,
    port: Port,
    secure: Option<Port>,
    dir: TempDir,
    process: Mutex<Option<Child>>,
}

impl Apache {
    /// Starts a server with an empty tree and waits until it serves.
    ///
    /// # Errors
    /// Fails if the server ends, or does not serve within 60 s. The error contains the end of the
    /// server's log.
    pub async fn start(options: ServerOptions) -> Result<Self> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let apache = Self {
                longest_session: Mutex::new(options.max_session_timeout),
                options: options.clone(),
                port: Port::reserve()?,
                secure: options.tls.is_some().then(Port::reserve).transpose()?,
                dir: TempDir::new()
                    .map_err(|error| TestFailure::during("making a directory for ZooKeeper", error))?,
                process: Mutex::new(None),
            };
            match apache.launch().await {
                Ok(()) => return Ok(apache),
                Err(StartFailure::PortTaken(_)) if attempts < 5 => {}
                Err(not_up) => return Err(not_up.into()),
            }
        }
    }

    /// Returns the address on which the server listens.
    pub fn socket_addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Returns the address on which the server listens, as `host:port`.
    pub fn addr(&self) -> String {
        self.port.addr().to_string()
    }

    /// Returns the options with which the server was started.
    pub fn options(&self) -> &ServerOptions {
        &self.options
    }

    /// Returns the address of the server's TLS port, if it has one.
    pub fn secure_addr(&self) -> Option<SocketAddr> {
        self.secure.as_ref().map(Port::addr)
    }

    /// Returns the process id of the server, or `None` while it is down.
    pub fn pid(&self) -> Option<u32> {
        self.process().as_ref().map(Child::id)
    }

    /// Kills the process with SIGKILL, to simulate a crash.
    pub async fn kill(&self) {
        self.end(Signal::KILL).await;
    }

    /// Shuts the server down with SIGTERM. Kills the process if it still runs after 20 s.
    pub async fn stop(&self) {
        self.end(Signal::TERM).await;
    }

    /// Starts the server again with the same port and data. Kills it first if it runs.
    ///
    /// # Errors
    /// Fails like [`Apache::start`].
    pub async fn restart(&self) -> Result<()> {
        self.kill().await;
        let deadline = Instant::now() + START_BOUND;
        loop {
            match self.launch().await {
                Ok(()) => return Ok(()),
                // Another process can use the port for a moment. That process is no test, because
                // tests reserve their ports.
                Err(StartFailure::PortTaken(_)) if Instant::now() < deadline => sleep(PAUSE).await,
                Err(not_up) => return Err(not_up.into()),
            }
        }
    }

    /// Restarts the server like [`Self::restart`], with `longest` as its new maximum session timeout.
    ///
    /// # Errors
    /// Fails like [`Self::restart`].
    pub async fn restart_with_limit(&self, longest: Duration) -> Result<()> {
        *lock(&self.longest_session) = longest;
        self.restart().await
    }

    /// Sends a four-letter word and returns the answer. The server allows all words.
    ///
    /// # Errors
    /// Fails if the server does not answer within 10 s.
    pub async fn four_letter(&self, word: &str) -> Result<String> {
        send_four_letter_word(self.socket_addr(), word).await
    }

    /// Returns the last lines of the server's log.
    pub fn log_tail(&self) -> String {
        last_lines(&self.dir.path().join("log"), 40)
    }

    async fn launch(&self) -> std::result::Result<(), StartFailure> {
        let child = self.spawn()?;
        *self.process() = Some(child);
        let deadline = Instant::now() + START_BOUND;
        loop {
            if let Some(status) = self.reap() {
                let log = self.log_tail();
                let failure =
                    TestFailure::new(format!("ZooKeeper ended with {status}; its log ends with\n{log}"));
                let taken = log.contains("Address already in use");
                return Err(if taken {
                    StartFailure::PortTaken(failure)
                } else {
                    StartFailure::Failed(failure)
                });
            }
            if self.serves().await {
                return Ok(());
            }
            if Instant::now() >= deadline {
                self.kill().await;
                let log = self.log_tail();
                let message =
                    format!("ZooKeeper does not serve after {START_BOUND:?}; its log ends with\n{log}");
                return Err(StartFailure::Failed(TestFailure::new(message)));
            }
            sleep(PAUSE).await;
        }
    }

    /// Returns whether this server serves requests.
    ///
    /// An answer to `ruok` is not enough. The server answers `ruok` before it has loaded the tree,
    /// and another server on this port would answer too. So the answer to `conf` must also name the
    /// data directory.
    async fn serves(&self) -> bool {
        let asked = async {
            let answer = self.four_letter("ruok").await?;
            Result::Ok((answer, self.four_letter("conf").await?))
        };
        // A server that is still starting may never answer, so the wait has a time limit.
        match timeout(PROBE_BOUND, asked).await {
            Ok(Ok((answer, conf))) => answer == "imok" && conf.contains(&*self.data_dir()),
            Ok(Err(_)) | Err(_) => false,
        }
    }

    fn spawn(&self) -> Result<Child> {
        let failed = |error| TestFailure::during("starting ZooKeeper", error);
        let config = self.dir.path().join("zoo.cfg");
        std::fs::write(&config, self.config()).map_err(failed)?;
        let log = self.log().map_err(failed)?;
        let digest = self.options.super_digest.as_deref();
        let digest = digest.map(|it| format!("-Dzookeeper.DigestAuthenticationProvider.superDigest={it}"));
        let whole_heap = ["-XX:+AlwaysPreTouch".to_owned(), format!("-Xms{}", self.options.heap)];
        Command::new("java")
            .arg(format!("-Xmx{}", self.options.heap))
            .args(whole_heap.iter().filter(|_| self.options.whole_heap))
            .args(digest)
            .args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"])
            .arg("-Dzookeeper.extendedTypesEnabled=true")
            .arg(format!("-Dzookeeper.forceSync={}", if self.options.fsync { "yes" } else { "no" }))
            .arg(format!("-Dznode.container.checkIntervalMs={}", self.options.container_check.as_millis()))
            .args(self.options.properties.iter().map(|property| format!("-D{property}")))
            .args(["-cp", &format!("{SERVER_JAR}:{LOGGER_JAR}:{NETTY_JARS}")])
            .arg(SERVER_CLASS)
            .arg(&config)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log)
            .spawn()
            .map_err(failed)
    }

    fn config(&self) -> String {
        let ServerOptions { tick, min_session_timeout, max_client_connections, words, .. } = &self.options;
        let longest_session = *lock(&self.longest_session);
        let mut config = format!(
            "tickTime={}\ndataDir={}\nclientPortAddress=127.0.0.1\nclientPort={}\nmaxClientCnxns={}\n\
             4lw.commands.whitelist={words}\nadmin.enableServer=false\nmaxSessionTimeout={}\n",
            tick.as_millis(),
            self.data_dir(),
            self.port.number(),
            max_client_connections,
            longest_session.as_millis(),
        );
        if let Some(shortest) = min_session_timeout {
            config.push_str(&format!("minSessionTimeout={}\n", shortest.as_millis()));
        }
        if let (Some(secure), Some(authority)) = (&self.secure, &self.options.tls) {
            config.push_str(&format!(
                "secureClientPortAddress=127.0.0.1\nsecureClientPort={}\n\
                 serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
                 ssl.keyStore.location={}\nssl.keyStore.type=PEM\n\
                 ssl.trustStore.location={}\nssl.trustStore.type=PEM\nssl.clientAuth={}\n",
                secure.number(),
                authority.key_and_certificate().display(),
                authority.ca().display(),
                if authority.demands_client_certificates() { "need" } else { "none" },
            ));
        }
        config
    }

    /// Returns the directory of the server's snapshots and transaction logs.
    pub fn data_dir(&self) -> String {
        self.dir.path().join("data").display().to_string()
    }

    /// Opens an empty log at each start, so that "address in use" in the log comes from this start.
    fn log(&self) -> std::io::Result<File> {
        OpenOptions::new().create(true).write(true).truncate(true).open(self.dir.path().join("log"))
    }

    /// Sends a signal and waits until the process has ended. Kills the process after 20 s.
    ///
    /// The child stays in `self` until its end, so that dropping this future leaves no process behind.
    async fn end(&self, signal: Signal) {
        let deadline = Instant::now() + STOP_BOUND;
        self.send(signal);
        while self.pid().is_some() && self.reap().is_none() {
            if Instant::now() >= deadline {
                self.send(Signal::KILL);
            }
            sleep(PAUSE).await;
        }
    }

    /// Sends a signal to the process, if it runs.
    fn send(&self, signal: Signal) {
        if let Some(child) = self.process().as_ref() {
            kill_process(Pid::from_child(child), signal)
                .expect("a child keeps its id until it is waited for");
        }
    }

    /// Reaps the process and returns its status, if it has ended.
    fn reap(&self) -> Option<ExitStatus> {
        let mut process = self.process();
        let status = process.as_mut()?.try_wait().ok()??;
        *process = None;
        Some(status)
    }

    fn process(&self) -> MutexGuard<'_, Option<Child>> {
        lock(&self.process)
    }
}

impl Drop for Apache {
    fn drop(&mut self) {
        if let Some(mut child) = self.process().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

enum StartFailure {
    PortTaken(TestFailure),
    Failed(TestFailure),
}

impl From<TestFailure> for StartFailure {
    fn from(failure: TestFailure) -> Self {
        Self::Failed(failure)
    }
}

impl From<StartFailure> for TestFailure {
    fn from(not_up: StartFailure) -> Self {
        match not_up {
            StartFailure::PortTaken(failure) | StartFailure::Failed(failure) => failure,
        }
    }
}
