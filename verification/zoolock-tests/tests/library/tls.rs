//! TLS to both servers with generated certificates: accepted identities, and errors on refusal.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use zoolock::{Builder, Error, Tls, Zoolock};
use zoolock_tests::authority::SignedCertificate;
use zoolock_tests::locks::{lock_and_release, settings};
use zoolock_tests::{Authority, Place, ServerOptions, ZoolockBinary, on_both_servers};

fn secure(authority: Authority) -> ServerOptions {
    ServerOptions { tls: Some(Arc::new(authority)), ..ServerOptions::default() }
}

fn trusting(authority: &Authority) -> Tls {
    Tls::with_ca_file(authority.ca())
}

fn shown(authority: &Authority, signed: &SignedCertificate) -> Tls {
    trusting(authority).identity_files(&signed.certificate, &signed.key)
}

fn address(place: &Place) -> String {
    place.connect_string_through(&place.server().secure_addr())
}

async fn open(place: &Place, tls: Tls) -> Zoolock {
    settings().tls(tls).connect(&address(place)).await.expect("session starts")
}

/// Returns the error of a connection that must fail in time.
async fn refused(builder: Builder, address: &str) -> Error {
    let connect = builder.connect_timeout(Duration::from_secs(1)).connect(address);
    match timeout(Duration::from_secs(30), connect).await.expect("fails in time") {
        Ok(_) => panic!("{address} accepts the client"),
        Err(error) => error,
    }
}

on_both_servers!(private(secure(Authority::new())) locks_belong_to_the_certificate_name, |place| async move {
    let authority = place.authority();
    let jobs = shown(authority, &authority.client("jobs"));
    let (first, second) = (open(&place, jobs.clone()).await, open(&place, jobs.clone()).await);
    let other = open(&place, shown(authority, &authority.client("other"))).await;
    let guard = first.mutex("nightly").lock().await.expect("lock acquired");
    assert!(second.mutex("nightly").try_lock().await.expect("attempt succeeds").is_none());
    for denied in [
        other.mutex("nightly").try_lock().await.map(|_| ()),
        other.admin().snapshot("nightly").await.map(|_| ()),
        other.admin().break_lock("nightly", guard.token()).await.map(|_| ()),
    ] {
        assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
    }
    let requests = settings().tls(jobs).requests(&address(&place)).await.expect("session starts");
    for path in ["/locks".to_owned(), guard.node_path()] {
        let path = format!("{}{path}", place.chroot());
        let acls = requests.acl(&path).await.expect("ACL read succeeds");
        let who: Vec<_> = acls.iter().map(|acl| (&*acl.identity.scheme, &*acl.identity.id)).collect();
        assert_eq!(who, [("x509", "CN=jobs")], "{path}");
    }
    // The clients reconnect with the same certificate.
    place.server().restart().await.expect("server restarts");
    let waiting = tokio::spawn(async move {
        let guard = second.mutex("nightly").lock().await.expect("lock granted");
        guard.release().await.expect("release succeeds");
        second
    });
    guard.release().await.expect("release succeeds");
    let second = waiting.await.expect("task does not panic");
    for zl in [first, second, other] {
        zl.close().await;
    }
});

on_both_servers!(private(secure(Authority::new())) readers_are_identified_by_certificate, |place| async move {
    let authority = place.authority();
    let jobs = shown(authority, &authority.client("jobs"));
    let builder = settings().tls(jobs).allow_read("x509", "CN=ops");
    let zl = builder.connect(&address(&place)).await.expect("session starts");
    let guard = zl.mutex("nightly").lock().await.expect("lock acquired");
    let ops = open(&place, shown(authority, &authority.client("ops"))).await;
    assert!(ops.admin().snapshot("nightly").await.expect("reader may read").holder.is_some());
    let broken = ops.admin().break_lock("nightly", guard.token()).await;
    assert!(matches!(broken, Err(Error::Denied { .. })), "{broken:?}");
    zl.close().await;
    ops.close().await;
});

