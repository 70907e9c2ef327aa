//! A realm of Kerberos, with a KDC of MIT's from Debian's packages.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;

use crate::ports::Port;
use crate::skip::Availability;
use crate::{Failure, Result, ServerOptions, apache};

/// What it is called.
pub const REALM: &str = "ZOOLOCK.TEST";

/// Not in the path of every user.
const KDC: &str = "/usr/sbin/krb5kdc";
const KDB: &str = "/usr/sbin/kdb5_util";
const KADMIN: &str = "/usr/sbin/kadmin.local";
const KINIT: &str = "/usr/bin/kinit";

const START_BOUND: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(10);

/// Where it is, for the process that the test runs in.
const DIRECTORY: &str = "ZOOLOCK_TEST_REALM";

/// A realm with the service `zookeeper/localhost`; dropping it ends the KDC.
#[derive(Debug)]
pub struct Realm {
    dir: PathBuf,
    address: SocketAddr,
    kdc: Option<Child>,
}

/// Runs the body of the test `name` in a process whose environment says where the realm is: libkrb5 finds it there, and a
/// process that has threads cannot change its own.
///
/// # Panics
/// When the body does, and when there is no realm to be had.
pub fn in_realm(name: &str, body: impl AsyncFnOnce(&mut Realm)) {
    if let Some(dir) = std::env::var_os(DIRECTORY) {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let mut realm = Realm::start(Path::new(&dir)).expect("a test of Kerberos needs a KDC that runs");
        runtime.expect("threads").block_on(body(&mut realm));
        return;
    }
    if !availability().or_skip(name) || !apache::availability().or_skip(name) {
        return;
    }
    let dir = TempDir::new().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let status = Command::new(std::env::current_exe().expect("we were started"))
        .args(["--exact", name, "--nocapture"])
        .env(DIRECTORY, dir.path())
        .env("KRB5_CONFIG", at("krb5.conf"))
        .env("KRB5_KDC_PROFILE", at("kdc.conf"))
        .env("KRB5CCNAME", cache(&at("cache")))
        .env_remove("KRB5_CLIENT_KTNAME")
        .status()
        .expect("it starts again");
    assert!(status.success(), "{name}: {status}");
}

/// As `KRB5CCNAME` names it.
pub fn cache(file: &Path) -> String {
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
        // Not kept: it is a socket for UDP, and whoever asks a KDC that is gone must find none there either.
        let address = Port::reserve()?.addr();
        let mut realm = Self { dir: dir.to_owned(), address, kdc: None };
        realm.write("")?;
        run(Command::new(KDB).args(["create", "-s", "-r", REALM, "-P", "of a test"]))?;
        realm.add("zookeeper/localhost")?;
        realm.launch()?;
        Ok(realm)
    }

    /// Adds a principal, with a keytab.
    ///
    /// # Errors
    /// When the KDC does not take it.
    pub fn add(&self, principal: &str) -> Result<()> {
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
            false => Err(Failure::new(format!("no keytab was made for {principal}"))),
        }
    }

    /// The file with the keys of a principal.
    pub fn keytab(&self, principal: &str) -> PathBuf {
        self.dir.join(format!("{}.keytab", principal.replace('/', "-")))
    }

    /// The cache of this process.
    pub fn cache(&self) -> PathBuf {
        self.dir.join("cache")
    }

    /// Gets the first ticket, which is all that is in the cache then.
    ///
    /// # Errors
    /// When there is none.
    pub fn kinit(&self, principal: &str, cache: &Path, further: &[&str]) -> Result<()> {
        let keytab = self.keytab(principal);
        let mut kinit = Command::new(KINIT);
        kinit.args(["-c", &self::cache(cache), "-k", "-t"]).arg(keytab).args(further).arg(principal);
        run(&mut kinit)
    }

    /// What Apache ZooKeeper needs to be `zookeeper/localhost` here.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn server(&self) -> Result<ServerOptions> {
        let principal = "zookeeper/localhost";
        let jaas = self.dir.join("jaas.conf");
        let text = format!(
            "Server {{ com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true \
             useTicketCache=false keyTab=\"{}\" principal=\"{principal}@{REALM}\"; }};\n",
            self.keytab(principal).display()
        );
        std::fs::write(&jaas, text).map_err(|error| Failure::during("writing jaas.conf", error))?;
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

    /// Lets nobody give tickets away. To be said before the first one is used: libkrb5 reads it once.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn forbid_forwarding(&self) -> Result<()> {
        self.write(" enforce_ok_as_delegate = true\n")
    }

    /// Freezes the KDC (SIGSTOP): its kernel accepts connections, and nothing answers.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        let kdc = self.kdc.as_ref().expect("it has just been sent a signal");
        waitid(WaitId::Pid(Pid::from_child(kdc)), WaitIdOptions::STOPPED)
            .expect("our child can be waited for");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Ends the KDC.
    pub fn kill(&mut self) {
        if let Some(mut kdc) = self.kdc.take() {
            let _ = kdc.kill();
            let _ = kdc.wait();
        }
    }

    /// Starts it again.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn launch(&mut self) -> Result<()> {
        let failed = |error| Failure::during("starting the KDC", error);
        let log = File::create(self.dir.join("kdc.log")).map_err(failed)?;
        let mut kdc = Command::new(KDC);
        kdc.args(["-n", "-r", REALM, "-P"]).arg(self.dir.join("kdc.pid")).stdin(Stdio::null());
        kdc.stdout(log.try_clone().map_err(failed)?).stderr(log);
        self.kdc = Some(kdc.spawn().map_err(failed)?);
        let deadline = Instant::now() + START_BOUND;
        while TcpStream::connect(self.address).is_err() {
            if Instant::now() >= deadline {
                let log = std::fs::read_to_string(self.dir.join("kdc.log")).unwrap_or_default();
                return Err(Failure::new(format!("the KDC does not answer; it says\n{log}")));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        let kdc = self.kdc.as_ref().expect("it runs");
        kill_process(Pid::from_child(kdc), signal).expect("our child can be sent a signal");
    }

    fn write(&self, further: &str) -> Result<()> {
        let address = self.address;
        let at = |name: &str| self.dir.join(name).display().to_string();
        let client = format!(
            "[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n \
             dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n{further}\
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
        written.map_err(|error| Failure::during("writing the configuration of a realm", error))
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        self.kill();
    }
}

fn run(command: &mut Command) -> Result<()> {
    let what = format!("{:?}", command.get_program());
    let done = command.stdin(Stdio::null()).output().map_err(|error| Failure::during(&what, error))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(Failure::new(format!("{what}: {}", String::from_utf8_lossy(&done.stderr)))),
    }
}
