//! A Kerberos realm for tests, with the KDC of MIT Kerberos.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;

use zoolock_tests::ports::Port;
use zoolock_tests::skip::Availability;
use zoolock_tests::{Result, ServerOptions, TestFailure, apache};

const REALM: &str = "ZOOLOCK.TEST";

// These paths are absolute, because `/usr/sbin` is not in the `PATH` of every user.
const KDC: &str = "/usr/sbin/krb5kdc";
const KDB: &str = "/usr/sbin/kdb5_util";
const KADMIN: &str = "/usr/sbin/kadmin.local";
const KINIT: &str = "/usr/bin/kinit";

const START_BOUND: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(10);

/// The environment variable that names the directory of the realm. It is set for the process that runs the body of a
/// test.
const DIRECTORY: &str = "ZOOLOCK_TEST_REALM";

/// A running realm with the service `zookeeper/localhost`. Dropping it ends the KDC.
#[derive(Debug)]
pub(crate) struct Realm {
    dir: PathBuf,
    address: SocketAddr,
    kdc: Option<Child>,
}

/// Runs the body of the test `name` in a process of its own, whose environment names the realm for libkrb5. A process
/// with several threads cannot safely change its own environment.
///
/// # Panics
/// If the body panics, or if the realm does not start.
pub(crate) fn in_realm(name: &str, body: impl AsyncFnOnce(&mut Realm)) {
    if let Some(dir) = std::env::var_os(DIRECTORY) {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let mut realm = Realm::start(Path::new(&dir)).expect("KDC started");
        runtime.expect("runtime started").block_on(body(&mut realm));
        return;
    }
    if !availability().or_skip(name) || !apache::availability().or_skip(name) {
        return;
    }
    let dir = TempDir::new().expect("directory created");
    let at = |name: &str| dir.path().join(name);
    let status = Command::new(std::env::current_exe().expect("path of this program is known"))
        .args(["--exact", name, "--nocapture"])
        .env(DIRECTORY, dir.path())
        .env("KRB5_CONFIG", at("krb5.conf"))
        .env("KRB5_KDC_PROFILE", at("kdc.conf"))
        .env("KRB5CCNAME", cache(&at("cache")))
        .env_remove("KRB5_CLIENT_KTNAME")
        .status()
        .expect("process started");
    assert!(status.success(), "{name}: {status}");
}

/// Returns the value of `KRB5CCNAME` for this file.
pub(crate) fn cache(file: &Path) -> String {
    format!("FILE:{}", file.display())
}

fn availability() -> Availability {
    let packages = [(KDC, "krb5-kdc"), (KADMIN, "krb5-admin-server"), (KINIT, "krb5-user")];
    for (program, package) in packages {
        if !Path::new(program).exists() {
            return Availability::Missing(format!("no {program}, install the package {package}"));
        }
    }
    Availability::Available
}

impl Realm {
    fn start(dir: &Path) -> Result<Self> {
        // The reservation of the port is not kept: after `kill`, clients must find neither a TCP
        // nor a UDP socket at this address.
        let address = Port::reserve()?.addr();
        let mut realm = Self { dir: dir.to_owned(), address, kdc: None };
        realm.write()?;
        run(Command::new(KDB).args(["create", "-s", "-r", REALM, "-P", "of a test"]))?;
        realm.add("zookeeper/localhost")?;
        realm.launch()?;
        Ok(realm)
    }

    /// Adds a principal with a keytab.
    pub(crate) fn add(&self, principal: &str) -> Result<()> {
        let keytab = self.keytab(principal);
        run(Command::new(KADMIN).args(["-r", REALM, "-q", &format!("addprinc -randkey {principal}")]))?;
        run(Command::new(KADMIN).args([
            "-r",
            REALM,
            "-q",
            &format!("ktadd -k {} {principal}", keytab.display()),
        ]))?;
        match keytab.exists() {
            true => Ok(()),
            false => Err(TestFailure::new(format!("no keytab was made for {principal}"))),
        }
    }

    /// Returns the keytab of a principal.
    pub(crate) fn keytab(&self, principal: &str) -> PathBuf {
        self.dir.join(format!("{}.keytab", principal.replace('/', "-")))
    }

    /// Returns the ticket cache of this process.
    pub(crate) fn cache(&self) -> PathBuf {
        self.dir.join("cache")
    }

