//! SASL with DIGEST-MD5 on Apache ZooKeeper, and the error on a server without SASL.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::time::timeout;
use zeroize::Zeroizing;
use zoolock::sasl::{Authenticator, BoxFuture, Mechanism, MissingCredentials};
use zoolock::{Builder, Error, Zoolock};
use zoolock_client::sasl::DigestMd5;
use zoolock_tests::locks::{connect, lock_and_release, settings};
use zoolock_tests::{Apache, ServerOptions, ZoolockBinary, apache, on_both_servers};

const PASSWORD: &str = "pass:word";

/// Starts a server with the SASL users `jobs` and `ops`.
async fn start(dir: &Path) -> Apache {
    let users = dir.join("jaas.conf");
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
    let text = format!("Server {{ {module} required user_jobs=\"{PASSWORD}\" user_ops=\"other\"; }};\n");
    std::fs::write(&users, text).expect("file is writable");
    let options = ServerOptions {
        properties: vec![
            format!("java.security.auth.login.config={}", users.display()),
            "zookeeper.authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider".to_owned(),
        ],
        ..ServerOptions::default()
    };
    Apache::start(options).await.expect("server starts")
}

/// Returns a builder whose session timeout outlasts a restart, even while other tests start Java virtual machines.
fn patient() -> Builder {
    settings().session_timeout(Duration::from_secs(40))
}

fn jobs() -> Builder {
    patient().sasl_digest_md5("jobs", PASSWORD)
}

async fn open(apache: &Apache, builder: Builder) -> Result<Zoolock, Error> {
    builder.connect_timeout(Duration::from_secs(30)).connect(&apache.addr()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_belong_to_the_sasl_user() {
    if !apache::availability().or_skip("locks_belong_to_the_sasl_user") {
        return;
    }
    let dir = TempDir::new().expect("temporary directory created");
    let apache = start(dir.path()).await;
    let (first, second) = (open(&apache, jobs()).await, open(&apache, jobs()).await);
    let (first, second) = (first.expect("session starts"), second.expect("session starts"));
    let ops = open(&apache, patient().sasl_digest_md5("ops", "other")).await.expect("session starts");
    let guard = first.mutex("nightly").lock().await.expect("lock acquired");
    assert!(second.mutex("nightly").try_lock().await.expect("attempt succeeds").is_none());
    let third = patient().sasl_mechanism(OtherMechanism { missing: None });
    let third = open(&apache, third).await.expect("session starts");
    assert!(third.mutex("nightly").try_lock().await.expect("attempt succeeds").is_none());
    let denied = ops.mutex("nightly").try_lock().await;
    assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
    // The client authenticates again on the next connection.
    apache.restart().await.expect("server restarts");
    guard.release().await.expect("release succeeds");
    lock_and_release(&second.mutex("nightly")).await;

    for (wrong, builder) in [
        ("a password", patient().sasl_digest_md5("jobs", "wrong-hunter2")),
        ("a user", patient().sasl_digest_md5("nobody", PASSWORD)),
        ("without", patient().auth("digest", "jobs:wrong-hunter2")),
    ] {
        let refused = timeout(Duration::from_secs(60), async {
            open(&apache, builder).await?.mutex("nightly").try_lock().await.map(|_| ())
        });
        let error = refused.await.expect("call returns in time").expect_err(wrong);
        assert!(matches!(error, Error::Denied { .. } | Error::Lost { .. }), "{wrong}: {error:?}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    let zoolock = ZoolockBinary::find().expect("zoolock binary is built");
    let file = zoolock.home().join("credentials");
    std::fs::write(&file, format!("jobs:{PASSWORD}\n")).expect("file is writable");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("permissions set");
    let auth = format!("sasl:@{}", file.display());
    for args in [&["run", "nightly", "--", "true"][..], &["ls"], &["doctor"]] {
        let mut command = zoolock.command([&["-v"], args].concat());
        command.env("ZOOLOCK_CONNECT", apache.addr()).env("ZOOLOCK_AUTH", &auth);
        let done = command.output().await.expect("command runs");
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(0), "{args:?}: {said}");
        assert!(!said.contains(PASSWORD), "{said}");
    }
    for zl in [first, second, third, ops] {
        zl.close().await;
    }
}

on_both_servers!(error_names_the_server_without_sasl, |place| async move {
    let address = place.connect_string();
    let opened = jobs().connect_timeout(Duration::from_secs(2)).connect(&address);
    let error = timeout(Duration::from_secs(60), opened).await.expect("call returns in time");
    let error = error.expect_err("server has no SASL");
    assert!(!format!("{error} {error:?}").contains(PASSWORD), "{error}");
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    assert!(error.to_string().contains("SASL") && error.to_string().contains(&place.addr()), "{error}");
    // Clients without SASL still work.
    let zl = connect(&place).await;
    lock_and_release(&zl.mutex("x")).await;
    zl.close().await;
});

/// A mechanism that is defined outside the library: DIGEST-MD5 with a password, or with a reason
/// why the password is missing.
struct OtherMechanism {
    missing: Option<MissingCredentials>,
}

/// The authenticator of [`OtherMechanism`].
struct OtherAuthenticator {
    missing: Option<MissingCredentials>,
}

impl Mechanism for OtherMechanism {
    fn authenticator(&self, hosts: Vec<String>) -> Result<Arc<dyn Authenticator>, Error> {
        assert_eq!(hosts, ["127.0.0.1"]);
        Ok(Arc::new(OtherAuthenticator { missing: self.missing.clone() }))
    }
}

impl Authenticator for OtherAuthenticator {
    fn mechanism(self: Arc<Self>) -> Arc<dyn zoolock_client::sasl::SaslClient> {
        Arc::new(DigestMd5::new("jobs", Zeroizing::new(PASSWORD.to_owned())))
    }

    fn fetch(&self) -> BoxFuture<'_, Result<(), MissingCredentials>> {
        Box::pin(async move { self.missing.clone().map_or(Ok(()), Err) })
    }

    fn problem(&self) -> Option<String> {
        self.missing.as_ref().map(|missing| missing.message.clone())
    }

    fn refusal(&self) -> String {
        unreachable!("this mechanism is not refused")
    }
}

/// Connects to a port without a server, with a mechanism that has no credentials.
///
/// `is_final` is true if the credentials will stay missing. Returns the error, and the time until
/// the connect failed.
async fn without_credentials(is_final: bool) -> (Error, Duration) {
    let missing = Some(MissingCredentials { message: "no badge; ask the porter".to_owned(), is_final });
    let builder = settings().sasl_mechanism(OtherMechanism { missing });
    let began = Instant::now();
    let opened = builder.connect_timeout(Duration::from_secs(2)).connect("127.0.0.1:1").await;
    (opened.expect_err("credentials are missing"), began.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_credentials_of_mechanism_are_reported() {
    let (error, took) = without_credentials(true).await;
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    assert!(
        error.to_string().contains("no badge") && took < Duration::from_secs(1),
        "{error} after {took:?}"
    );
    let (error, took) = without_credentials(false).await;
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(
        error.to_string().contains("no badge") && took >= Duration::from_secs(2),
        "{error} after {took:?}"
    );

    let both = jobs().sasl_mechanism(OtherMechanism { missing: None }).connect("127.0.0.1:1").await;
    assert!(matches!(both, Err(Error::Invalid { .. })), "{both:?}");
}
