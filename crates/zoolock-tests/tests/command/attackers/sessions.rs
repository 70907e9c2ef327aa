//! A session whose id somebody has seen.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zoolock_tests::{Arm, Place, on_both_arms, tree};

use zoolock_tests::locks::connect;

/// As `java.util.Random` does, which Apache ZooKeeper makes the password of a session with.
fn password_on_apache(session: i64) -> [u8; 16] {
    const SECRET: i64 = 0xB341_5C00;
    let mut seed = ((session ^ SECRET) ^ 0x5_DEEC_E66D) & ((1 << 48) - 1);
    let mut password = [0; 16];
    for word in password.chunks_mut(4) {
        seed = seed.wrapping_mul(0x5_DEEC_E66D).wrapping_add(0xB) & ((1 << 48) - 1);
        let next = (seed >> 16) as i32;
        word.copy_from_slice(&next.to_le_bytes());
    }
    password
}

/// Asks for the session, and returns what it got: its id, or none.
async fn take_over(place: &Place, session: i64, password: [u8; 16]) -> i64 {
    let mut stream = TcpStream::connect(place.server().socket_addr()).await.expect("it listens");
    let mut hello = Vec::new();
    hello.extend(45i32.to_be_bytes());
    hello.extend(0i32.to_be_bytes());
    hello.extend(0i64.to_be_bytes());
    hello.extend(10_000i32.to_be_bytes());
    hello.extend(session.to_be_bytes());
    hello.extend(16i32.to_be_bytes());
    hello.extend(password);
    hello.push(0);
    stream.write_all(&hello).await.expect("it reads");
    let mut answer = [0; 20];
    match tokio::time::timeout(Duration::from_secs(10), stream.read_exact(&mut answer)).await {
        Ok(Ok(_)) => i64::from_be_bytes(answer[12..20].try_into().expect("eight")),
        _ => 0,
    }
}

on_both_arms!(private an_id_of_a_session_is_enough_on_apache_zookeeper_alone, |place| async move {
    let zl = connect(&place).await;
    let guard = zl.mutex("nightly").lock().await.expect("free");
    // Whoever may look sees it.
    let client = tree::connect(&place.connect_string()).await.expect("a session");
    let stat = client.check_stat(&guard.node_path()).await.expect("a look").expect("held");
    let session = stat.ephemeral_owner;
    assert_eq!(take_over(&place, session, [0; 16]).await, 0, "without a password");
    assert_eq!(take_over(&place, session, [7; 16]).await, 0, "with a wrong one");
    assert!(guard.is_valid());
    let mut taken = take_over(&place, session, password_on_apache(session)).await;
    // The owner, whose connection that ended, may be back before the answer was written, and end ours.
    for _ in 0..20 {
        if place.arm() == Arm::Apache && taken == 0 {
            taken = take_over(&place, session, password_on_apache(session)).await;
        }
    }
    match place.arm() {
        Arm::Embedded => assert_eq!(taken, 0, "passwords are random"),
        Arm::Apache => assert_eq!(taken, session, "which is why docs/SECURITY.md asks for a firewall"),
    }
    zl.close().await;
});
