//! Plans a round: random requests of four sessions. The requests conflict, because they use few
//! paths.

use bytes::Bytes;
use fastrand::Rng;
use zoolock_server::acl;
use zoolock_wire::{Acl, CreateRequest, Hidden, Identity, Request, SetWatches, op, perms};

/// Number of slots. Each slot has one session at a time.
pub(crate) const SLOTS: usize = 4;

/// The placeholder for the root znode of a round. In frames, the real name replaces the
/// placeholder. Both have the same length.
pub(crate) const ROOT: &str = "/d00000";

/// An action of a session.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) slot: usize,
    pub(crate) action: Action,
    /// Set if the next step of the same slot may be sent before this one is answered.
    pub(crate) pipelined_with_next: bool,
    /// Set if the step uses paths that all rounds share, and that an earlier round may have changed.
    pub(crate) uses_shared_path: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// A request. The zxid of a `SetWatches` counts from the start of the round.
    Request(Request),
    /// A request with an invalid body.
    Broken { op: i32, body: Vec<u8> },
    /// A lost connection, after which the session continues on a new connection.
    Reattach { wrong_password_first: bool },
    /// The end of the session, and the start of a new one.
    Renew,
}

const NAMES: [&str; 12] =
    ["", "/a", "/b", "/c", "/a/a", "/a/b", "/b/a", "/b/b", "/a/a/a", "/a/a/b", "/c/x", "/a/a/a/a"];
const SEQUENTIAL: [&str; 5] = ["/", "/s-", "/a/s-", "/a/", "/b/b/q"];
const INVALID: [&str; 11] = [
    "",
    "x",
    "d00000/a",
    "/d00000/a/",
    "/d00000//a",
    "/d00000/./a",
    "/d00000/a/..",
    "/d00000/a\0",
    "/d00000/\u{1}",
    "/d00000/\u{f8ff}",
    "//",
];

/// The kind of watch that a session sets on a path. On Apache ZooKeeper, a new watch on a path
/// replaces watches of other kinds (ZOOKEEPER-4466). This server keeps all of them. So a session
/// never sets two kinds on one path.
#[derive(Clone, Copy, PartialEq)]
enum WatchKind {
    Once,
    Persistent,
    Recursive,
}

pub(crate) struct Planner {
    random: Rng,
    salt: u64,
    steps: Vec<Step>,
    uses_shared_path: bool,
}

/// Returns a random round of about `calls` steps.
pub(crate) fn plan(seed: u64, calls: usize) -> Vec<Step> {
    let mut random = Rng::with_seed(seed);
    let salt = random.u64(..);
    let mut planner = Planner { random, salt, steps: Vec::new(), uses_shared_path: false };
    while planner.steps.len() < calls {
        planner.batch();
    }
    planner.steps
}

impl Planner {
    fn batch(&mut self) {
        let slot = self.random.usize(..SLOTS);
        match self.random.u64(..200) {
            0..3 => return self.push(slot, Action::Renew, false),
            3..6 => {
                let wrong_password_first = self.random.u8(..100) < 20;
                self.push(slot, Action::Reattach { wrong_password_first }, false);
                if self.random.u8(..100) < 70 {
                    let set = Request::SetWatches(self.set_watches(slot));
                    self.push(slot, Action::Request(set), false);
                }
                return;
            }
            // Credentials are sent alone, because on arrival they also take effect for earlier
            // requests that still wait in the queue of Apache ZooKeeper.
            6..12 => {
                let auth = self.auth();
                return self.push(slot, Action::Request(auth), false);
            }
            12..14 => {
                let action = self.broken();
                return self.push(slot, action, false);
            }
            _ => {}
        }
        for _ in 0..=self.random.u64(..40) {
            let request = self.request(slot);
            let alone = blocks_pipelining(&request);
            self.push(slot, Action::Request(request), !alone);
            if alone {
                return;
            }
        }
        if let Some(last) = self.steps.last_mut() {
            last.pipelined_with_next = false;
        }
    }

    fn push(&mut self, slot: usize, action: Action, pipelined_with_next: bool) {
        let uses_shared_path = std::mem::take(&mut self.uses_shared_path);
        self.steps.push(Step { slot, action, pipelined_with_next, uses_shared_path });
    }

