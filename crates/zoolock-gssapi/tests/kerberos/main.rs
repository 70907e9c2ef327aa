//! Kerberos on Apache ZooKeeper with a real KDC, and the errors for missing tickets.

mod realm;

use std::path::Path;
use std::time::{Duration, Instant};

use realm::{Realm, cache, in_realm};
use tokio::time::timeout;
use zoolock::{Builder, Error, LossReason, Zoolock};
use zoolock_gssapi::Kerberos;
use zoolock_tests::{Apache, Embedded, Proxy, ServerOptions, ZoolockBinary};

/// Returns the service with the host `localhost`, as in the realm's principal. The connect strings
/// of the tests have the host 127.0.0.1.
fn service() -> Kerberos {
    Kerberos::new().host("localhost")
}

/// Returns the settings of a client for a server with the default options.
fn settings(kerberos: Kerberos) -> Builder {
    without_kerberos().sasl_mechanism(kerberos)
}

fn without_kerberos() -> Builder {
    Zoolock::builder().tick_time(ServerOptions::default().tick).session_timeout(Duration::from_secs(10))
}

async fn start(realm: &Realm, options: ServerOptions) -> Apache {
    let properties = realm.server().expect("jaas.conf is written").properties;
    Apache::start(ServerOptions { properties, ..options }).await.expect("server started")
}

async fn open(address: &str, builder: Builder) -> Result<Zoolock, Error> {
    builder.connect_timeout(Duration::from_secs(10)).connect(address).await
}

