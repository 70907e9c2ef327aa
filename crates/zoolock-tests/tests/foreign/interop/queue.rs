//! Peers of several makes in one queue.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use zookeeper_client::{Acls, CreateMode};
use zoolock_tests::{Failure, Place, Result, tree};

use crate::interop::fairness::{passed, starved};
use crate::interop::make::{Make, Role};
use crate::interop::peer::{Contender, Peer, Report};

/// The lock they share, and the node of the referee, below the chroot.
pub(crate) const LOCK: &str = "/locks/shared";
pub(crate) const REFEREE: &str = "/referee";

/// How long a section may take, and everything but the sections.
const EACH: Duration = Duration::from_millis(60);
const BOUND: Duration = Duration::from_secs(120);

/// How many sections each contender has. Those with permits are long.
pub(crate) fn sections(roles: &[Role]) -> usize {
    match std::env::var("ZOOLOCK_LONG").is_ok_and(|value| value == "1") {
        true => 2000,
        false if roles.iter().any(|role| role.kind.contains("semaphore")) => 30,
        false => 60,
    }
}

pub(crate) fn role(make: Make, kind: &str, contenders: usize) -> Role {
    Role { make, kind: kind.to_owned(), contenders }
}

/// Whether every make is on this machine; if not, says that test `name` is skipped.
pub(crate) fn available(roles: &[Role], name: &str, place: &Place) -> bool {
    let name = format!("{name}::{}", place.arm());
    roles.iter().all(|role| role.make.availability().or_skip(&name))
}

/// Lets them all contend for one lock at once, and looks that nobody is inside who may not be, that everybody has all
/// its sections and nobody starves, and that nothing is left.
pub(crate) async fn share(place: &Place, name: &str, roles: &[Role]) {
    if !available(roles, name, place) {
        return;
    }
    prepare(place).await;
    let reports = contend(place, roles).await;
    let names: Vec<String> =
        reports.iter().flat_map(|report| report.contenders.iter().map(|_| report.name.clone())).collect();
    let all: Vec<Contender> = reports.into_iter().flat_map(|report| report.contenders).collect();
    let passed = passed(&all);
    for (name, passed) in names.iter().zip(&passed) {
        println!("{}: {name}: {passed:?}", place.arm());
    }
    if let Some(starved) = starved(&all) {
        panic!("{starved}; {names:?}, {passed:?}");
    }
    nothing_is_left(place).await;
}

/// Lets them all contend for the lock at once, until everybody has had all its sections, one at a time.
pub(crate) async fn contend(place: &Place, roles: &[Role]) -> Vec<Report> {
    let sections = sections(roles);
    let contenders: usize = roles.iter().map(|role| role.contenders).sum();
    let mut peers = start(place, roles, sections).await.expect("peers that start");
    for peer in &mut peers {
        peer.tell("go").await.expect("a peer that is ready");
    }
    let bound = BOUND + EACH * (sections * contenders).try_into().expect("not that many");
    let reports = match timeout(bound, reports(peers)).await {
        Ok(reports) => reports.unwrap_or_else(|failure| panic!("{failure}")),
        Err(_) => {
            let left = tree::descendants(&place.connect_string(), "/").await;
            panic!("not done within {bound:?}; there are {left:?}");
        }
    };
    for (report, role) in reports.iter().zip(roles) {
        println!("{}: {report}", place.arm());
        assert_eq!(report.sections, sections * role.contenders, "{}", report.name);
    }
    reports
}

/// Waits until whatever they made in the lock is gone.
pub(crate) async fn nothing_is_left(place: &Place) {
    tree::assert_no_ephemerals(&place.connect_string(), "/").await;
    tree::assert_no_contenders(&place.connect_string(), LOCK).await;
    place.assert_no_watches().await;
}

/// Makes the referee's node, and the lock's parent, which not every recipe makes.
pub(crate) async fn prepare(place: &Place) {
    let client = tree::connect(&place.connect_string()).await.expect("a session");
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for path in [REFEREE, "/locks"] {
        client.create(path, b"", &options).await.expect("an empty chroot");
    }
}

/// Starts them all, and waits until they are ready. Of permits there are as many as the most cautious thinks.
///
/// # Errors
/// What the first said that did not.
pub(crate) async fn start(place: &Place, roles: &[Role], sections: usize) -> Result<Vec<Peer>> {
    if let Some(permits) = roles.iter().filter_map(Role::permits).min() {
        let client = tree::connect(&place.connect_string()).await?;
        let said = client.set_data(REFEREE, permits.to_string().as_bytes(), None).await;
        said.map_err(|error| Failure::during(REFEREE, error))?;
    }
    let mut starting = JoinSet::new();
    for (index, role) in roles.iter().enumerate() {
        let (place, role) = (place.clone(), role.clone());
        starting.spawn(async move {
            let command = role.command(&place, LOCK, REFEREE, sections).await;
            (index, Peer::start(&role.to_string(), command).await)
        });
    }
    in_order(starting).await
}

/// A client of another make that holds the lock, whose directory is there, until some seconds after it is dropped.
pub(crate) async fn hold(place: &Place, make: Make, kind: &str) -> Peer {
    let mut command = make.command().await;
    command.arg(place.connect_string()).arg(kind).args(["/locks", REFEREE, "hold", "0"]);
    let mut peer = Peer::spawn(&format!("{make:?} {kind}"), command).expect("it is installed");
    let said = timeout(BOUND, peer.line()).await.expect("nobody it sees is in its way").expect("it goes on");
    assert_eq!(said, format!("in {LOCK}"));
    peer
}

/// Waits for all of them.
///
/// # Errors
/// What the first said that failed; the others are killed.
pub(crate) async fn reports(peers: Vec<Peer>) -> Result<Vec<Report>> {
    let mut running = JoinSet::new();
    for (index, peer) in peers.into_iter().enumerate() {
        running.spawn(async move { (index, peer.report().await) });
    }
    in_order(running).await
}

/// What each of them comes to, or the first failure.
async fn in_order<T: 'static>(mut running: JoinSet<(usize, Result<T>)>) -> Result<Vec<T>> {
    let mut done = Vec::new();
    while let Some(one) = running.join_next().await {
        let (index, one) = one.expect("no panic");
        done.push((index, one?));
    }
    done.sort_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, one)| one).collect())
}
