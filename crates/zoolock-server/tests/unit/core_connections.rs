//! The pure core and the connections that it ends.

use bytes::BytesMut;
use zoolock_server::core::{Core, CoreConfig, Now};
use zoolock_wire::Request;

use crate::core_client::{ask, config, connect};

const NOW: Now = Now { mono_ms: 0, wall_ms: 1 };

#[test]
fn who_is_cut_off_is_woken_though_he_was_woken_before() {
    let mut core = Core::new(CoreConfig { max_output: 1000, ..config() }, 1);
    let (watcher, writer) = (connect(&mut core, 1, NOW), connect(&mut core, 2, NOW));
    ask(&mut core, watcher, &Request::AddWatch { path: "/".to_owned(), mode: 1 }, NOW);
    core.take_output(watcher, &mut BytesMut::new());
    let set = Request::SetData { path: "/zookeeper".to_owned(), data: None, version: -1 };
    ask(&mut core, writer, &set, NOW);
    assert_eq!(core.take_woken(), [watcher]);
    // His task takes nothing meanwhile: it has enough to write, and its peer does not read.
    while !core.is_cut_off(watcher) {
        assert_eq!(core.take_woken(), []);
        ask(&mut core, writer, &set, NOW);
    }
    assert_eq!(core.take_woken(), [watcher]);
}

#[test]
fn what_is_thrown_away_with_its_connection_waits_no_more() {
    let mut core = Core::new(config(), 1);
    let conn = connect(&mut core, 1, NOW);
    assert!(core.stats().queued > 0);
    core.disconnect_all();
    assert_eq!(core.stats().queued, 0);
    core.closed(conn, NOW);
    assert_eq!(core.stats().queued, 0);
}
