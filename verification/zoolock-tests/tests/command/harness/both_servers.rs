//! Tests of `on_both_servers!`.

use zookeeper_client::{Acls, CreateMode};
use zoolock_tests::both_servers::{self, ServerKind, Sharing};
use zoolock_tests::{ServerOptions, on_both_servers, tree};

on_both_servers!(each_test_gets_its_own_chroot, |place| async move {
    let client = tree::connect(&place.connect_string()).await.expect("connected");
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create("/n", b"", &persistent).await.expect("znode created");
    let seen = tree::descendants(&place.addr(), place.chroot()).await.expect("server answered");
    assert_eq!(seen, [format!("{}/n", place.chroot())]);
});

on_both_servers!(chroot_on_shared_server_is_empty, |place| async move {
    let seen = tree::descendants(&place.connect_string(), "/").await.expect("server answered");
    assert_eq!(seen, Vec::<String>::new());
});

on_both_servers!(private private_server_can_be_killed_and_restarted, |place| async move {
    place.server().kill().await;
    assert!(tokio::net::TcpStream::connect(place.addr()).await.is_err(), "the killed server listens");
    place.server().restart().await.expect("server restarted");
    tree::connect(&place.addr()).await.expect("connected");
});

on_both_servers!(
    private(ServerOptions { max_session_timeout: std::time::Duration::from_secs(3), ..ServerOptions::default() })
    private_server_uses_given_options,
    |place| async move {
        let client = tree::connect(&place.connect_string()).await.expect("connected");
        assert_eq!(client.session_timeout(), std::time::Duration::from_secs(3));
    },
);

#[tokio::test(flavor = "multi_thread")]
async fn panic_in_body_fails_the_test() {
    for server_kind in [ServerKind::Embedded, ServerKind::Apache] {
        if server_kind.availability().or_skip("panic_in_body_fails_the_test") {
            let body = |_| async { panic!("on purpose") };
            let ran = tokio::spawn(both_servers::run(
                server_kind,
                Sharing::Shared,
                "panic_in_body_fails_the_test",
                body,
            ))
            .await;
            assert!(ran.expect_err("the body panics").is_panic());
        }
    }
}

#[test]
fn arms_display_their_names() {
    assert_eq!([ServerKind::Embedded.to_string(), ServerKind::Apache.to_string()], ["embedded", "apache"]);
}
