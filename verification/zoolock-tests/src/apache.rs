//! Apache ZooKeeper from Debian's packages, as a child process.
//!
//! [`command`] starts any server: a standalone one, or a member of an ensemble. [`Apache`] is a standalone server for
//! tests.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use crate::four_letter::send_four_letter_word;
use crate::ports::Port;
use crate::process::last_lines;
use crate::server_process::ServerProcess;
pub use crate::skip::Availability;
use crate::{Result, ServerOptions, TestFailure, lock};

/// The jar of the server. Its manifest names most of the other jars that the server needs.
const SERVER_JAR: &str = "/usr/share/java/zookeeper.jar";

/// The jar of a logger that writes to standard error.
const LOGGER_JAR: &str = "/usr/share/java/slf4j-simple.jar";

/// The server's main class. Its argument is the configuration file.
const SERVER_CLASS: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

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

/// A server of an ensemble.
#[derive(Clone, Debug)]
pub struct EnsembleMember {
    /// The number of the server. The first server has the number 1.
    pub number: usize,
    /// The number of ticks in which a follower must connect to a new leader.
    pub init_limit: u32,
    /// The number of ticks after which the leader gives up a silent follower.
    pub sync_limit: u32,
    /// The addresses at which this server reaches each server, itself included: for the quorum, and for elections.
    pub servers: Vec<[SocketAddr; 2]>,
}

/// Writes the configuration of a server to the directory `dir`, which also gets the data. Returns the command that starts
/// the server there. `addr` is the address for clients, and `secure` that for clients with TLS. `secure` is used only if
/// the options have a certificate authority.
///
/// # Errors
/// Fails if the configuration cannot be written.
pub fn command(
    dir: &Path,
    addr: SocketAddr,
    secure: Option<SocketAddr>,
    options: &ServerOptions,
    member: Option<&EnsembleMember>,
) -> Result<Command> {
    let (config, data) = (dir.join("zoo.cfg"), dir.join("data"));
    let written = std::fs::create_dir_all(&data).and_then(|()| {
        if let Some(member) = member {
            std::fs::write(data.join("myid"), member.number.to_string())?;
        }
        std::fs::write(&config, configuration(&data, addr, secure, options, member))
    });
    written.map_err(|error| TestFailure::during("configuring ZooKeeper", error))?;
    let digest = options.super_digest.as_deref();
    let digest = digest.map(|it| format!("-Dzookeeper.DigestAuthenticationProvider.superDigest={it}"));
    let fast_start = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];
    let whole_heap = ["-XX:+AlwaysPreTouch".to_owned(), format!("-Xms{}", options.heap)];
    let mut command = Command::new("java");
    command
        .arg(format!("-Xmx{}", options.heap))
        .args(whole_heap.iter().filter(|_| options.whole_heap))
        .args(digest)
        .args(fast_start.iter().filter(|_| options.fast_start))
        // Runs `true` on an `OutOfMemoryError`. With this option the virtual machine prints the error, which would not
        // appear in the log otherwise.
        .arg("-XX:OnOutOfMemoryError=true")
        .args(["-Djava.net.preferIPv4Stack=true", "-Dzookeeper.extendedTypesEnabled=true"])
        .arg(format!("-Dzookeeper.forceSync={}", if options.fsync { "yes" } else { "no" }))
        .arg(format!("-Dznode.container.checkIntervalMs={}", options.container_check.as_millis()))
        .args(options.properties.iter().map(|property| format!("-D{property}")))
        .args(["-cp", &format!("{SERVER_JAR}:{LOGGER_JAR}:{NETTY_JARS}")])
        .arg(SERVER_CLASS)
        .arg(config)
        .current_dir(dir);
    Ok(command)
}

fn configuration(
    data: &Path,
    addr: SocketAddr,
    secure: Option<SocketAddr>,
    options: &ServerOptions,
    member: Option<&EnsembleMember>,
) -> String {
    let ServerOptions { tick, min_session_timeout, max_client_connections, words, .. } = options;
    let mut config = format!(
        "tickTime={}\ndataDir={}\nclientPortAddress={}\nclientPort={}\nmaxClientCnxns={}\n\
         4lw.commands.whitelist={words}\nadmin.enableServer=false\nmaxSessionTimeout={}\n",
        tick.as_millis(),
        data.display(),
        addr.ip(),
        addr.port(),
        max_client_connections,
        options.max_session_timeout.as_millis(),
    );
    // Writing to a string does not fail.
    if let Some(shortest) = min_session_timeout {
        let _ = writeln!(config, "minSessionTimeout={}", shortest.as_millis());
    }
    if let (Some(secure), Some(authority)) = (secure, &options.tls) {
        let _ = writeln!(
            config,
            "secureClientPortAddress={}\nsecureClientPort={}\n\
             serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
             ssl.keyStore.location={}\nssl.keyStore.type=PEM\n\
             ssl.trustStore.location={}\nssl.trustStore.type=PEM\nssl.clientAuth={}",
            secure.ip(),
            secure.port(),
            authority.key_and_certificate().display(),
            authority.ca().display(),
            if authority.demands_client_certificates() { "need" } else { "none" },
        );
    }
    if let Some(EnsembleMember { init_limit, sync_limit, servers, .. }) = member {
        let _ = writeln!(config, "initLimit={init_limit}\nsyncLimit={sync_limit}");
        for (index, [quorum, election]) in servers.iter().enumerate() {
            let _ = writeln!(config, "server.{}={quorum}:{}", index + 1, election.port());
        }
    }
    config
}

/// A running standalone server. Dropping it kills the process and waits for its end.
#[derive(Debug)]
pub struct Apache {
    options: ServerOptions,
    /// The maximum session timeout that the server grants. [`Apache::restart_with_limit`] changes it.
    longest_session: Mutex<Duration>,
    port: Port,
    secure: Option<Port>,
    dir: TempDir,
    process: Mutex<Option<Arc<ServerProcess>>>,
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
        let process = self.process().filter(|process| process.exit_status().is_none());
        process.map(|process| process.pid())
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
        last_lines(&self.log(), 40)
    }

    async fn launch(&self) -> std::result::Result<(), StartFailure> {
        let process = Arc::new(self.spawn()?);
        *lock(&self.process) = Some(process.clone());
        let deadline = Instant::now() + START_BOUND;
        loop {
            if let Err(failure) = process.check_running() {
                let taken = self.log_tail().contains("Address already in use");
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

    fn spawn(&self) -> Result<ServerProcess> {
        let options =
            ServerOptions { max_session_timeout: *lock(&self.longest_session), ..self.options.clone() };
        let command = command(self.dir.path(), self.socket_addr(), self.secure_addr(), &options, None)?;
        // A new log at each start shows that "address in use" comes from this start.
        let _ = std::fs::remove_file(self.log());
        ServerProcess::start(command, &self.log())
    }

    /// Returns the directory of the server's snapshots and transaction logs.
    pub fn data_dir(&self) -> String {
        self.dir.path().join("data").display().to_string()
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Sends a signal and waits until the process has ended.
    async fn end(&self, signal: Signal) {
        if let Some(process) = self.process() {
            process.end(signal, STOP_BOUND).await;
        }
    }

    fn process(&self) -> Option<Arc<ServerProcess>> {
        lock(&self.process).clone()
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
