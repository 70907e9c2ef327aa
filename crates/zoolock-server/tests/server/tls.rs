//! TLS: handshakes, identities from certificates, and clients without TLS.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use zoolock_server::acl;
use zoolock_server::{Builder, ClientCertificates, TlsConfig, Users};
use zoolock_tests::Authority;
use zoolock_tests::authority::SignedCertificate;
use zoolock_wire::{Acl, CreateRequest, Identity, Reply, Request, op, perms};

use crate::common::{RawClient, auth, builder, connect_request, create, finish_in_time, get, set};

fn config(authority: &Authority) -> TlsConfig {
    let server = authority.server();
    TlsConfig::new(server.certificate, server.key)
}

fn server(authority: &Authority, clients: ClientCertificates) -> Builder {
    builder().tls(([127, 0, 0, 1], 0).into(), config(authority).client_ca(authority.ca(), clients))
}

/// Connects with TLS. Sends the certificate `client` if there is one.
async fn connect(
    authority: &Authority,
    addr: SocketAddr,
    client: Option<&SignedCertificate>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let certificate = |path: &Path| CertificateDer::from_pem_file(path).expect("a certificate");
    let mut roots = RootCertStore::empty();
    roots.add(certificate(&authority.ca())).expect("an authority");
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("default TLS versions")
        .with_root_certificates(roots);
    let config = match client {
        None => config.with_no_client_auth(),
        Some(SignedCertificate { certificate: file, key }) => {
            let key = PrivateKeyDer::from_pem_file(key).expect("a key");
            config.with_client_auth_cert(vec![certificate(file)], key).expect("certificate and key match")
        }
    };
    let socket = TcpStream::connect(addr).await?;
    let name = ServerName::IpAddress(addr.ip().into());
    TlsConnector::from(Arc::new(config)).connect(name, socket).await
}

/// Opens a session over TLS. Returns `None` if the server closes the connection instead.
async fn session(
    authority: &Authority,
    addr: SocketAddr,
    client: Option<&SignedCertificate>,
) -> Option<RawClient> {
    // With TLS 1.3 the client learns of a refused certificate only at the first read.
    let stream = connect(authority, addr, client).await.ok()?;
    RawClient::connect_over(stream, &connect_request()).await
}

fn create_for(path: &str, scheme: &str, id: &str) -> Request {
    let acl = vec![Acl { perms: perms::ALL, identity: Identity::new(scheme, id) }];
    Request::Create(CreateRequest { op: op::CREATE, path: path.into(), data: None, acl, flags: 0, ttl: -1 })
}

#[tokio::test]
async fn both_ports_serve_the_same_tree() {
    let authority = Authority::new();
    let server = builder().tls(([127, 0, 0, 1], 0).into(), config(&authority)).start().await.expect("starts");
    let tls = server.tls_addr().expect("TLS was asked for");
    let mut a = session(&authority, tls, None).await.expect("a session");
    let mut b = RawClient::connect(server.local_addr()).await;
    a.call_ok(create("/over-tls", 0)).await;
    b.call_ok(get("/over-tls", true)).await;
    // The data is much larger than a TLS record, in both directions.
    let data = "x".repeat(1_000_000);
    for _ in 0..5 {
        a.call_ok(set("/over-tls", &data, -1)).await;
        let Reply::Data { data: Some(read), .. } = a.call_ok(get("/over-tls", false)).await else {
            panic!("data")
        };
        assert_eq!(read.len(), data.len());
    }
    server.shutdown().await;
}

