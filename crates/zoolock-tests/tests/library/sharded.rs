//! Locks distributed over several ensembles by name.

use std::collections::HashSet;

use zoolock::{Error, Sharded, TestServer, Zoolock};

async fn three() -> [TestServer; 3] {
    let start = async || TestServer::start().await.expect("server starts");
    [start().await, start().await, start().await]
}

const NAMES: [&str; 3] = ["red", "green", "blue"];

/// Connects a client with the shards in this order.
async fn client(servers: &[TestServer; 3], order: [usize; 3]) -> Sharded {
    Zoolock::sharded(order.map(|at| (NAMES[at], servers[at].address()))).await.expect("sessions start")
}

#[tokio::test]
async fn shard_order_does_not_change_lock_location() {
    let servers = three().await;
    let (ours, theirs) = (client(&servers, [0, 1, 2]).await, client(&servers, [2, 0, 1]).await);
    let mut seen = HashSet::new();
    let mut guards = Vec::new();
    for at in 0..30 {
        // Even numbers give a name below the root, and odd numbers an absolute path.
        let name = if at % 2 == 0 { format!("job/{at}") } else { format!("/other/job-{at}") };
        seen.insert(ours.shard_name(&name).expect("valid lock name").to_owned());
        assert_eq!(
            ours.shard_name(&name).expect("valid lock name"),
            theirs.shard_name(&name).expect("valid lock name")
        );
        guards.push(ours.mutex(&name).lock().await.expect("lock acquired"));
        assert!(
            theirs.mutex(&name).try_lock().await.expect("attempt succeeds").is_none(),
            "{name} was held twice"
        );
    }
    assert_eq!(seen.len(), 3, "thirty locks are on {seen:?} only");
    let listed = theirs.locks(Some("/")).await.expect("listing succeeds");
    assert_eq!(listed.iter().filter(|lock| lock.holder.is_some()).count(), 30);
    assert!(listed.is_sorted_by_key(|lock| &lock.path));
    drop(guards);
    ours.close().await;
    theirs.close().await;
}

#[tokio::test]
async fn multi_lock_requires_a_single_shard() {
    let servers = three().await;
    let ours = client(&servers, [0, 1, 2]).await;
    let on = |shard: &str| {
        let names = (0..).map(|at| format!("a{at}"));
        let mut names = names.filter(|name| ours.shard_name(name).expect("valid lock name") == shard);
        [names.next().expect("shard has a name"), names.next().expect("shard has a name")]
    };
    let (red, blue) = (on("red"), on("blue"));
    let both = ours.multi(&red).expect("all names are on one shard").lock().await.expect("lock acquired");
    assert!(ours.mutex(&red[1]).try_lock().await.expect("attempt succeeds").is_none());
    both.release().await.expect("release succeeds");
    let refused = ours.multi([&red[0], &blue[0]]).expect_err("no transaction spans two ensembles");
    let said = refused.to_string();
    assert!(said.contains(&red[0]) && said.contains("\"red\"") && said.contains("\"blue\""), "{said}");
    ours.close().await;
}

#[tokio::test]
async fn invalid_shards_are_refused() {
    let server = TestServer::start().await.expect("server starts");
    let one = server.connect().await.expect("session starts");
    let elsewhere =
        server.client().root("/elsewhere").connect(&server.address()).await.expect("session starts");
    let invalid = |made: Result<Sharded, Error>, word: &str| match made {
        Err(error @ Error::Invalid { .. }) => assert!(error.to_string().contains(word), "{error}"),
        other => panic!("{other:?}"),
    };
    invalid(Sharded::new(Vec::<(String, Zoolock)>::new()), "no shards");
    invalid(Sharded::new([("a", one.clone()), ("a", one.clone())]), "twice");
    invalid(Sharded::new([("a", one.clone()), ("b", elsewhere.clone())]), "/elsewhere");
    let good = Sharded::new([("a", one.clone())]).expect("one shard is enough");
    assert!(matches!(good.shard_name("a//b"), Err(Error::Invalid { .. })));
    assert!(matches!(good.mutex("a//b").try_lock().await, Err(Error::Invalid { .. })));
    good.close().await;
    elsewhere.close().await;
}