    fn request(&mut self, slot: usize) -> Request {
        match self.random.u64(..100) {
            0..22 => Request::Create(self.create(false)),
            22..32 => Request::Delete { path: self.path(), version: self.version() },
            32..40 => self.set_data(),
            40..46 => {
                let path = self.path();
                Request::Exists { watch: self.watch(slot, &path), path }
            }
            46..53 => {
                let path = self.path();
                Request::GetData { watch: self.watch(slot, &path), path }
            }
            53..57 => {
                let path = self.path();
                Request::GetChildren { watch: self.watch(slot, &path), path }
            }
            57..62 => {
                let path = self.path();
                Request::GetChildren2 { watch: self.watch(slot, &path), path }
            }
            62..64 => Request::GetAcl { path: self.path() },
            64..68 => self.set_acl(),
            68..78 => {
                let ops = (0..self.random.u64(..7)).map(|_| self.op_of_multi()).collect();
                Request::Multi(ops)
            }
            78..81 => {
                let reads = (0..self.random.u64(..5)).map(|_| self.read()).collect();
                Request::MultiRead(reads)
            }
            81..86 => {
                let path = self.path();
                match self.watch_kind(slot, &path) {
                    WatchKind::Once if self.random.u8(..100) < 5 => Request::AddWatch { path, mode: 9 },
                    WatchKind::Once => Request::GetData { path, watch: true },
                    WatchKind::Persistent => Request::AddWatch { path, mode: 0 },
                    WatchKind::Recursive => Request::AddWatch { path, mode: 1 },
                }
            }
            86..89 => Request::RemoveWatches {
                path: self.path(),
                kind: pick(&mut self.random, &[1, 2, 3, 3, 0, 7]),
            },
            89..91 => {
                // The path must have a leading slash, because from other paths Apache ZooKeeper
                // removes too many characters.
                let path = Some(self.path()).filter(|path| path.starts_with('/'));
                Request::CheckWatches {
                    path: path.unwrap_or_else(|| ROOT.to_owned()),
                    kind: pick(&mut self.random, &[1, 2, 3, 0]),
                }
            }
            91..93 => Request::SetWatches(self.set_watches(slot)),
            93..94 => Request::Sync { path: self.path() },
            // The check must fail, because Apache ZooKeeper never answers a successful check
            // outside a multi. No znode has this version.
            94..95 => Request::Check { path: self.path(), version: 1_000_000 },
            95..96 => {
                let prefix = pick(
                    &mut self.random,
                    &["", "/", " ", "/d00000", "/d00000/a", "/d00000/a/", "d", "/zookeeper"],
                );
                Request::GetEphemerals { prefix: prefix.to_owned() }
            }
            96..98 => Request::GetAllChildrenNumber { path: self.path() },
            98..99 => Request::WhoAmI,
            _ => Request::Ping,
        }
    }

    /// Returns a random path. Some paths are invalid, and some are below znodes that cannot have children.
    fn path(&mut self) -> String {
        match self.random.u64(..93) {
            0..74 => format!("{ROOT}{}", pick(&mut self.random, &NAMES)),
            74..86 => format!("{ROOT}{}{:010}", pick(&mut self.random, &SEQUENTIAL), self.random.u64(..12)),
            86..90 => {
                self.uses_shared_path = true;
                pick(&mut self.random, &INVALID).to_owned()
            }
            _ => {
                self.uses_shared_path = true;
                // Not `/zookeeper`, which only the super user may write to on this server.
                "/".to_owned()
            }
        }
    }

    fn version(&mut self) -> i32 {
        pick(&mut self.random, &[-1, -1, -1, -1, 0, 0, 0, 1, 1, 2, 3, 7, -2])
    }

    fn data(&mut self) -> Option<Bytes> {
        match self.random.u64(..10) {
            0 => None,
            1 => Some(Bytes::new()),
            _ => Some(Bytes::from(vec![b'x'; self.random.usize(..30)])),
        }
    }

