//! A core that does all that a core does, and what the log makes of it: the same, snapshots in the middle or not.

use bytes::{Bytes, BytesMut};
use zoolock_server::Hidden;
use zoolock_server::acl::{Acl, Identity, perms};
use zoolock_server::core::{ConnId, Core, CoreConfig, Now};
use zoolock_server::log::{Log, SnapshotWriter};
use zoolock_server::wire::{CreateRequest, Request, op};

use super::effort;
use super::server::{image, small};
use crate::core_client;
use crate::sim_disk::{Random, SimDisk};

const CONNECTIONS: usize = 3;

struct Live {
    core: Core,
    conns: Vec<ConnId>,
    now: Now,
    random: Random,
}

impl Live {
    fn new(seed: u64) -> Self {
        let config = CoreConfig { journal: true, ..core_client::config() };
        let now = Now { mono_ms: 0, wall_ms: 1_000_000 };
        let mut live = Live { core: Core::new(config, 1), conns: Vec::new(), now, random: Random(seed) };
        for _ in 0..CONNECTIONS {
            let conn = live.connect();
            live.conns.push(conn);
        }
        live
    }

    fn connect(&mut self) -> ConnId {
        let id = self.random.number();
        let conn = core_client::connect(&mut self.core, id, self.now);
        let credentials = Hidden(b"me:pw".to_vec());
        self.ask(conn, &Request::Auth { kind: 0, scheme: "digest".to_owned(), credentials });
        conn
    }

    fn ask(&mut self, conn: ConnId, request: &Request) {
        core_client::ask(&mut self.core, conn, request, self.now);
    }

    fn act(&mut self) {
        let at = self.random.below(CONNECTIONS);
        match self.random.below(24) {
            0 => {
                self.now.mono_ms += self.random.below(3000) as u64;
                // Wall clocks are set back, too.
                self.now.wall_ms += self.random.below(9000) as i64 - 3000;
                self.core.tick(self.now);
            }
            1 => self.core.remove_empty_containers(self.now),
            2 => self.ask(self.conns[at], &Request::CloseSession),
            _ => {
                let request = self.request();
                self.ask(self.conns[at], &request);
            }
        }
        if self.core.take_output(self.conns[at], &mut BytesMut::new()) {
            self.core.closed(self.conns[at], self.now);
            self.conns[at] = self.connect();
        }
    }

    fn request(&mut self) -> Request {
        match self.random.below(12) {
            0 => {
                let mut acl = vec![Acl::anyone(perms::ALL)];
                if self.random.one_in(2) {
                    acl.push(Acl { perms: perms::ALL, who: Identity::new("auth", "") });
                }
                Request::SetAcl { path: self.path(), acl, version: -1 }
            }
            1..4 => Request::Multi((0..self.random.below(6)).map(|_| self.single()).collect()),
            _ => self.single(),
        }
    }

    fn single(&mut self) -> Request {
        let path = self.path();
        match self.random.below(10) {
            0..6 => {
                let kinds = [
                    (op::CREATE, 0),
                    (op::CREATE, 0),
                    (op::CREATE, 1),
                    (op::CREATE2, 2),
                    (op::CREATE, 3),
                    (op::CREATE_CONTAINER, 4),
                    (op::CREATE_TTL, 5),
                    (op::CREATE_TTL, 6),
                ];
                let (op, flags) = kinds[self.random.below(kinds.len())];
                let (data, acl) = (self.data(), vec![Acl::anyone(perms::ALL)]);
                Request::Create(CreateRequest { op, path, data, acl, flags, ttl: 2000 })
            }
            6..8 => Request::Delete { path, version: -1 },
            8 => Request::SetData { path, data: self.data(), version: -1 },
            _ => Request::Check { path: "/".to_owned(), version: -1 },
        }
    }

    fn path(&mut self) -> String {
        (0..=self.random.below(3)).map(|_| ["/a", "/b"][self.random.below(2)]).collect()
    }

    fn data(&mut self) -> Option<Bytes> {
        (!self.random.one_in(5)).then(|| Bytes::from_static([&b""[..], b"x"][self.random.below(2)]))
    }
}

#[test]
fn what_the_log_brings_back_is_what_the_core_had() {
    for seed in 0..effort(60, 3000) as u64 {
        let mut live = Live::new(seed);
        let disk = SimDisk::new(seed);
        let (mut log, _) = Log::open(disk.port(), small(0)).expect("an empty disk");
        let mut snapshot: Option<SnapshotWriter> = None;
        for step in 0..300 {
            live.act();
            live.core.decided().drain(..).for_each(|txn| log.append(&txn).expect("it can be logged"));
            if live.random.one_in(5) {
                log.write().and_then(|()| log.sync()).expect("nothing fails");
            }
            snapshot = match snapshot.take() {
                None if log.wants_snapshot() || live.random.one_in(40) => {
                    log.snapshot_begins();
                    let (zxid, sessions) = live.core.begin_snapshot();
                    Some(SnapshotWriter::begin(log.disk(), zxid, &sessions).expect("nothing fails"))
                }
                Some(mut writer) if live.random.one_in(2) => match live.core.snapshot_chunk(3) {
                    Some(records) => {
                        writer.add(records).expect("nothing fails");
                        Some(writer)
                    }
                    None => {
                        log.write().and_then(|()| log.sync()).expect("nothing fails");
                        log.snapshot_done(Some(writer.finish(log.synced()).expect("nothing fails")));
                        log.clean().expect("nothing fails");
                        None
                    }
                },
                snapshot => snapshot,
            };
            if step % 50 == 49 {
                log.write().and_then(|()| log.sync()).expect("nothing fails");
                let back = Log::open(disk.copy().port(), small(0));
                let (_, recovered) = back.unwrap_or_else(|error| panic!("seed {seed}, step {step}: {error}"));
                let mut had = live.core.state().clone();
                // What was refused took a number, and nothing else.
                had.zxid = live.core.last_change();
                assert_eq!(image(&recovered.state), image(&had), "seed {seed}, step {step}");
            }
        }
    }
}
