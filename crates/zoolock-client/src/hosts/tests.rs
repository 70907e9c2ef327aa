use std::collections::BTreeMap;

use super::*;
use crate::Instant;
use crate::platform::{ConnectFuture, SessionFuture};

/// A machine whose name server gives the answers of the test, and no answer for other names.
#[derive(Default)]
struct NameServer {
    answers: Mutex<BTreeMap<String, Result<Vec<&'static str>, String>>>,
    randoms: Mutex<u64>,
}

impl NameServer {
    fn set(&self, name: &str, answer: Result<&[&'static str], &str>) {
        let answer = answer.map(<[_]>::to_vec).map_err(str::to_owned);
        self.answers.lock().expect("no test panics here").insert(name.to_owned(), answer);
    }

    fn silence(&self, name: &str) {
        self.answers.lock().expect("no test panics here").remove(name);
    }
}

impl Platform for Arc<NameServer> {
    fn now(&self) -> Instant {
        Instant::default()
    }

    fn random(&self) -> u64 {
        let mut random = self.randoms.lock().expect("no test panics here");
        *random += 1;
        *random * 7 / 3
    }

    fn spawn(&self, _: SessionFuture) {}

    fn resolve(&self, host: &Host) -> LookupFuture {
        let (server, host) = (self.clone(), host.clone());
        Box::pin(poll_fn(move |_| {
            let answers = server.answers.lock().expect("no test panics here");
            let Some(answer) = answers.get(host.name()).cloned() else { return Poll::Pending };
            Poll::Ready(answer.map(|ips| ips.iter().map(|ip| endpoint(host.name(), ip)).collect()))
        }))
    }