on_both_servers!(private(secure(Authority::new())) errors_explain_rejected_certificates, |place| async move {
    let authority = place.authority();
    let strangers = Authority::new();
    let (secure, plain) = (place.server().secure_addr(), place.addr());
    let good = shown(authority, &authority.client("jobs"));
    let expired = authority.expired_client("late");
    let foreign = strangers.client("stranger");

    // The server rejects the client.
    for (tls, words) in [
        (trusting(authority), "--cert".to_owned()),
        (shown(authority, &expired), expired.certificate.display().to_string()),
        (shown(authority, &foreign), foreign.certificate.display().to_string()),
    ] {
        let error = refused(settings().tls(tls), &secure).await;
        assert!(matches!(error, Error::Denied { .. }), "{error:?}");
        assert!(error.to_string().contains(&words) && error.to_string().contains(&secure), "{error}");
    }
    // The client rejects the server's certificate, or only one side uses TLS.
    let elsewhere = secure.replace("127.0.0.1", "localhost");
    for (builder, address, words) in [
        (settings().tls(trusting(&strangers)), &secure, strangers.ca().display().to_string()),
        (settings().tls(good.clone()), &elsewhere, "not for the host localhost".to_owned()),
        (settings().tls(good), &plain, "without TLS".to_owned()),
        (settings(), &secure, "speaks TLS".to_owned()),
    ] {
        let error = refused(builder, address).await;
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(error.to_string().contains(&words) && error.to_string().contains(address.as_str()), "{error}");
    }
});

on_both_servers!(private(secure(Authority::named("revoking"))) revocation_lists_are_enforced, |place| async move {
    let authority = place.authority();
    let (secure, jobs) = (place.server().secure_addr(), authority.client("jobs"));
    let ca = std::fs::read_to_string(authority.ca()).expect("file is readable");
    let with = |list: String| {
        let tls = Tls::with_ca(format!("{ca}{list}"));
        settings().tls(tls.identity_files(&jobs.certificate, &jobs.key))
    };
    // The client accepts a revocation list that has expired.
    let zl = with(authority.revocation_list(&["another"])).connect(&secure).await.expect("session starts");
    zl.close().await;
    for (list, words) in [
        (authority.revocation_list(&["another", "server"]), "was revoked"),
        (Authority::named("elsewhere").revocation_list(&["server"]), "no revocation list"),
    ] {
        let error = refused(with(list), &secure).await;
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    }
});

on_both_servers!(private(secure(Authority::of_an_expired_server())) expired_server_certificate_is_refused, |place| async move {
    let authority = place.authority();
    let tls = shown(authority, &authority.client("jobs"));
    let error = refused(settings().tls(tls), &place.server().secure_addr()).await;
    assert!(error.to_string().contains("has expired"), "{error}");
});

on_both_servers!(
    private(secure(Authority::of_a_server_that_is_an_authority()))
    ca_certificate_of_a_server_is_refused_with_a_remedy,
    |place| async move {
        let authority = place.authority();
        let tls = shown(authority, &authority.client("jobs"));
        let error = refused(settings().tls(tls), &place.server().secure_addr()).await;
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(error.to_string().contains("CA:TRUE") && error.to_string().contains("sign a server certificate"), "{error}");
    }
);

on_both_servers!(private(secure(Authority::new())) renewed_certificate_is_used_on_next_connection, |place| async move {
    let authority = place.authority();
    let signed = authority.client("one");
    let zl = open(&place, shown(authority, &signed)).await;
    let renewed = authority.client("two");
    for (from, to) in [(&renewed.certificate, &signed.certificate), (&renewed.key, &signed.key)] {
        std::fs::copy(from, to).expect("file is writable");
    }
    let mut belongs_to_two = false;
    for number in 0..5 {
        place.server().restart().await.expect("server restarts");
        let name = format!("/after-{number}");
        let after = zl.mutex(&name).lock().await.expect("lock acquired");
        let two = open(&place, shown(authority, &renewed)).await;
        belongs_to_two = two.admin().snapshot(&name).await.is_ok();
        after.release().await.expect("release succeeds");
        two.close().await;
        if belongs_to_two {
            break;
        }
        // The client may have connected before it read the new files. The next restart makes it
        // connect again.
    }
    assert!(belongs_to_two);
    zl.close().await;
});

