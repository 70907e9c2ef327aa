//! Watches on long paths, and events that many watches match.

use zoolock_server::core::CoreConfig;
use zoolock_wire::{Request, SetWatches};

use crate::work::{TestCore, open, small_parts};

/// Returns paths of a megabyte with a common beginning.
fn long_paths(count: usize) -> Vec<String> {
    let beginning = format!("/{}", "p".repeat(1_000_000));
    (0..count).map(|number| format!("{beginning}{number}")).collect()
}

fn set(path: &str) -> Request {
    Request::SetData { path: path.into(), data: None, version: -1 }
}

#[test]
fn watches_on_long_paths_are_forgotten_in_parts() {
    const WATCHES: usize = 60;
    for mode in [None, Some(1)] {
        let mut core = TestCore::new(small_parts());
        let client = core.connect();
        for path in long_paths(WATCHES) {
            let request = match mode {
                None => Request::Exists { path, watch: true },
                Some(mode) => Request::AddWatch { path, mode },
            };
            core.call(client, &request);
        }
        assert_eq!(core.core.stats().watches, WATCHES);
        core.core.remove_connection(client, core.now);
        let parts = core.work();
        assert!(parts > 2, "all watches were forgotten in {parts} parts");
        assert_eq!(core.core.stats().watched_paths, 0);
    }
}

#[test]
fn watches_on_long_paths_get_their_events() {
    // With such small parts, events are delivered later.
    let mut core = TestCore::new(CoreConfig { max_part: 1, ..small_parts() });
    let (watcher, writer) = (core.connect(), core.connect());
    core.call(writer, &open("/x"));
    let paths = long_paths(10);
    for path in &paths {
        core.call(watcher, &Request::Exists { path: path.clone(), watch: true });
    }
    core.call(writer, &Request::Multi(vec![set("/x"); 100]));
    for path in [&paths[3], &paths[7], &paths[3]] {
        core.call(writer, &open(path.as_str()));
    }
    let mut events = 0;
    while core.core.is_lagging(watcher) {
        core.finish(watcher);
        events += core.take(watcher).events.len();
    }
    events += core.take(watcher).events.len();
    assert_eq!(events, 2);
    assert_eq!(core.core.stats().watches, 8);
}

#[test]
fn watches_on_all_ancestors_get_each_event_once() {
    const EVENTS: usize = 50;
    let mut core = TestCore::new(CoreConfig { max_part: 1, ..small_parts() });
    let (watcher, writer) = (core.connect(), core.connect());
    let mut path = String::new();
    for _ in 0..20 {
        path.push_str("/a");
        core.call(writer, &open(path.as_str()));
        core.call(watcher, &Request::AddWatch { path: path.clone(), mode: 1 });
    }
    core.call(writer, &Request::Multi(vec![set(&path); EVENTS]));
    let mut events = 0;
    while core.core.is_lagging(watcher) {
        core.finish(watcher);
        events += core.take(watcher).events.len();
    }
    events += core.take(watcher).events.len();
    assert_eq!(events, EVENTS);
}

/// Clients that watch, leave and come back must not add watches faster than the watches are forgotten.
#[test]
fn ended_watches_do_not_accumulate() {
    const WATCHES: usize = 300;
    let mut core = TestCore::new(small_parts());
    for round in 0..20 {
        let client = core.connect();
        let exist = (0..WATCHES).map(|number| format!("/{round}-{number}")).collect();
        core.call(client, &Request::SetWatches(SetWatches { exist, ..SetWatches::default() }));
        assert_eq!(core.core.stats().watches, WATCHES);
        core.core.remove_connection(client, core.now);
        let kept = core.core.stats().watch_sides;
        assert!(kept <= 2 * WATCHES, "{kept} watches are in memory");
    }
}
