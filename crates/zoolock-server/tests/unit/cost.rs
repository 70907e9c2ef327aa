//! A search for the most expensive legal requests. It mutates requests towards the largest number of counted steps, and
//! no turn with the core may take more than its limit. `ZOOLOCK_LONG=1` searches for ten minutes, and otherwise a
//! second. The test prints the most expensive turn, and the turn that took the longest time per step.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use zoolock_server::core::{ConnId, CoreConfig, Readiness};
use zoolock_wire::{Acl, CreateRequest, Hidden, Identity, Request, SetWatches, op, perms};

use crate::core_client::frame;
use crate::sim_disk::Random;
use crate::work::{Measured, TURN, small_turns};

/// Number of requests from which the search continues.
const KEPT: usize = 24;
/// Number of requests after which the search begins again with a new core.
const REQUESTS: usize = 3000;
/// Minimum number of requests.
const MIN_REQUESTS: u64 = 400;
/// A turn with fewer steps is not timed, because the clock is too coarse for it.
const TIMED: usize = 20_000;

/// The description of a request.
#[derive(Debug, Clone, Copy)]
struct Shape {
    kind: usize,
    /// Number of operations, paths or entries.
    count: usize,
    depth: usize,
    /// Length of a name, and of data.
    len: usize,
    /// Number of different paths or lists.
    variety: usize,
}

const KINDS: usize = 18;

impl Shape {
    fn random(random: &mut Random) -> Self {
        let mut below = |powers: usize| {
            let power = random.below(powers);
            (1 << power) + random.below(1 << power)
        };
        let (count, depth, len, variety) = (below(17), below(12), below(18), below(12));
        Shape { kind: random.below(KINDS), count, depth, len, variety }
    }

    fn mutated(mut self, random: &mut Random) -> Self {
        let other = Shape::random(random);
        match random.below(9) {
            0 => self.kind = other.kind,
            1 => self.count = other.count,
            2 => self.depth = other.depth,
            3 => self.len = other.len,
            4 => self.variety = other.variety,
            5 => self.count += 1 + self.count / 2,
            6 => self.count -= self.count / 3,
            7 => self.len = 1 + self.len / 2,
            _ => self.depth = 1 + self.depth / 2,
        }
        self
    }

    fn path(&self, at: usize) -> String {
        let name = format!("/{}{}", "n".repeat((self.len % 200).max(1)), at % self.variety);
        match self.depth {
            0..8 => name,
            depth => format!("{}{name}", "/a".repeat(depth)),
        }
    }

    /// Returns a path of a znode that exists.
    fn known(&self, at: usize) -> String {
        match self.depth % 3 {
            0 => format!("/lists/{}", at % self.variety.min(400)),
            1 => format!("/many/{}", at % self.variety),
            _ => "/a".repeat(self.depth.min(4000)),
        }
    }

    fn list(&self) -> Vec<Acl> {
        let digest = |number| Identity::new("digest", format!("{}{number}:x", "u".repeat(self.len % 1000)));
        let listed =
            (0..self.variety.min(1023)).map(|number| Acl { perms: perms::READ, identity: digest(number) });
        listed.chain([Acl::anyone(perms::ALL)]).collect()
    }

    /// Returns the approximate size of one operation, path or entry in bytes.
    fn item_bytes(&self) -> usize {
        let list = match self.kind {
            2 => self.variety.min(1023) * (self.len % 1000 + 30),
            _ => 0,
        };
        self.depth * 2 + self.len % 200 + 20 + list
    }

