//! SASL with DIGEST-MD5: on Apache ZooKeeper, which has it, and what is said by one that has not.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use common::{connect, settings};
use tempfile::TempDir;
use tokio::time::timeout;
use zoolock::{Builder, Error, Zoolock};
use zoolock_tests::{Apache, ServerOptions, ZoolockBinary, apache, on_both_arms};

const PASSWORD: &str = "pass:word";

/// A server that knows two users.
async fn start(dir: &Path) -> Apache {
    let users = dir.join("jaas.conf");
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
    let text = format!("Server {{ {module} required user_jobs=\"{PASSWORD}\" user_ops=\"other\"; }};\n");
    std::fs::write(&users, text).expect("writable");
    let options = ServerOptions {
        properties: vec![
            format!("java.security.auth.login.config={}", users.display()),
            "zookeeper.authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider".to_owned(),
        ],
        ..ServerOptions::default()
    };
    Apache::start(options).await.expect("it starts")
}

/// Sessions that outlive a restart beside other tests, whose virtual machines start at the same time.
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
async fn locks_belong_to_the_user_of_sasl() {
    if !apache::availability().or_skip("locks_belong_to_the_user_of_sasl") {
        return;
    }
    let dir = TempDir::new().expect("a directory");
    let apache = start(dir.path()).await;
    let (first, second) = (open(&apache, jobs()).await, open(&apache, jobs()).await);
    let (first, second) = (first.expect("a session"), second.expect("a session"));
    let ops = open(&apache, patient().sasl_digest_md5("ops", "other")).await.expect("a session");
    let guard = first.mutex("nightly").lock().await.expect("free");
    assert!(second.mutex("nightly").try_lock().await.expect("it answers").is_none());
    let denied = ops.mutex("nightly").try_lock().await;
    assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
    // It says who it is on the next connection, too.
    apache.restart().await.expect("it comes up again");
    guard.release().await.expect("still ours");
    second.mutex("nightly").lock().await.expect("free").release().await.expect("ours");

    for (wrong, builder) in [
        ("a password", patient().sasl_digest_md5("jobs", "wrong-hunter2")),
        ("a user", patient().sasl_digest_md5("nobody", PASSWORD)),
        ("without", patient().auth("digest", "jobs:wrong-hunter2")),
    ] {
        let refused = timeout(Duration::from_secs(60), async {
            open(&apache, builder).await?.mutex("nightly").try_lock().await.map(|_| ())
        });
        let error = refused.await.expect("it does not hang").expect_err(wrong);
        assert!(matches!(error, Error::Denied { .. } | Error::Lost { .. }), "{wrong}: {error:?}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    let zoolock = ZoolockBinary::find().expect("built");
    let file = zoolock.home().join("credentials");
    std::fs::write(&file, format!("jobs:{PASSWORD}\n")).expect("writable");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("ours");
    let auth = format!("sasl:@{}", file.display());
    for args in [&["run", "nightly", "--", "true"][..], &["ls"], &["doctor"]] {
        let mut command = zoolock.command([&["-vvv"], args].concat());
        command.env("ZOOLOCK_CONNECT", apache.addr()).env("ZOOLOCK_AUTH", &auth);
        let done = command.output().await.expect("it starts");
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(0), "{args:?}: {said}");
        assert!(!said.contains(PASSWORD), "{said}");
    }
    for zl in [first, second, ops] {
        zl.close().await;
    }
}

on_both_arms!(a_service_without_sasl_is_named, |place| async move {
    let address = place.connect_string();
    let opened = jobs().connect_timeout(Duration::from_secs(2)).connect(&address);
    let error = timeout(Duration::from_secs(60), opened).await.expect("it does not hang");
    let error = error.expect_err("nobody there speaks SASL");
    assert!(!format!("{error} {error:?}").contains(PASSWORD), "{error}");
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    assert!(error.to_string().contains("SASL") && error.to_string().contains(&place.addr()), "{error}");
    // The others are no worse for it.
    let zl = connect(&place).await;
    zl.mutex("x").lock().await.expect("free").release().await.expect("ours");
    zl.close().await;
});