    fn create(&mut self, in_multi: bool) -> CreateRequest {
        let op = pick(
            &mut self.random,
            &[op::CREATE, op::CREATE, op::CREATE2, op::CREATE_CONTAINER, op::CREATE_TTL],
        );
        let odd = self.random.u8(..100) < if in_multi { 4 } else { 8 };
        let flags = match op {
            _ if odd => pick(&mut self.random, &[0, 1, 2, 3, 4, 5, 6, 7, -1]),
            op::CREATE_CONTAINER => 4,
            op::CREATE_TTL => pick(&mut self.random, &[5, 6]),
            _ => pick(&mut self.random, &[0, 0, 0, 1, 1, 2, 3]),
        };
        let path = if matches!(flags, 2 | 3 | 6) && self.random.u8(..100) < 80 {
            format!("{ROOT}{}", pick(&mut self.random, &SEQUENTIAL))
        } else {
            self.path()
        };
        let ttl = match op {
            // No znode expires here. The test in `expiry.rs` covers expiry.
            op::CREATE_TTL if !odd => 3_600_000,
            // With flags other than 5 and 6, a negative time to live would make Apache ZooKeeper exit.
            op::CREATE_TTL if !in_multi && !matches!(flags, 5 | 6) => pick(&mut self.random, &[0, 1]),
            op::CREATE_TTL => pick(
                &mut self.random,
                &[0, -1, i64::MIN, i64::MAX, 0xff_ffff_ffff, 0x100_0000_0000, 3_600_000],
            ),
            _ => -1,
        };
        CreateRequest { op, data: self.data(), path, acl: self.acl(), flags, ttl }
    }

    fn set_data(&mut self) -> Request {
        Request::SetData { path: self.path(), data: self.data(), version: self.version() }
    }

    fn set_acl(&mut self) -> Request {
        let mut path = self.path();
        if !path.starts_with(&format!("{ROOT}/")) {
            // The access list of a path that all rounds share must not change.
            path = format!("{ROOT}/a");
        }
        Request::SetAcl { path, acl: self.acl(), version: self.version() }
    }

    fn op_of_multi(&mut self) -> Request {
        match self.random.u64(..100) {
            0..40 => Request::Create(self.create(true)),
            40..60 => Request::Delete { path: self.path(), version: self.version() },
            60..80 => self.set_data(),
            80..98 => Request::Check { path: self.path(), version: self.version() },
            98 => self.read(),
            _ => self.set_acl(),
        }
    }

    fn read(&mut self) -> Request {
        let (path, watch) = (self.path(), self.random.u8(..100) < 50);
        match self.random.u64(..60) {
            0 => Request::Delete { path, version: -1 },
            1..40 => Request::GetData { path, watch },
            _ => Request::GetChildren { path, watch },
        }
    }

    fn acl(&mut self) -> Vec<Acl> {
        let acl = |perms, scheme: &str, id: &str| Acl { perms, identity: Identity::new(scheme, id) };
        let one = |perms, scheme: &str, id: &str| vec![acl(perms, scheme, id)];
        let user = |user: &str| acl::digest_identity(format!("{user}:pw").as_bytes()).id;
        let (some, open) = (self.random.u64(..32), Acl::anyone(perms::ALL));
        let some = i32::try_from(some).expect("it is small");
        match self.random.u64(..100) {
            0..55 => vec![open],
            55..58 => vec![Acl::anyone(perms::READ)],
            58..62 => vec![Acl::anyone(perms::ALL - perms::READ)],
            62..66 => vec![Acl::anyone(some)],
            66..70 => vec![Acl::anyone(perms::READ), acl(perms::ALL, "digest", &user("u1"))],
            70..74 => one(perms::ALL, "digest", &user("u1")),
            74..77 => vec![acl(some, "digest", &user("u2")), acl(some, "digest", &user("u1"))],
            77..82 => one(perms::ALL, "auth", ""),
            82..84 => vec![acl(some, "auth", "whatever"), open.clone(), open],
            84..87 => one(some, "ip", "127.0.0.1"),
            87..89 => one(
                perms::ALL,
                "ip",
                pick(&mut self.random, &["127.0.0.0/8", "0.0.0.0/0", "127.0.0.7/29", "+127.00.0.1"]),
            ),
            89..91 => vec![Acl::anyone(perms::CREATE | perms::DELETE), acl(perms::ALL, "ip", "10.1.2.3/16")],
            91..93 => Vec::new(),
            93..95 => one(some, "world", "someone"),
            95..97 => {
                let ids = ["a", "a:", ":b", "a:b:", "a:b:c", ":", "", "a::", "::b"];
                one(some, "digest", pick(&mut self.random, &ids))
            }
            97..99 => {
                let ids = [
                    "300.1.1.1",
                    "1.2.3.4/33",
                    "1.2.3.4/",
                    "1.2.3",
                    "1.2.3.4/-1",
                    "1.2.3.4/0",
                    "1.2.3.4/8/8",
                    "x",
                    "",
                ];
                one(some, "ip", pick(&mut self.random, &ids))
            }
            _ => one(some, pick(&mut self.random, &["super", "x509", "sasl", "", "nobody"]), "x"),
        }
    }