    fn request(&self) -> Request {
        let open = || vec![Acl::anyone(perms::ALL)];
        let create = |path, acl, flags| {
            Request::Create(CreateRequest {
                op: op::CREATE,
                path,
                data: Some(Bytes::new()),
                acl,
                flags,
                ttl: -1,
            })
        };
        let data = || Some(Bytes::from(vec![7; self.len * 4]));
        let all = 0..self.count;
        let paths = || (0..self.count).map(|at| self.path(at)).collect();
        match self.kind {
            0 => Request::Multi(all.map(|at| Request::Check { path: self.known(at), version: -1 }).collect()),
            1 => Request::Multi(all.map(|at| create(self.path(at), open(), 0)).collect()),
            2 => Request::Multi(all.map(|at| create(self.path(at), self.list(), 1)).collect()),
            3 => Request::Multi(all.map(|at| Request::Delete { path: self.path(at), version: -1 }).collect()),
            4 => Request::Multi(
                all.map(|at| Request::SetData { path: self.known(at), data: None, version: -1 }).collect(),
            ),
            5 => Request::Multi(
                all.flat_map(|at| {
                    let path = format!("/x{}", at % self.variety);
                    [create(path.clone(), open(), 0), Request::Delete { path, version: -1 }]
                })
                .collect(),
            ),
            6 => Request::MultiRead(
                all.map(|at| Request::GetData { path: self.known(at), watch: true }).collect(),
            ),
            7 => Request::MultiRead(
                all.map(|at| Request::GetChildren { path: self.known(at), watch: false }).collect(),
            ),
            8 => Request::SetWatches(SetWatches {
                relative_zxid: 0,
                data: paths(),
                exist: (0..self.count).map(|at| self.known(at)).collect(),
                child: paths(),
                persistent: Some(paths()),
                recursive: Some(paths()),
            }),
            9 => Request::GetChildren2 { path: ["/many", "/lists", "/"][self.count % 3].into(), watch: true },
            10 => Request::GetEphemerals { prefix: "/".into() },
            11 => Request::GetAllChildrenNumber { path: self.known(0) },
            12 => Request::SetAcl { path: self.known(self.count), acl: self.list(), version: -1 },
            13 => Request::GetAcl { path: self.known(self.count) },
            14 => Request::SetData { path: self.known(self.count), data: data(), version: -1 },
            15 => Request::GetData { path: self.known(self.count), watch: true },
            16 => Request::AddWatch { path: self.known(self.count), mode: (self.count % 2) as i32 },
            _ => Request::Auth {
                kind: 0,
                scheme: "digest".into(),
                credentials: Hidden(format!("{}:{}", "u".repeat(self.len % 4000), self.variety).into_bytes()),
            },
        }
    }
}

/// A core with everything that makes requests expensive.
fn prepare(children: usize, depth: usize) -> (Measured, Vec<ConnId>) {
    // The limits of memory are those of the server, because most clients do not read their events or delete their znodes.
    let limits = CoreConfig {
        max_undelivered: 128 << 20,
        max_queued: 512 << 20,
        max_znode_memory: 1 << 30,
        max_watches: 131_072,
        max_total_watches: 4_000_000,
        ..small_turns()
    };
    let mut core = Measured::new(limits);
    let clients: Vec<ConnId> = (0..4).map(|_| core.connect()).collect();
    let shape = |kind, variety, len| Shape { kind, count: 1, depth: 0, len, variety };
    for path in ["/many", "/lists"] {
        core.call(clients[0], &create_open(path));
    }
    for number in 0..children {
        core.call(clients[0], &create_open(&format!("/many/{number}")));
    }
    for number in 0..400 {
        let acl = shape(2, 64 + number, 50).list();
        let path = format!("/lists/{number}");
        core.call(
            clients[0],
            &Request::Create(CreateRequest { op: op::CREATE, path, data: None, acl, flags: 1, ttl: -1 }),
        );
    }
    let mut path = String::new();
    for _ in 0..depth {
        path.push_str("/a");
        core.call(clients[0], &create_open(&path));
    }
    for client in &clients {
        core.call(*client, &Request::AddWatch { path: "/".into(), mode: 1 });
    }
    (core, clients)
}

