//! SASL with GSSAPI: on Apache ZooKeeper with a real KDC, and what is said where a ticket is missing.
#![cfg(feature = "gssapi")]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{TICK, brisk_settings, settings};
use tokio::time::timeout;
use zoolock::{Builder, Error, Kerberos, LossReason, Zoolock};
use zoolock_tests::realm::cache;
use zoolock_tests::{Apache, Embedded, Proxy, Realm, ServerOptions, ZoolockBinary, in_realm};

/// Its name in the realm; the connect strings say 127.0.0.1.
fn service() -> Kerberos {
    Kerberos::new().host("localhost")
}

async fn start(realm: &Realm, options: ServerOptions) -> Apache {
    let properties = realm.server().expect("writable").properties;
    Apache::start(ServerOptions { properties, ..options }).await.expect("it starts")
}

async fn open(address: &str, builder: Builder) -> Result<Zoolock, Error> {
    builder.connect_timeout(Duration::from_secs(10)).connect(address).await
}

async fn command(apache: &Apache, args: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let zoolock = ZoolockBinary::find().expect("built");
    let mut command = zoolock.command(args);
    command.env("ZOOLOCK_CONNECT", apache.addr()).env("ZOOLOCK_AUTH", "kerberos:zookeeper/localhost");
    let done = command.envs(variables.iter().copied()).output().await.expect("it starts");
    (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
}

#[test]
fn locks_belong_to_the_principal() {
    in_realm("locks_belong_to_the_principal", async |realm: &mut Realm| {
        for user in ["jobs", "ops"] {
            realm.add(user).expect("added");
        }
        let theirs = realm.cache().with_file_name("ops");
        realm.kinit("jobs", &realm.cache(), &[]).expect("a ticket");
        realm.kinit("ops", &theirs, &[]).expect("a ticket");
        let apache = start(realm, ServerOptions::default()).await;
        let first = open(&apache.addr(), settings().kerberos(service())).await.expect("a session");
        let second = open(&apache.addr(), settings().kerberos(service())).await.expect("a session");
        let guard = first.mutex("nightly").lock().await.expect("free");
        assert!(second.mutex("nightly").try_lock().await.expect("it answers").is_none());
        let nobody = open(&apache.addr(), settings()).await.expect("a session");
        let denied = nobody.mutex("nightly").try_lock().await;
        assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
        // It shows a ticket on the next connection, too.
        apache.restart().await.expect("it comes up again");
        guard.release().await.expect("still ours");

        let run = &["run", "nightly", "--", "true"][..];
        for args in [run, &["ls"], &["doctor"]] {
            assert_eq!(command(&apache, args, &[]).await.0, Some(0), "{args:?}");
        }
        let (code, said) = command(&apache, run, &[("KRB5CCNAME", &cache(&theirs))]).await;
        assert_eq!(code, Some(77), "{said}");
        // A daemon has no ticket, but a keytab to get one with.
        let (own, keytab) = (realm.cache().with_file_name("daemon"), realm.keytab("jobs"));
        let variables =
            [("KRB5CCNAME", &*cache(&own)), ("KRB5_CLIENT_KTNAME", keytab.to_str().expect("of a test"))];
        let (code, said) = command(&apache, run, &variables).await;
        assert_eq!(code, Some(0), "{said}");
        for zl in [first, second, nobody] {
            zl.close().await;
        }
    });
}

/// Tries to open a session, and says what came of it, and how soon.
async fn refused(address: &str, kerberos: Kerberos) -> (Error, Duration) {
    let began = Instant::now();
    let opened = timeout(Duration::from_secs(60), open(address, settings().kerberos(kerberos))).await;
    let opened = match opened.expect("it does not hang") {
        // Some say it only when they are asked for something.
        Ok(zl) => zl.mutex("x").try_lock().await.map(|_| ()),
        Err(error) => Err(error),
    };
    (opened.expect_err("there is no ticket for it"), began.elapsed())
}

#[test]
fn what_is_wrong_with_tickets_is_said_at_once() {
    in_realm("what_is_wrong_with_tickets_is_said_at_once", async |realm: &mut Realm| {
        let at_once = Duration::from_secs(5);
        for principal in ["jobs", "zookeeper/elsewhere"] {
            realm.add(principal).expect("added");
        }
        let apache = start(realm, ServerOptions::default()).await;
        let addr = apache.addr();
        let kinit = |further: &[&str]| realm.kinit("jobs", &realm.cache(), further).expect("a ticket");

        let (error, took) = refused(&addr, service()).await;
        assert!(matches!(error, Error::Denied { .. }) && took < at_once, "{error:?} after {took:?}");
        assert!(error.to_string().contains("kinit") && error.to_string().contains(&addr), "{error}");
        for args in [&["run", "x", "--", "true"][..], &["doctor"]] {
            let (code, said) = command(&apache, args, &[]).await;
            assert!(code == Some(77) && said.contains("kinit"), "{args:?}: {code:?} {said}");
        }

        // As a full disk leaves it; some releases of libkrb5 end the process by it.
        std::fs::write(realm.cache(), "").expect("writable");
        let (code, said) = command(&apache, &["run", "x", "--", "true"], &[]).await;
        assert!(code == Some(77) && said.contains("damaged"), "{code:?} {said}");
        let (error, took) = refused(&addr, service()).await;
        assert!(matches!(error, Error::Denied { .. }) && took < at_once, "{error:?} after {took:?}");

        kinit(&["-l", "1s"]);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (error, took) = refused(&addr, service()).await;
        assert!(matches!(error, Error::Denied { .. }) && took < at_once, "{error:?} after {took:?}");
        assert!(error.to_string().contains("kinit") && error.to_string().contains("xpired"), "{error}");

        kinit(&[]);
        let (error, took) = refused(&addr, Kerberos::new().service("nobody").host("localhost")).await;
        assert!(matches!(error, Error::Denied { .. }) && took < at_once, "{error:?} after {took:?}");
        assert!(error.to_string().contains("nobody/localhost"), "{error}");

        // The KDC knows it, and the server is another one.
        let (error, _) = refused(&addr, service().host("elsewhere")).await;
        assert!(matches!(error, Error::Denied { .. }), "{error:?}");

        let embedded = Embedded::start(ServerOptions::default()).await.expect("it starts");
        let (error, _) = refused(&embedded.socket_addr().to_string(), service()).await;
        assert!(matches!(error, Error::Denied { .. }), "{error:?}");
        assert!(error.to_string().contains("GSSAPI"), "{error}");
        open(&addr, settings().kerberos(service())).await.expect("nothing is wrong with it").close().await;
    });
}

#[test]
fn a_kdc_that_does_not_answer_is_named_in_time() {
    in_realm("a_kdc_that_does_not_answer_is_named_in_time", async |realm: &mut Realm| {
        realm.add("jobs").expect("added");
        let apache = start(realm, ServerOptions::default()).await;
        realm.kinit("jobs", &realm.cache(), &[]).expect("a ticket");
        let patience = Duration::from_secs(2);
        let attempt = async || {
            let began = Instant::now();
            let opened =
                settings().kerberos(service()).connect_timeout(patience).connect(&apache.addr()).await;
            (opened, began.elapsed())
        };
        let named = |(opened, took): (Result<Zoolock, Error>, Duration)| {
            let error = opened.expect_err("the KDC says nothing");
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            assert!(error.to_string().contains("KDC"), "{error}");
            assert!(took < patience + Duration::from_secs(2), "{error} after {took:?}");
        };
        realm.pause();
        named(attempt().await);
        realm.kill();
        named(attempt().await);
        realm.launch().expect("it comes up again");
        let (opened, _) = attempt().await;
        opened.expect("a session").close().await;
        // What is in the cache is enough where nobody listens; whoever says nothing is waited for.
        realm.kill();
        let (opened, _) = attempt().await;
        opened.expect("a session").close().await;
        realm.launch().expect("it comes up again");
        realm.pause();
        named(attempt().await);
    });
}

#[test]
fn a_silent_kdc_does_not_keep_a_loss_from_its_holder() {
    in_realm("a_silent_kdc_does_not_keep_a_loss_from_its_holder", async |realm: &mut Realm| {
        realm.add("jobs").expect("added");
        realm.kinit("jobs", &realm.cache(), &[]).expect("a ticket");
        let apache = start(realm, ServerOptions { tick: TICK, ..Default::default() }).await;
        let proxy = Proxy::start(&apache.addr()).await.expect("a proxy");
        let zl = brisk_settings().kerberos(service()).connect_timeout(Duration::from_secs(60));
        let zl = zl.connect(&proxy.addr()).await.expect("a session");
        let guard = zl.mutex("nightly").lock().await.expect("free");

        // Of the tickets only the first is left: for the next connection the KDC has to be asked.
        realm.kinit("jobs", &realm.cache(), &[]).expect("a ticket");
        realm.pause();
        proxy.cut().await;
        let until = guard.valid_until().remaining();
        let (began, reason) = (Instant::now(), timeout(Duration::from_secs(10), guard.lost()).await);
        let took = began.elapsed();
        assert_eq!(reason.expect("it is told"), LossReason::Unreachable);
        assert!(!guard.is_valid(), "lost, and still valid");
        assert!(took < until + Duration::from_millis(500), "told after {took:?}, valid for {until:?}");
        assert!(!has_service_ticket(&realm.cache()), "the KDC was not needed");

        realm.resume();
        // The session may live on, and its place with it.
        drop(guard);
        let again = timeout(Duration::from_secs(60), zl.mutex("nightly").lock()).await;
        again.expect("in time").expect("free").release().await.expect("ours");
        zl.close().await;
    });
}

#[test]
fn without_forwarding_a_silent_kdc_is_not_missed() {
    in_realm("without_forwarding_a_silent_kdc_is_not_missed", async |realm: &mut Realm| {
        realm.forbid_forwarding().expect("writable");
        realm.add("jobs").expect("added");
        realm.kinit("jobs", &realm.cache(), &["-f"]).expect("a ticket");
        let apache = start(realm, ServerOptions::default()).await;
        let proxy = Proxy::start(&apache.addr()).await.expect("a proxy");
        let zl = open(&proxy.addr(), settings().kerberos(service())).await.expect("a session");
        let guard = zl.mutex("nightly").lock().await.expect("free");
        realm.pause();
        let accepted = proxy.stats().connections.len();
        proxy.cut().await;
        proxy.until("the next connection", |stats| stats.connections.len() > accepted).await;
        guard.release().await.expect("still ours");
        let other = open(&apache.addr(), settings().kerberos(service())).await.expect("a session");
        other.mutex("nightly").lock().await.expect("free").release().await.expect("ours");
        other.close().await;
        zl.close().await;
    });
}

/// As it stands in the file.
fn has_service_ticket(cache: &Path) -> bool {
    let bytes = std::fs::read(cache).expect("there");
    bytes.windows(b"localhost".len()).any(|at| at == b"localhost")
}