#[tokio::test]
async fn certificate_subject_is_client_identity() {
    let authority = Authority::new();
    let server = server(&authority, ClientCertificates::Optional).start().await.expect("starts");
    let tls = server.tls_addr().expect("TLS was asked for");
    let (me, other) = (authority.client_of("Locks, Inc.", "me"), authority.client_of("Locks, Inc.", "other"));
    let mut mine = session(&authority, tls, Some(&me)).await.expect("a session");
    // The first access list names the subject, as Java prints it. The second one has the scheme
    // `auth`.
    mine.call_ok(create_for("/named", "x509", "CN=me,O=Locks\\, Inc.")).await;
    mine.call_ok(create_for("/auth", "auth", "")).await;
    let Reply::Identities(who) = mine.call_ok(Request::WhoAmI).await else { panic!("names") };
    assert!(format!("{who:?}").contains("CN=me,O=Locks"), "{who:?}");
    let mut theirs = session(&authority, tls, Some(&other)).await.expect("a session");
    let mut nobody = session(&authority, tls, None).await.expect("a session");
    for path in ["/named", "/auth"] {
        mine.call_ok(get(path, false)).await;
        assert_eq!(theirs.call_error(get(path, false)).await, -102);
        assert_eq!(nobody.call_error(get(path, false)).await, -102);
    }
    assert_eq!(nobody.call_error(create_for("/none", "auth", "")).await, -114);
    assert_eq!(nobody.call_error(create_for("/none", "x509", "no name")).await, -114);
    assert_eq!(nobody.call_error(auth("x509", "")).await, -115);
    mine.call_ok(auth("x509", "")).await;
    server.shutdown().await;
}

#[tokio::test]
async fn client_certificate_must_be_signed() {
    let authority = Authority::new();
    let other = Authority::new();
    let stranger = other.client_of("Locks, Inc.", "me");
    let me = authority.client_of("Locks, Inc.", "me");
    for clients in [ClientCertificates::Optional, ClientCertificates::Required] {
        let server = server(&authority, clients).tls_only().start().await.expect("starts");
        let tls = server.local_addr();
        assert_eq!(server.tls_addr(), Some(tls));
        assert!(finish_in_time(session(&authority, tls, Some(&me))).await.is_some());
        assert!(finish_in_time(session(&authority, tls, Some(&stranger))).await.is_none());
        let without = finish_in_time(session(&authority, tls, None)).await;
        assert_eq!(without.is_some(), clients == ClientCertificates::Optional);
        server.shutdown().await;
    }
}

#[tokio::test]
async fn certificate_or_account_satisfies_required_auth() {
    let authority = Authority::new();
    let me = authority.client_of("Locks, Inc.", "me");
    let account = acl::digest_identity(b"me:pw").id;
    let with = |users: Option<&str>| {
        let builder = server(&authority, ClientCertificates::Optional).require_auth();
        match users {
            Some(users) => builder.users(Users::parse(users).expect("accounts")),
            None => builder,
        }
    };
    let server = with(None).start().await.expect("starts");
    let tls = server.tls_addr().expect("TLS was asked for");
    session(&authority, tls, Some(&me)).await.expect("a session").call_ok(create("/a", 0)).await;
    let mut raw = RawClient::connect(server.local_addr()).await;
    assert_eq!(raw.call_error(get("/a", false)).await, -124);
    assert!(raw.reads_end().await);
    // Without accounts a password proves nothing.
    let mut raw = RawClient::connect(server.local_addr()).await;
    assert_eq!(raw.call_error(auth("digest", "me:pw")).await, -115);
    assert!(raw.reads_end().await);
    server.shutdown().await;

    let server = with(Some(&account)).start().await.expect("starts");
    let mut raw = RawClient::connect(server.local_addr()).await;
    raw.call_ok(auth("digest", "me:pw")).await;
    raw.call_ok(create("/a", 0)).await;
    assert_eq!(raw.call_error(auth("digest", "me:wp")).await, -115);
    assert!(raw.reads_end().await);
    server.shutdown().await;
}

