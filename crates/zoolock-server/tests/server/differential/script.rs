//! A fixed script of requests that a random round rarely sends.

use bytes::Bytes;
use zoolock_wire::{Acl, CreateRequest, Identity, Request, SetWatches, op, perms};

use super::plan::{Action, Step};
use crate::common::{auth, check, children, create, create_op, delete, exists, get, set};

/// The slots of the two sessions.
const A: usize = 0;
const B: usize = 1;

/// Steps, each of which waits for the reply to the step before.
#[derive(Default)]
struct Script(Vec<Step>);

impl Script {
    fn push(&mut self, slot: usize, action: Action) {
        self.0.push(Step { slot, action, pipelined_with_next: false, uses_shared_path: false });
    }

    fn call(&mut self, slot: usize, request: Request) {
        self.push(slot, Action::Request(request));
    }

    fn calls(&mut self, slot: usize, requests: impl IntoIterator<Item = Request>) {
        requests.into_iter().for_each(|request| self.call(slot, request));
    }

    /// Receives the pending events of a session.
    fn receive_events(&mut self, slot: usize) {
        self.call(slot, Request::Ping);
    }
}

/// Returns the script for servers on which znodes have no time to live.
pub(crate) fn script() -> Vec<Step> {
    let mut script = Script::default();
    creations(&mut script);
    data_and_versions(&mut script);
    multis(&mut script);
    watches(&mut script);
    access_lists(&mut script);
    end_of_a_session(&mut script);
    script.0
}

fn creations(t: &mut Script) {
    t.call(A, exists("/d00000/t", true));
    t.call(B, create("/d00000/t", 0));
    t.receive_events(A);
    t.calls(
        A,
        [
            create("/d00000/t", 0),
            create("/d00000/t/a/b", 0),
            create("d00000/t", 0),
            create("", 0),
            create("/", 0),
            create("/d00000/t/", 0),
            create("/d00000/t//x", 0),
            create("/d00000/t/./x", 0),
            create("/d00000/t/..", 0),
            create("/d00000/t/\u{1}", 0),
            create("/d00000/t/\u{1f512}", 0),
            create("/d00000/t/nul\0", 0),
            create("/d00000/t/x", 7),
            create("/d00000/t/x", -1),
            create("/d00000/t/x", 5),
            create_op(op::CREATE_TTL, "/d00000/t/x", 5),
            create_op(op::CREATE_TTL, "/d00000/t/x", 7),
            Request::Multi(vec![create("/d00000/t/y", 0), create_op(op::CREATE_TTL, "/d00000/t/x", 6)]),
            Request::DeleteContainer,
            Request::Reconfig,
            Request::Sasl { token: Some(Bytes::new()) },
            create_op(op::CREATE2, "/d00000/t/c2", 0),
            create_op(op::CREATE2, "/d00000/t/e", 1),
            create_op(op::CREATE2, "/d00000/t/e/x", 0),
            create("/d00000/t/s-", 2),
            create("/d00000/t/s-", 3),
            create("/d00000/t/", 2),
            create_op(op::CREATE_CONTAINER, "/d00000/t/box", 4),
            create("/d00000/t/four", 4),
            exists("/d00000/t/four", false),
            exists("/d00000/t/box", false),
            exists("/d00000/t/e", false),
            children("/d00000/t", false),
            Request::GetChildren { path: "/d00000/t".into(), watch: false },
            Request::GetEphemerals { prefix: "/d00000/t".into() },
            Request::GetEphemerals { prefix: "/".into() },
            Request::GetAllChildrenNumber { path: "/d00000/t".into() },
            Request::GetAllChildrenNumber { path: "/none".into() },
        ],
    );
    let mut null = CreateRequest {
        op: op::CREATE2,
        path: "/d00000/t/null".into(),
        data: None,
        acl: vec![Acl::anyone(perms::ALL)],
        flags: 0,
        ttl: -1,
    };
    t.call(A, Request::Create(null.clone()));
    t.call(A, get("/d00000/t/null", false));
    null.path = "/d00000/t/noacl".into();
    for acl in [
        vec![],
        vec![Acl { perms: perms::ALL, identity: Identity::new("nobody", "x") }],
        vec![Acl { perms: perms::ALL, identity: Identity::new("auth", "") }],
    ] {
        t.call(A, Request::Create(CreateRequest { acl, ..null.clone() }));
    }
}

fn data_and_versions(t: &mut Script) {
    t.calls(
        A,
        [
            set("/d00000/t/c2", "one", 0),
            set("/d00000/t/c2", "two", 0),
            set("/d00000/t/c2", "", -1),
            set("/none", "x", -1),
            set("relative", "x", -1),
            get("/d00000/t/c2", false),
            get("/none", false),
            get("relative", false),
            exists("nul\0", false),
            exists("/none/", false),
            delete("/d00000/t", -1),
            delete("/d00000/t/c2", 7),
            delete("/none", -1),
            delete("/", -1),
            delete("/zookeeper", -1),
            delete("/zookeeper/quota", -1),
            delete("relative", -1),
            delete("/d00000/t/c2", 2),
            exists("/d00000/t", false),
            get("/zookeeper/config", false),
            exists("/zookeeper/quota", false),
            exists("/zookeeper", false),
            Request::Sync { path: "/d00000/t".into() },
            Request::GetAcl { path: "/d00000/t".into() },
            Request::GetAcl { path: "/zookeeper/config".into() },
            Request::GetAcl { path: "/none".into() },
            Request::WhoAmI,
        ],
    );
}

