//! Attacks by a client that has seen the id of another client's session.

use zoolock_tests::locks::connect;
use zoolock_tests::raw_client::{RawClient, ServerGone, SessionTicket, password_on_apache};
use zoolock_tests::{Place, ServerKind, on_both_servers, tree};
use zoolock_wire::Hidden;

/// Tries to attach to a session with a password. Returns whether the server accepts the password.
async fn take_over(place: &Place, session: i64, password: Hidden) -> bool {
    let ticket = SessionTicket { session, password };
    match RawClient::attach_session(place.server().socket_addr(), 10_000, 0, &ticket).await {
        Ok(Some(client)) => client.ticket.session == session,
        Ok(None) | Err(ServerGone) => false,
    }
}

on_both_servers!(private session_id_is_sufficient_only_on_apache, |place| async move {
    let zl = connect(&place).await;
    let guard = zl.mutex("nightly").lock().await.expect("lock granted");
    // Any client that may read the znode sees the id of the session that owns it.
    let client = tree::connect(&place.connect_string()).await.expect("connected");
    let stat = client.check_stat(&guard.node_path()).await.expect("server answered").expect("znode exists");
    let session = stat.ephemeral_owner;
    assert!(!take_over(&place, session, Hidden(vec![0; 16])).await, "taken over without a password");
    assert!(!take_over(&place, session, Hidden(vec![7; 16])).await, "taken over with a wrong password");
    assert!(guard.is_valid());
    let mut taken = take_over(&place, session, password_on_apache(session)).await;
    // The attack ends the connection of the session's owner. If the owner reconnects before the
    // attacker receives its reply, the server closes the attacker's connection. Then the attack is
    // repeated.
    for _ in 0..20 {
        if place.server_kind() == ServerKind::Apache && !taken {
            taken = take_over(&place, session, password_on_apache(session)).await;
        }
    }
    match place.server_kind() {
        ServerKind::Embedded => assert!(!taken, "taken over with a computed password"),
        ServerKind::Apache => assert!(taken, "the attack that docs/SECURITY.md describes fails"),
    }
    zl.close().await;
});