/// Runs the command `zoolock` and returns its exit code and standard error.
async fn command(apache: &Apache, args: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let zoolock = ZoolockBinary::find().expect("command built");
    let mut command = zoolock.command(args);
    command.env("ZOOLOCK_CONNECT", apache.addr()).env("ZOOLOCK_AUTH", "kerberos:zookeeper/localhost");
    let done = command.envs(variables.iter().copied()).output().await.expect("command started");
    (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
}

#[test]
fn locks_belong_to_the_principal() {
    in_realm("locks_belong_to_the_principal", async |realm: &mut Realm| {
        for user in ["jobs", "ops"] {
            realm.add(user).expect("principal added");
        }
        let ops_cache = realm.cache().with_file_name("ops");
        realm.kinit("jobs", &realm.cache(), &[]).expect("ticket fetched");
        realm.kinit("ops", &ops_cache, &[]).expect("ticket fetched");
        let apache = start(realm, ServerOptions::default()).await;
        let first = open(&apache.addr(), settings(service())).await.expect("session is opened");
        let second = open(&apache.addr(), settings(service())).await.expect("session is opened");
        let guard = first.mutex("nightly").lock().await.expect("lock granted");
        assert!(second.mutex("nightly").try_lock().await.expect("server answers").is_none());
        let anonymous = open(&apache.addr(), without_kerberos()).await.expect("session is opened");
        let denied = anonymous.mutex("nightly").try_lock().await;
        assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
        // The next connection shows a ticket, too.
        apache.restart().await.expect("server restarted");
        guard.release().await.expect("release succeeds");

        let run = &["run", "nightly", "--", "true"][..];
        // The command `doctor` opens a session of another type, for single requests.
        for args in [run, &["ls"], &["doctor"]] {
            let (code, stderr) = command(&apache, args, &[]).await;
            assert_eq!(code, Some(0), "{args:?}: {stderr}");
        }
        let (code, stderr) = command(&apache, run, &[("KRB5CCNAME", &cache(&ops_cache))]).await;
        assert_eq!(code, Some(77), "{stderr}");
        // A daemon has no ticket, but gets one with its keytab.
        let (own, keytab) = (realm.cache().with_file_name("daemon"), realm.keytab("jobs"));
        let variables =
            [("KRB5CCNAME", &*cache(&own)), ("KRB5_CLIENT_KTNAME", keytab.to_str().expect("UTF-8"))];
        let (code, stderr) = command(&apache, run, &variables).await;
        assert_eq!(code, Some(0), "{stderr}");
        for zl in [first, second, anonymous] {
            zl.close().await;
        }
    });
}

#[test]
fn lock_of_a_killed_command_is_freed() {
    in_realm("lock_of_a_killed_command_is_freed", async |realm: &mut Realm| {
        realm.add("jobs").expect("principal added");
        realm.kinit("jobs", &realm.cache(), &[]).expect("ticket fetched");
        let apache = start(realm, ServerOptions::default()).await;
        let zoolock = ZoolockBinary::find().expect("command built");
        let ready = zoolock.home().join("ready");
        let script = format!("echo > {}; exec sleep 1000", ready.display());
        let mut holder = zoolock.command(["run", "--session-timeout", "30s", "x", "--", "sh", "-c", &script]);
        holder.env("ZOOLOCK_CONNECT", apache.addr()).env("ZOOLOCK_AUTH", "kerberos:zookeeper/localhost");
        let mut holder = holder.kill_on_drop(true).spawn().expect("command started");
        while !ready.exists() {
            assert_eq!(holder.try_wait().expect("our child"), None);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        holder.kill().await.expect("our child");
        // The reaper ends the session within a third of the session timeout. The server would need two thirds or more.
        let killed = Instant::now();
        let (code, stderr) = command(&apache, &["run", "x", "--", "true"], &[]).await;
        assert_eq!(code, Some(0), "{stderr}");
        assert!(killed.elapsed() < Duration::from_secs(15), "{:?}", killed.elapsed());
    });
}

/// Opens a session, which must fail. Returns the error, and the time until it was reported.
async fn refused(address: &str, kerberos: Kerberos) -> (Error, Duration) {
    let began = Instant::now();
    let opened = timeout(Duration::from_secs(60), open(address, settings(kerberos))).await;
    let opened = match opened.expect("attempt ends in time") {
        // Some servers create the session, and refuse its first request.
        Ok(zl) => zl.mutex("x").try_lock().await.map(|_| ()),
        Err(error) => Err(error),
    };
    (opened.expect_err("session is refused"), began.elapsed())
}

#[test]
fn missing_ticket_is_reported_at_once() {
    in_realm("missing_ticket_is_reported_at_once", async |realm: &mut Realm| {
        let at_once = Duration::from_secs(5);
        for principal in ["jobs", "zookeeper/elsewhere"] {
            realm.add(principal).expect("principal added");
        }
        let apache = start(realm, ServerOptions::default()).await;
        let addr = apache.addr();
        let kinit = |further: &[&str]| realm.kinit("jobs", &realm.cache(), further).expect("ticket fetched");

        let (error, took) = refused(&addr, service()).await;
        assert!(matches!(error, Error::Denied { .. }) && took < at_once, "{error:?} after {took:?}");
        assert!(error.to_string().contains("kinit") && error.to_string().contains(&addr), "{error}");
        for args in [&["run", "x", "--", "true"][..], &["doctor"]] {
            let (code, stderr) = command(&apache, args, &[]).await;
            assert!(code == Some(77) && stderr.contains("kinit"), "{args:?}: {code:?} {stderr}");
        }

        // A full disk leaves an empty cache. Some releases of libkrb5 end the process when they read it.
        std::fs::write(realm.cache(), "").expect("cache is written");
        let (code, stderr) = command(&apache, &["run", "x", "--", "true"], &[]).await;
        assert!(code == Some(77) && stderr.contains("damaged"), "{code:?} {stderr}");
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

        // The KDC knows this service, but the server runs as another service.
        let (error, _) = refused(&addr, service().host("elsewhere")).await;
        assert!(matches!(error, Error::Denied { .. }), "{error:?}");

        let embedded = Embedded::start(ServerOptions::default()).await.expect("server started");
        let (error, _) = refused(&embedded.socket_addr().to_string(), service()).await;
        assert!(matches!(error, Error::Denied { .. }), "{error:?}");
        assert!(error.to_string().contains("GSSAPI"), "{error}");
        open(&addr, settings(service())).await.expect("session is opened").close().await;
    });
}

#[test]
fn silent_kdc_is_named_in_time() {
    in_realm("silent_kdc_is_named_in_time", async |realm: &mut Realm| {
        realm.add("jobs").expect("principal added");
        let apache = start(realm, ServerOptions::default()).await;
        realm.kinit("jobs", &realm.cache(), &[]).expect("ticket fetched");
        let patience = Duration::from_secs(2);
        let attempt = async || {
            let began = Instant::now();
            let opened = settings(service()).connect_timeout(patience).connect(&apache.addr()).await;
            (opened, began.elapsed())
        };
        let named = |(opened, took): (Result<Zoolock, Error>, Duration)| {
            let error = opened.expect_err("connect fails without the KDC");
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            assert!(error.to_string().contains("KDC"), "{error}");
            assert!(took < patience + Duration::from_secs(2), "{error} after {took:?}");
        };
        realm.pause();
        named(attempt().await);
        realm.kill();
        named(attempt().await);
        realm.launch().expect("KDC started");
        let (opened, _) = attempt().await;
        opened.expect("session is opened").close().await;
        // The cached ticket is enough for a new session.
        realm.kill();
        let (opened, _) = attempt().await;
        opened.expect("session is opened").close().await;
    });
}

#[test]
fn silent_kdc_does_not_delay_lost() {
    in_realm("silent_kdc_does_not_delay_lost", async |realm: &mut Realm| {
        realm.add("jobs").expect("principal added");
        realm.kinit("jobs", &realm.cache(), &[]).expect("ticket fetched");
        let apache = start(realm, ServerOptions::default()).await;
        let proxy = Proxy::start(&apache.addr()).await.expect("proxy started");
        let settings = Zoolock::builder()
            .tick_time(ServerOptions::default().tick)
            .session_timeout(Duration::from_secs(2))
            .sasl_mechanism(service())
            .connect_timeout(Duration::from_secs(60));
        let zl = settings.connect(&proxy.addr()).await.expect("session is opened");
        let guard = zl.mutex("nightly").lock().await.expect("lock granted");

        // The cache has no service ticket any more, so the next connection needs the KDC.
        realm.kinit("jobs", &realm.cache(), &[]).expect("ticket fetched");
        realm.pause();
        proxy.close_connections().await;
        let until = guard.valid_until().remaining();
        let (began, reason) = (Instant::now(), timeout(Duration::from_secs(10), guard.lost()).await);
        let took = began.elapsed();
        assert_eq!(reason.expect("loss is reported in time"), LossReason::Unreachable);
        assert!(!guard.is_valid(), "the guard is valid after the loss");
        assert!(took < until + Duration::from_millis(500), "lost after {took:?}, valid for {until:?}");
        assert!(!has_service_ticket(&realm.cache()), "the cache has a service ticket");

        realm.resume();
        // The session and its znode may have survived, so the guard is dropped first.
        drop(guard);
        let again = timeout(Duration::from_secs(60), zl.mutex("nightly").lock()).await;
        again.expect("granted in time").expect("lock granted").release().await.expect("release succeeds");
        zl.close().await;
    });
}

#[test]
fn silent_kdc_is_harmless_with_a_ticket() {
    in_realm("silent_kdc_is_harmless_with_a_ticket", async |realm: &mut Realm| {
        realm.add("jobs").expect("principal added");
        realm.kinit("jobs", &realm.cache(), &["-f"]).expect("ticket fetched");
        let apache = start(realm, ServerOptions::default()).await;
        let proxy = Proxy::start(&apache.addr()).await.expect("proxy started");
        let zl = open(&proxy.addr(), settings(service())).await.expect("session is opened");
        let guard = zl.mutex("nightly").lock().await.expect("lock granted");
        realm.pause();
        let accepted = proxy.stats().connections.len();
        proxy.close_connections().await;
        proxy.until("the next connection", |stats| stats.connections.len() > accepted).await;
        guard.release().await.expect("release succeeds");
        let other = open(&apache.addr(), settings(service())).await.expect("session is opened");
        let guard = other.mutex("nightly").lock().await.expect("lock granted");
        guard.release().await.expect("release succeeds");
        other.close().await;
        zl.close().await;
    });
}

/// Returns whether the cache file has a ticket for the service on localhost.
fn has_service_ticket(cache: &Path) -> bool {
    let bytes = std::fs::read(cache).expect("cache is read");
    bytes.windows(b"localhost".len()).any(|at| at == b"localhost")
}