    /// Replaces the cache with a new one that has only a ticket-granting ticket.
    pub(crate) fn kinit(&self, principal: &str, cache: &Path, further: &[&str]) -> Result<()> {
        let keytab = self.keytab(principal);
        let mut kinit = Command::new(KINIT);
        kinit.args(["-c", &self::cache(cache), "-k", "-t"]).arg(keytab).args(further).arg(principal);
        run(&mut kinit)
    }

    /// Returns the options with which Apache ZooKeeper runs as `zookeeper/localhost` in this realm.
    pub(crate) fn server(&self) -> Result<ServerOptions> {
        let principal = "zookeeper/localhost";
        let jaas = self.dir.join("jaas.conf");
        let text = format!(
            "Server {{ com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true \
             useTicketCache=false keyTab=\"{}\" principal=\"{principal}@{REALM}\"; }};\n",
            self.keytab(principal).display()
        );
        std::fs::write(&jaas, text).map_err(|error| TestFailure::during("writing jaas.conf", error))?;
        Ok(ServerOptions {
            properties: vec![
                format!("java.security.auth.login.config={}", jaas.display()),
                format!("java.security.krb5.conf={}", self.dir.join("krb5.conf").display()),
                "zookeeper.authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
                    .to_owned(),
            ],
            ..ServerOptions::default()
        })
    }

    /// Freezes the KDC (SIGSTOP): the kernel accepts connections, and nothing answers.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
        let kdc = self.kdc.as_ref().expect("KDC running");
        waitid(WaitId::Pid(Pid::from_child(kdc)), WaitIdOptions::STOPPED).expect("KDC stopped");
    }

    /// Resumes a frozen KDC.
    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Ends the KDC.
    pub(crate) fn kill(&mut self) {
        if let Some(mut kdc) = self.kdc.take() {
            let _ = kdc.kill();
            let _ = kdc.wait();
        }
    }

    /// Starts the KDC, and waits until it answers.
    pub(crate) fn launch(&mut self) -> Result<()> {
        let failed = |error| TestFailure::during("starting the KDC", error);
        let log = File::create(self.dir.join("kdc.log")).map_err(failed)?;
        let mut kdc = Command::new(KDC);
        kdc.args(["-n", "-r", REALM, "-P"]).arg(self.dir.join("kdc.pid")).stdin(Stdio::null());
        kdc.stdout(log.try_clone().map_err(failed)?).stderr(log);
        self.kdc = Some(kdc.spawn().map_err(failed)?);
        let deadline = Instant::now() + START_BOUND;
        while TcpStream::connect(self.address).is_err() {
            if Instant::now() >= deadline {
                let log = std::fs::read_to_string(self.dir.join("kdc.log")).unwrap_or_default();
                return Err(TestFailure::new(format!("the KDC does not answer; its log:\n{log}")));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        let kdc = self.kdc.as_ref().expect("KDC running");
        kill_process(Pid::from_child(kdc), signal).expect("signal sent");
    }

    fn write(&self) -> Result<()> {
        let address = self.address;
        let at = |name: &str| self.dir.join(name).display().to_string();
        let client = format!(
            "[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n \
             dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n\
             [realms]\n {REALM} = {{\n  kdc = {address}\n }}\n[domain_realm]\n localhost = {REALM}\n"
        );
        let kdc = format!(
            "[kdcdefaults]\n kdc_listen = {address}\n kdc_tcp_listen = {address}\n\
             [realms]\n {REALM} = {{\n  database_name = {}\n  key_stash_file = {}\n  acl_file = {}\n }}\n\
             [logging]\n kdc = STDERR\n",
            at("principal"),
            at("stash"),
            at("acl"),
        );
        let written = std::fs::write(self.dir.join("krb5.conf"), client);
        let written = written.and_then(|()| std::fs::write(self.dir.join("kdc.conf"), kdc));
        written.map_err(|error| TestFailure::during("writing the configuration of a realm", error))
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        self.kill();
    }
}

fn run(command: &mut Command) -> Result<()> {
    let what = format!("{:?}", command.get_program());
    let done = command.stdin(Stdio::null()).output().map_err(|error| TestFailure::during(&what, error))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(TestFailure::new(format!("{what}: {}", String::from_utf8_lossy(&done.stderr)))),
    }
}