    fn connect(&self, _: &Endpoint) -> ConnectFuture {
        Box::pin(std::future::pending())
    }
}

fn host(name: &str) -> Host {
    Host::Tcp { name: name.to_owned(), port: 2181 }
}

fn endpoint(name: &str, ip: &str) -> Endpoint {
    let ip = ip.parse().expect("the address of a test is an IP address");
    Endpoint { host: host(name), address: Some(std::net::SocketAddr::new(ip, 2181)) }
}

fn hosts(names: &[&str]) -> (Hosts, Arc<NameServer>) {
    let server = Arc::new(NameServer::default());
    let platform: Arc<dyn Platform> = Arc::new(server.clone());
    (Hosts::new(names.iter().map(|name| host(name)).collect(), platform), server)
}

/// Returns the hosts of three addresses of one name, and the addresses in the order of the first dial.
fn three() -> (Hosts, Arc<NameServer>, Vec<String>) {
    let (mut hosts, server) = hosts(&["zk"]);
    server.set("zk", Ok(&["10.0.0.1", "10.0.0.2", "fd00::3"]));
    hosts.begin_dial(false, false);
    let order = rest(&mut hosts);
    assert_eq!(order.len(), 3);
    (hosts, server, order)
}

/// Takes the next endpoint of the dial.
fn next(hosts: &mut Hosts) -> Option<Endpoint> {
    match hosts.poll_next_endpoint(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(next) => next,
        Poll::Pending => panic!("the dial waits for a look-up"),
    }
}

fn ip(endpoint: &Endpoint) -> String {
    endpoint.address.map_or("none".to_owned(), |address| address.ip().to_string())
}

/// Tries the remaining endpoints of the dial. Each refuses the connection.
fn rest(hosts: &mut Hosts) -> Vec<String> {
    std::iter::from_fn(|| {
        let next = next(hosts)?;
        hosts.record_failed(&next, DialFailure::Refused);
        Some(ip(&next))
    })
    .collect()
}

fn dial(hosts: &mut Hosts, avoid_attached: bool, attached_first: bool) -> Vec<String> {
    hosts.begin_dial(avoid_attached, attached_first);
    rest(hosts)
}

fn attach(hosts: &mut Hosts, name: &str, ip: &str) {
    hosts.record_reached(&endpoint(name, ip));
    hosts.record_attached();
}

#[test]
fn host_listed_twice_is_one_server() {
    let (mut hosts, server) = hosts(&["zk", "zk"]);
    server.set("zk", Ok(&["10.0.0.1"]));
    assert_eq!(hosts.begin_dial(false, false), 1);
    assert_eq!(rest(&mut hosts), ["10.0.0.1"]);
}

#[test]
fn each_address_is_tried_by_itself() {
    let (mut hosts, _, order) = three();
    let mut sorted = order.clone();
    sorted.sort();
    assert_eq!(sorted, ["10.0.0.1", "10.0.0.2", "fd00::3"]);
    assert_eq!(hosts.begin_dial(false, false), 2, "the IPv6 address may be of one of the two servers");
    assert_eq!(next(&mut hosts).map(|next| ip(&next)), Some(order[0].clone()), "tried the longest time ago");
}

#[test]
fn silent_address_is_tried_after_the_others() {
    let (mut hosts, _, order) = three();
    hosts.begin_dial(false, false);
    // The first address does not answer, or hangs up. The others refuse the connection.
    assert_eq!(next(&mut hosts).map(|next| ip(&next)), Some(order[0].clone()));
    assert_eq!(rest(&mut hosts), order[1..]);
    assert_eq!(dial(&mut hosts, false, false), [&*order[1], &order[2], &order[0]]);
}

/// Returns three hosts. The first has a late write, the second is reached, and the third was tried after the first.
fn three_with_late_write() -> (Hosts, Vec<String>) {
    let (mut hosts, _, order) = three();
    attach(&mut hosts, "zk", &order[0]);
    hosts.record_late_write(&endpoint("zk", &order[0]));
    attach(&mut hosts, "zk", &order[2]);
    attach(&mut hosts, "zk", &order[1]);
    hosts.begin_dial(true, false);
    (hosts, order)
}

#[test]
fn server_with_late_write_is_tried_after_those_that_may_answer() {
    let (mut hosts, order) = three_with_late_write();
    assert_eq!(rest(&mut hosts), [&*order[2], &order[0]]);
}

#[test]
fn server_with_late_write_is_tried_again_after_some_dials() {
    let (mut hosts, order) = three_with_late_write();
    let (others, late) = ([&order[2], &order[1]], &order[0]);
    for dial in 1.. {
        // Two servers attach the session in turn, and confirm no write.
        let first = next(&mut hosts).expect("servers are known");
        if ip(&first) == *late {
            assert_eq!(dial, LATE_WRITE_DIALS);
            return;
        }
        attach(&mut hosts, "zk", others[usize::from(dial - 1) % 2]);
        hosts.begin_dial(true, false);
    }
}

#[test]
fn silent_server_is_tried_after_one_with_a_late_write() {
    let (mut hosts, order) = three_with_late_write();
    assert_eq!(next(&mut hosts).map(|next| ip(&next)), Some(order[2].clone()));
    hosts.begin_dial(true, false);
    assert_eq!(rest(&mut hosts), [&*order[0], &order[2]]);
}

#[test]
fn server_that_attaches_or_refuses_does_not_hang() {
    let (mut hosts, order) = three_with_late_write();
    hosts.record_failed(&endpoint("zk", &order[0]), DialFailure::Refused);
    assert_eq!(rest(&mut hosts), [&*order[0], &order[2]]);
    let (mut hosts, order) = three_with_late_write();
    hosts.record_failed(&endpoint("zk", &order[0]), DialFailure::NotConnected);
    assert_eq!(rest(&mut hosts), [&*order[2], &order[0]], "this process may have no network");
    let (mut hosts, order) = three_with_late_write();
    attach(&mut hosts, "zk", &order[0]);
    assert_eq!(dial(&mut hosts, true, false), [&*order[2], &order[1]]);
    attach(&mut hosts, "zk", &order[1]);
    assert_eq!(dial(&mut hosts, true, false), [&*order[0], &order[2]]);
}

/// A server that attaches sessions may have no quorum. Then the servers that were silent are needed.
#[test]
fn attach_forgets_which_were_silent() {
    let (mut hosts, _, order) = three();
    hosts.begin_dial(false, false);
    assert_eq!(next(&mut hosts).map(|next| ip(&next)), Some(order[0].clone()));
    assert_eq!(rest(&mut hosts), order[1..]);
    attach(&mut hosts, "zk", &order[2]);
    assert_eq!(dial(&mut hosts, false, false), order);
}

#[test]
fn attempt_that_was_cut_short_is_repeated_first() {
    let (mut hosts, _, order) = three();
    hosts.begin_dial(false, false);
    let tried: Vec<_> = (0..2).filter_map(|_| next(&mut hosts)).collect();
    // The first endpoint accepts a connection during the second attempt, and does not answer. The third one attaches.
    hosts.record_reached(&tried[0]);
    hosts.begin_dial(false, false);
    assert_eq!(next(&mut hosts).map(|next| ip(&next)), Some(order[2].clone()));
    attach(&mut hosts, "zk", &order[2]);
    assert_eq!(dial(&mut hosts, false, false), [&*order[1], &order[0], &order[2]]);
}

#[test]
fn dial_goes_on_where_a_silent_dial_ended() {
    let (mut hosts, _, order) = three();
    let mut firsts = Vec::new();
    for _ in 0..6 {
        hosts.begin_dial(false, false);
        firsts.extend(next(&mut hosts).map(|next| ip(&next)));
    }
    assert_eq!(firsts, [&order[..], &order[..]].concat());
}

#[test]
fn server_reached_last_is_tried_last() {
    let (mut hosts, _, order) = three();
    attach(&mut hosts, "zk", &order[0]);
    assert_eq!(dial(&mut hosts, false, false), [&*order[1], &order[2], &order[0]]);
    assert_eq!(dial(&mut hosts, true, false), [&*order[1], &order[2]]);
    assert_eq!(dial(&mut hosts, false, true), [&*order[0], &order[1], &order[2]]);
}

#[test]
fn slow_look_up_keeps_known_addresses() {
    let (mut hosts, server, order) = three();
    attach(&mut hosts, "zk", &order[2]);
    server.silence("zk");
    assert_eq!(dial(&mut hosts, false, false).len(), 3, "the dial does not wait");
    assert_eq!(dial(&mut hosts, false, false).len(), 3);
    assert_eq!(hosts.lookups.len(), 1, "one look-up of a host at a time");
    // The look-up of the first dial ends between two dials.
    server.set("zk", Ok(&["10.0.0.9"]));
    assert_eq!(dial(&mut hosts, false, false), ["10.0.0.9", &*order[2]]);
}

#[test]
fn failed_and_empty_answers_keep_known_addresses() {
    for (answer, error) in [(Err("no answer"), "no answer"), (Ok(&[][..]), "the name has no address")] {
        let (mut hosts, server, _) = three();
        server.set("zk", answer);
        assert_eq!(dial(&mut hosts, false, false).len(), 3, "{error}");
        assert_eq!(hosts.lookup_errors[0].to_string(), format!("zk:2181: {error}"));
        server.set("zk", Ok(&["10.0.0.1"]));
        assert_eq!(dial(&mut hosts, false, false), ["10.0.0.1"]);
        assert!(hosts.lookup_errors.is_empty(), "an answer clears the error");
    }
}

#[test]
fn wrong_answer_keeps_the_attached_address() {
    let (mut hosts, server, order) = three();
    attach(&mut hosts, "zk", &order[1]);
    server.set("zk", Ok(&["10.9.9.9"]));
    for _ in 0..2 {
        assert_eq!(dial(&mut hosts, false, false), ["10.9.9.9", &*order[1]]);
    }
    // The session follows a name that has moved.
    attach(&mut hosts, "zk", "10.9.9.9");
    assert_eq!(dial(&mut hosts, false, false), ["10.9.9.9"]);
}

#[test]
fn new_session_waits_for_every_name() {
    let (mut hosts, server) = hosts(&["zk1", "zk2"]);
    server.set("zk1", Ok(&["10.0.0.1"]));
    hosts.begin_dial(false, false);
    assert_eq!(next(&mut hosts), Some(endpoint("zk1", "10.0.0.1")));
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(hosts.poll_next_endpoint(cx).is_pending());
    server.set("zk2", Ok(&["10.0.0.2", "10.0.0.2"]));
    assert_eq!(next(&mut hosts), Some(endpoint("zk2", "10.0.0.2")));
    assert_eq!(next(&mut hosts), None, "each address is tried once");
}

#[test]
fn processes_of_a_fleet_begin_at_different_addresses() {
    let (mut hosts, server) = hosts(&["a", "b"]);
    server.set("a", Ok(&["10.0.0.1", "10.0.0.2"]));
    server.set("b", Ok(&["10.0.1.1"]));
    let mut firsts = std::collections::BTreeSet::new();
    for _ in 0..50 {
        hosts = Hosts::new(hosts.hosts, hosts.platform);
        hosts.begin_dial(false, false);
        firsts.extend(next(&mut hosts).map(|next| ip(&next)));
    }
    assert_eq!(firsts.len(), 3, "{firsts:?}");
}

#[test]
fn addresses_of_two_families_are_one_server() {
    let (mut hosts, server) = hosts(&["zk"]);
    for (addresses, servers) in [(&["10.0.0.1", "fd00::1"][..], 1), (&["10.0.0.1", "10.0.0.2", "fd00::1"], 2)]
    {
        server.set("zk", Ok(addresses));
        assert_eq!(hosts.begin_dial(false, false), servers, "{addresses:?}");
    }
}
