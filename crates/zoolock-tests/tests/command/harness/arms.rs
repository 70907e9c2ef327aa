//! One body, two servers.

use zookeeper_client::{Acls, CreateMode};
use zoolock_tests::arm::{self, Arm, Sharing};
use zoolock_tests::{ServerOptions, on_both_arms, tree};

on_both_arms!(a_place_is_a_chroot_of_its_own, |place| async move {
    let client = tree::connect(&place.connect_string()).await.expect("it runs");
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create("/n", b"", &persistent).await.expect("the chroot is there and empty");
    let seen = tree::descendants(&place.addr(), place.chroot()).await.expect("it runs");
    assert_eq!(seen, [format!("{}/n", place.chroot())]);
});

on_both_arms!(a_shared_server_keeps_tests_apart, |place| async move {
    let seen = tree::descendants(&place.connect_string(), "/").await.expect("it runs");
    assert_eq!(seen, Vec::<String>::new());
});

on_both_arms!(private a_private_server_can_be_killed, |place| async move {
    place.server().kill().await;
    assert!(tokio::net::TcpStream::connect(place.addr()).await.is_err(), "a killed server listens");
    place.server().restart().await.expect("it starts again");
    tree::connect(&place.addr()).await.expect("it runs again");
    place.server().stop().await;
    assert!(tokio::net::TcpStream::connect(place.addr()).await.is_err(), "a stopped server listens");
});

on_both_arms!(
    private(ServerOptions { max_session_timeout: std::time::Duration::from_secs(3), ..ServerOptions::default() })
    a_private_server_takes_options,
    |place| async move {
        let client = tree::connect(&place.connect_string()).await.expect("it runs");
        assert_eq!(client.session_timeout(), std::time::Duration::from_secs(3));
    },
);

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_body_fails() {
    for arm in [Arm::Embedded, Arm::Apache] {
        if arm.availability().or_skip("a_failing_body_fails") {
            let body = |_| async { panic!("on purpose") };
            let ran = tokio::spawn(arm::run(arm, Sharing::Shared, "a_failing_body_fails", body)).await;
            assert!(ran.expect_err("the body panics").is_panic());
        }
    }
}

#[test]
fn arms_name_themselves_in_skips() {
    assert_eq!([Arm::Embedded.to_string(), Arm::Apache.to_string()], ["embedded", "apache"]);
}