fn create_open(path: &str) -> Request {
    let acl = vec![Acl::anyone(perms::ALL)];
    Request::Create(CreateRequest { op: op::CREATE, path: path.into(), data: None, acl, flags: 0, ttl: -1 })
}

#[test]
fn no_request_takes_more_than_its_turn() {
    let is_long = std::env::var_os("ZOOLOCK_LONG").is_some();
    let duration = Duration::from_secs(if is_long { 600 } else { 1 });
    let seed = std::env::var("ZOOLOCK_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(39);
    let mut random = Random(seed);
    let begun = Instant::now();
    let mut kept: Vec<(usize, Shape)> = Vec::new();
    let mut requests = 0_u64;
    let mut most: Option<(usize, Shape)> = None;
    let mut longest = [(Duration::ZERO, 0); KINDS];
    let mut slowest: Option<(usize, usize, Shape)> = None;
    while begun.elapsed() < duration || requests < MIN_REQUESTS {
        let (mut core, mut clients) = if is_long { prepare(20_000, 4000) } else { prepare(5000, 500) };
        for _ in 0..REQUESTS {
            let shape = match random.below(4) {
                0 => Shape::random(&mut random),
                _ if kept.is_empty() => Shape::random(&mut random),
                _ => kept[random.below(kept.len())].1.mutated(&mut random),
            };
            // The sizes multiply, so only small products fit into a frame.
            if shape.count * shape.item_bytes() > 4 << 20 || shape.len > 250_000 {
                continue;
            }
            let request = shape.request();
            if frame(&request).len() > 1 << 20 {
                continue;
            }
            let client = random.below(clients.len());
            core.longest = 0;
            core.slowest = Duration::ZERO;
            core.slowest_steps = 0;
            // The connection must be ready, as in the server.
            core.begin_turn();
            while core.core.advance(clients[client]) != Readiness::Ready {
                core.end_turn();
                core.take(clients[client]);
                core.work();
                core.begin_turn();
            }
            core.end_turn();
            core.call(clients[client], &request);
            core.work();
            requests += 1;
            // The server has also closed a client with too many identities.
            if core.core.take_output(clients[client], &mut BytesMut::new()) {
                core.core.remove_connection(clients[client], core.now);
                clients[client] = core.connect();
            }
            core.core.decided_mut().clear();
            let steps = core.longest;
            assert!(steps <= TURN, "a turn took {steps} steps: {shape:?}");
            if core.slowest_steps >= TIMED {
                let nanos = core.slowest.as_nanos() as usize / core.slowest_steps;
                if slowest.is_none_or(|(most, ..)| nanos > most) {
                    slowest = Some((nanos, core.slowest_steps, shape));
                }
            }
            let known = &mut longest[shape.kind];
            *known = (*known).max((core.slowest, core.slowest_steps));
            if most.is_none_or(|(most, _)| steps > most) {
                most = Some((steps, shape));
            }
            kept.push((steps, shape));
            if kept.len() > 2 * KEPT {
                kept.sort_by_key(|(steps, _)| std::cmp::Reverse(*steps));
                // One request of each kind is enough, so that the search does not stay at one kind.
                let mut kinds = [0; KINDS];
                kept.retain(|(_, shape)| {
                    kinds[shape.kind] += 1;
                    kinds[shape.kind] <= 2
                });
                kept.truncate(KEPT);
            }
            if begun.elapsed() >= duration && requests >= MIN_REQUESTS {
                break;
            }
        }
    }
    println!("{requests} requests, seed {seed}; at most {TURN} steps are allowed in a turn");
    println!("most steps: {most:?}");
    for (kind, (time, steps)) in longest.iter().enumerate() {
        println!("longest turn of kind {kind}: {time:?}, {steps} steps");
    }
    println!("most nanoseconds per step: {slowest:?}");
    assert!(
        most.is_some_and(|(steps, _)| steps > TURN / 50),
        "the search found no expensive request: {most:?}"
    );
}