    fn auth(&mut self) -> Request {
        let (scheme, credentials) = pick(
            &mut self.random,
            &[
                ("digest", "u1:pw"),
                ("digest", "u1:pw"),
                ("digest", "u2:pw"),
                ("digest", "u2:wrong"),
                ("digest", "nameless"),
                ("digest", ""),
                ("digest", "super:test"),
                ("ip", ""),
                ("world", "anyone"),
                ("nothing", "x"),
            ],
        );
        Request::Auth { kind: 0, scheme: scheme.to_owned(), credentials: Hidden(credentials.into()) }
    }

    fn broken(&mut self) -> Action {
        // The body is at most the length of a path and its first two bytes, so the body ends too
        // early.
        let ops = [
            op::CREATE,
            op::CREATE2,
            op::CREATE_CONTAINER,
            op::CREATE_TTL,
            op::DELETE,
            op::EXISTS,
            op::GET_DATA,
            op::SET_DATA,
            op::GET_ACL,
            op::SET_ACL,
            op::GET_CHILDREN,
            op::SYNC,
            op::GET_CHILDREN2,
            op::CHECK,
            op::MULTI,
            op::CHECK_WATCHES,
            op::REMOVE_WATCHES,
            op::MULTI_READ,
            op::SET_WATCHES,
            op::SET_WATCHES2,
            op::ADD_WATCH,
            op::GET_EPHEMERALS,
            op::GET_ALL_CHILDREN_NUMBER,
            op::RECONFIG,
        ];
        let body = [0, 0, 0, 9, b'/', b'd'];
        Action::Broken { op: pick(&mut self.random, &ops), body: body[..self.random.usize(..7)].to_vec() }
    }

    fn set_watches(&mut self, slot: usize) -> SetWatches {
        let mut set = SetWatches {
            relative_zxid: i64::try_from(self.random.usize(..self.steps.len() + 10)).expect("it is small"),
            ..SetWatches::default()
        };
        let (mut persistent, mut recursive) = (Vec::new(), Vec::new());
        for _ in 0..self.random.u64(..8) {
            let path = self.path();
            match self.watch_kind(slot, &path) {
                WatchKind::Once => match self.random.u64(..3) {
                    0 => set.data.push(path),
                    1 => set.exist.push(path),
                    _ => set.child.push(path),
                },
                WatchKind::Persistent => persistent.push(path),
                WatchKind::Recursive => recursive.push(path),
            }
        }
        if self.random.u8(..100) < 60 {
            (set.persistent, set.recursive) = (Some(persistent), Some(recursive));
        }
        set
    }

    fn watch(&mut self, slot: usize, path: &str) -> bool {
        self.random.u8(..100) < 40 && self.watch_kind(slot, path) == WatchKind::Once
    }

    fn watch_kind(&self, slot: usize, path: &str) -> WatchKind {
        let mut seed = self.salt ^ (slot as u64);
        for byte in path.bytes() {
            seed = Rng::with_seed(seed ^ u64::from(byte)).u64(..);
        }
        match seed % 5 {
            0..3 => WatchKind::Once,
            3 => WatchKind::Persistent,
            _ => WatchKind::Recursive,
        }
    }
}

/// Returns whether the next request must wait for the reply to this one. Apache ZooKeeper decides a
/// request from its records of pending changes, before earlier requests are applied. After some
/// requests these records are wrong.
fn blocks_pipelining(request: &Request) -> bool {
    match request {
        // The records still contain the old access list.
        Request::SetAcl { .. } => true,
        // The records say "ephemeral", but a container is created.
        Request::Create(create) => create.op == op::CREATE_CONTAINER && matches!(create.flags, 1 | 3),
        // Apache ZooKeeper cannot encode this multi, and never removes its records.
        Request::Multi(ops) => ops.iter().any(|op| match op {
            Request::Create(create) => matches!(create.flags, 5 | 6) && create.op != op::CREATE_TTL,
            _ => false,
        }),
        _ => false,
    }
}

/// Returns a random element.
pub(crate) fn pick<T: Clone>(random: &mut Rng, from: &[T]) -> T {
    from[random.usize(..from.len())].clone()
}