fn multis(t: &mut Script) {
    for ops in [
        vec![
            create("/d00000/t/m", 0),
            set("/d00000/t/m", "1", 0),
            check("/d00000/t/m", 1),
            delete("/d00000/t/m", 1),
        ],
        vec![create("/d00000/t/m-", 2), create("/d00000/t/m-", 2), check("/d00000/t", 0)],
        vec![create("/d00000/t/m", 0), check("/d00000/t", 9), create("/d00000/t/n", 0)],
        vec![create("/d00000/t/m", 0), create("/d00000/t/m", 0)],
        vec![delete("/d00000/t/none", -1), create("/d00000/t/m", 0)],
        vec![create("/d00000/t/p", 0), create("/d00000/t/p/q", 0), delete("/d00000/t/p", -1)],
        vec![create("relative", 0)],
        vec![create_op(op::CREATE_CONTAINER, "/d00000/t/mbox", 4)],
        vec![create("/d00000/t/me", 1), create("/d00000/t/me/x", 0)],
        vec![delete("/d00000/t/mbox", 0)],
        vec![],
    ] {
        t.call(A, Request::Multi(ops));
    }
    t.calls(
        A,
        [
            check("/d00000/t", 9),
            exists("/d00000/t/m", false),
            exists("/d00000/t", false),
            create("/d00000/t/after-", 2),
            Request::MultiRead(vec![
                get("/d00000/t/null", false),
                Request::GetChildren { path: "/d00000/t".into(), watch: false },
            ]),
            Request::MultiRead(vec![get("/none", false)]),
        ],
    );
}

fn watches(t: &mut Script) {
    let w = "/d00000/t/w";
    t.calls(
        A,
        [
            create(w, 0),
            get(w, true),
            exists(w, true),
            children(w, true),
            children("/d00000/t", true),
            create("/d00000/t/w/1", 0),
            set(w, "2", -1),
            delete("/d00000/t/w/1", -1),
            get(w, true),
            children(w, true),
            exists(w, true),
            delete(w, -1),
            exists(w, true),
            children(w, true),
            get(w, true),
            Request::Multi(vec![create(w, 0), set(w, "3", -1), delete(w, -1)]),
        ],
    );
    // Each path gets only one kind of watch, because of ZOOKEEPER-4466.
    for (path, mode) in [("/d00000/t/pw", 0), ("/d00000/t/rw", 1)] {
        t.call(A, Request::AddWatch { path: path.into(), mode });
        t.calls(A, (1..=3).map(|kind| Request::CheckWatches { path: path.into(), kind }));
        let (x, y) = (format!("{path}/x"), format!("{path}/x/y"));
        t.calls(
            A,
            [
                create(path, 0),
                create(&x, 0),
                create(&y, 0),
                set(path, "4", -1),
                set(&x, "4", -1),
                delete(&y, -1),
                delete(&x, -1),
                delete(path, -1),
                create(path, 0),
                Request::RemoveWatches { path: path.into(), kind: 3 },
                Request::RemoveWatches { path: path.into(), kind: 3 },
                delete(path, -1),
            ],
        );
    }
    let null = "/d00000/t/null";
    t.calls(
        A,
        [
            get(null, true),
            Request::RemoveWatches { path: null.into(), kind: 1 },
            Request::CheckWatches { path: null.into(), kind: 2 },
            Request::RemoveWatches { path: null.into(), kind: 2 },
            set(null, "5", -1),
            Request::AddWatch { path: "/d00000/t".into(), mode: 9 },
        ],
    );
    // Sets watches as a client does after a reconnect. With the first zxid, the client has missed
    // no event. With the second one, it has missed all events since the start of the round.
    for relative_zxid in [i64::MAX / 2, 0] {
        let paths = |names: &[&str]| names.iter().map(|name| format!("/d00000/t{name}")).collect();
        let set_watches = SetWatches {
            relative_zxid,
            data: paths(&["/null", "/gone"]),
            exist: paths(&["/box", "/never"]),
            child: paths(&["", "/gone"]),
            persistent: None,
            recursive: None,
        };
        let never = "/d00000/t/never";
        t.calls(
            B,
            [Request::SetWatches(set_watches), create(never, 0), set(null, "6", -1), delete(never, -1)],
        );
    }
}

fn access_lists(t: &mut Script) {
    let path = "/d00000/t/null";
    let mine =
        [("auth", "", perms::ALL), ("digest", "you:hash", perms::READ), ("digest", "you:hash", perms::READ)];
    let acl: Vec<_> = mine
        .into_iter()
        .map(|(scheme, id, perms)| Acl { perms, identity: Identity::new(scheme, id) })
        .collect();
    t.calls(
        B,
        [
            auth("digest", "me:pw"),
            Request::WhoAmI,
            Request::SetAcl { path: path.into(), acl: acl.clone(), version: 3 },
            Request::SetAcl { path: path.into(), acl, version: 0 },
            Request::GetAcl { path: path.into() },
            get(path, false),
        ],
    );
    t.calls(
        A,
        [
            get(path, false),
            set(path, "7", -1),
            Request::GetAcl { path: path.into() },
            create("/d00000/t/null/x", 0),
            children(path, false),
            exists(path, false),
            Request::Multi(vec![check(path, -1)]),
            delete(path, -1),
        ],
    );
}

/// Ends a session. Its ephemerals are deleted in one transaction.
fn end_of_a_session(t: &mut Script) {
    t.call(A, create("/d00000/t/e2", 1));
    t.call(B, exists("/d00000/t/e2", true));
    t.call(B, children("/d00000/t", true));
    t.push(A, Action::Renew);
    t.call(B, exists("/d00000/t", false));
    t.call(B, exists("/d00000/t/e2", false));
    t.call(B, Request::GetEphemerals { prefix: String::new() });
}