#[tokio::test]
async fn invalid_tls_options_are_refused_locally() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (one, two) = (authority.client("one"), other.client("two"));
    let good = shown(&authority, &one);
    let cases = [
        (good.clone(), "zk_1..org:2181", "zk_1..org"),
        (good.clone(), "127.0.0.1:1,-:2181", "\"-\""),
        (Tls::with_ca_file("/nonexistent/ca.pem"), "h:1", "/nonexistent/ca.pem"),
        (Tls::with_ca_file(&one.key), "h:1", "no certificate"),
        (trusting(&authority).identity_files("/nonexistent/me.pem", &one.key), "h:1", "/nonexistent/me.pem"),
        (trusting(&authority).identity_files(&one.certificate, &one.certificate), "h:1", "no private key"),
        (trusting(&authority).identity_files(&one.certificate, &two.key), "h:1", "two.key"),
    ];
    for (tls, address, words) in cases {
        match settings().tls(tls).connect(address).await {
            Err(error @ Error::Invalid { .. }) => assert!(error.to_string().contains(words), "{error}"),
            other => panic!("{words}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn silent_host_times_out() {
    let authority = Authority::new();
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port bound");
    let address = silent.local_addr().expect("listener has an address").to_string();
    let error = refused(settings().tls(shown(&authority, &authority.client("jobs"))), &address).await;
    assert!(error.to_string().contains("does not answer") && error.to_string().contains(&address), "{error}");
}

#[tokio::test]
async fn hang_up_after_handshake_is_reported() {
    let authority = Authority::new();
    let server = authority.server();
    let chain = CertificateDer::pem_file_iter(&server.certificate).expect("file is readable");
    let chain = chain.collect::<Result<_, _>>().expect("certificates are valid");
    let key = PrivateKeyDer::from_pem_file(&server.key).expect("key file is readable");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config
        .with_safe_default_protocol_versions()
        .expect("protocol versions are supported")
        .with_no_client_auth();
    let acceptor = TlsAcceptor::from(Arc::new(
        config.with_single_cert(chain, key).expect("certificate matches the key"),
    ));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port bound");
    let address = listener.local_addr().expect("listener has an address").to_string();
    let serving = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("client connects");
            let _ = acceptor.accept(stream).await;
        }
    });
    for tls in [trusting(&authority), shown(&authority, &authority.client("jobs"))] {
        let error = refused(settings().tls(tls), &address).await;
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(error.to_string().contains("closed the connection after the TLS handshake"), "{error}");
    }
    serving.abort();
}

on_both_servers!(private(secure(Authority::new())) command_supports_tls, |place| async move {
    let authority = place.authority();
    let signed = authority.client("jobs");
    let zoolock = ZoolockBinary::find().expect("zoolock binary is built");
    let path = zoolock.path().display().to_string();
    let command = |args: &[&str]| {
        let mut command = zoolock.command(args);
        command.env("ZOOLOCK_CONNECT", address(&place)).env("ZOOLOCK_CACERT", authority.ca());
        command.env("ZOOLOCK_CERT", &signed.certificate).env("ZOOLOCK_KEY", &signed.key);
        command
    };
    // The inner command inherits the options of the outer command through the environment.
    let nested = format!("{path} run inner -- {path} show outer --json");
    let run = command(&["run", "outer", "--", "sh", "-c", &nested]).output().await.expect("command runs");
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(0), "{said}");
    assert!(String::from_utf8_lossy(&run.stdout).contains("\"token\""), "{run:?}");
    for args in [&["ls"][..], &["revoke", "inner"]] {
        let done = command(args).output().await.expect("command runs");
        assert_eq!(done.status.code(), Some(0), "{args:?}: {done:?}");
    }
    // Flags work like the environment variables. This command has no client certificate, so it is refused.
    let ca = authority.ca().display().to_string();
    let mut plain = zoolock.command(["ls", "--connect", &address(&place), "--cacert", &ca]);
    let done = plain.env("ZOOLOCK_CONNECT_TIMEOUT", "1s").output().await.expect("command runs");
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(77), "{said}");
    assert!(said.contains("requires a client certificate"), "{said}");

    let done = command(&["doctor", "--json"]).output().await.expect("command runs");
    let said = String::from_utf8_lossy(&done.stdout);
    let report: serde_json::Value = serde_json::from_str(&said).expect("output is JSON");
    let level = |check: &str| {
        let findings = report["findings"].as_array().expect("findings are an array");
        findings.iter().find(|finding| finding["check"] == check).map(|finding| finding["level"].clone())
    };
    for check in ["server", "session"] {
        assert_eq!(level(check), Some("ok".into()), "{check}: {said}");
    }
});

on_both_servers!(
    private(secure(Authority::of_a_server_for_everybody()))
    error_explains_server_without_client_certificates,
    |place| async move {
        let authority = place.authority();
        let anonymous = settings().tls(trusting(authority)).connect(&address(&place)).await;
        let Ok(anonymous) = anonymous else {
            // Apache ZooKeeper 3.8 closes TLS connections without a client certificate, whatever its configuration.
            assert_eq!(place.server_kind(), zoolock_tests::ServerKind::Apache);
            return;
        };
        lock_and_release(&anonymous.mutex("open")).await;
        let zl = open(&place, shown(authority, &authority.client("jobs"))).await;
        match zl.mutex("/closed").lock().await {
            Err(error @ Error::Denied { .. }) => {
                assert!(error.to_string().contains("certificates"), "{error}")
            }
            other => panic!("{other:?}"),
        }
        anonymous.close().await;
        zl.close().await;
    }
);