#[tokio::test]
async fn settings_without_usable_clients_are_refused() {
    let error = builder().require_auth().start().await.expect_err("no client could authenticate");
    assert!(error.to_string().contains("give accounts"), "{error}");
    let error = builder().tls_only().start().await.expect_err("no client could connect");
    assert!(error.to_string().contains("certificate"), "{error}");
    let error = builder().super_digest("super:secret").start().await.expect_err("not a digest");
    assert!(!error.to_string().contains("secret"), "{error}");
    let (authority, stranger) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().expect("a directory");
    let (missing, empty) = (dir.path().join("missing"), dir.path().join("empty"));
    std::fs::write(&empty, "").expect("writable");
    let SignedCertificate { certificate, key } = authority.server();
    let other = stranger.server().key;
    let addr = ([127, 0, 0, 1], 0).into();
    let of = |path: &Path| path.display().to_string();
    for (certificate, key, names) in [
        (&missing, &key, of(&missing)),
        (&certificate, &missing, of(&missing)),
        (&certificate, &certificate, "no private key".to_owned()),
        (&empty, &key, "no certificate".to_owned()),
        (&certificate, &other, of(&other)),
    ] {
        let config = TlsConfig::new(certificate, key);
        let error = builder().tls(addr, config).start().await.expect_err(&names);
        assert!(error.to_string().contains(&names), "{names}: {error}");
    }
}

/// Sends these bytes. Returns the bytes that the server sends before it closes the connection.
async fn answer(addr: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(addr).await.expect("the server listens");
    socket.write_all(bytes).await.expect("server reads");
    let mut answer = Vec::new();
    // A connection reset also ends the read.
    let _ = finish_in_time(socket.read_to_end(&mut answer)).await;
    answer
}

#[tokio::test]
async fn another_protocol_is_turned_away_at_once() {
    let authority = Authority::new();
    let server = builder()
        .connect_timeout(Duration::from_secs(3600))
        .tls(([127, 0, 0, 1], 0).into(), config(&authority).handshake_timeout(Duration::from_secs(3600)))
        .start()
        .await
        .expect("starts");
    let (plain, tls) = (server.local_addr(), server.tls_addr().expect("TLS was asked for"));
    let get = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    assert_eq!(answer(plain, get).await, b"");
    assert_eq!(answer(tls, get).await, b"");
    assert_eq!(answer(tls, b"ruok").await, b"");
    assert!(finish_in_time(connect(&authority, plain, None)).await.is_err());
    // A TLS record that is not a client hello.
    answer(tls, &[22, 3, 1, 0, 4, 1, 2, 3, 4]).await;
    assert_eq!(server.stats().sessions, 0);
    server.shutdown().await;
}

#[tokio::test]
async fn a_handshake_has_a_deadline() {
    let authority = Authority::new();
    let config = config(&authority).handshake_timeout(Duration::from_millis(200));
    let server = builder().tls(([127, 0, 0, 1], 0).into(), config).start().await.expect("starts");
    let tls = server.tls_addr().expect("TLS was asked for");
    assert_eq!(answer(tls, b"").await, b"");
    assert_eq!(answer(tls, &[22, 3, 1]).await, b"");
    assert!(session(&authority, tls, None).await.is_some());
    server.shutdown().await;
}

#[tokio::test]
async fn address_limit_counts_unfinished_handshakes() {
    let authority = Authority::new();
    let config = config(&authority).handshake_timeout(Duration::from_secs(3600));
    let server = builder()
        .tls(([127, 0, 0, 1], 0).into(), config)
        .max_connections_per_address(2)
        .start()
        .await
        .expect("starts");
    let (plain, tls) = (server.local_addr(), server.tls_addr().expect("TLS was asked for"));
    let silent = TcpStream::connect(tls).await.expect("server listens");
    let mut raw = RawClient::connect(plain).await;
    assert_eq!(answer(tls, b"").await, b"");
    assert_eq!(answer(plain, b"").await, b"");
    raw.call_ok(create("/still-served", 0)).await;
    drop(silent);
    finish_in_time(async {
        while session(&authority, tls, None).await.is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    server.shutdown().await;
}
