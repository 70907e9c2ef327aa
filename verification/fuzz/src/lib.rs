//! Code that the fuzz targets share: an input of bytes, and requests that are made from an input.

#[path = "../../../crates/zoolock-server/tests/support/sim_disk.rs"]
pub mod sim_disk;

use bytes::{Bytes, BytesMut};
use zoolock_server::acl;
use zoolock_server::tree::{NodeRecord, Tree};
use zoolock_wire::{
    Acl, CreateRequest, Hidden, Identity, Request, RequestHeader, SetWatches, Writer, op, perms,
};

/// Paths of requests. They are few, so that requests conflict.
pub const PATHS: [&str; 14] = [
    "/a",
    "/a/b",
    "/a/b/c",
    "/a/b/c/d",
    "/b",
    "/b/s-",
    "/a/s-",
    "/c",
    "/c/",
    "/",
    "",
    "/zookeeper",
    "/zookeeper/quota",
    "/zookeeper/quota/a",
];

/// Credentials of an account, of the shared secret, of the super user, and of an empty user.
pub const CREDENTIALS: [&str; 4] = ["me:pw", "zoolock:secret", "super:test", ":"];

/// An input of bytes, read from the front. After the last byte, [`byte`](Input::byte) returns zero.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Creates an input of these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Input(bytes)
    }

    /// Returns whether all bytes are read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads all remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Reads a byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        byte
    }

    /// Reads a number of two bytes.
    pub fn short(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Reads a number of eight bytes.
    pub fn long(&mut self) -> i64 {
        i64::from_be_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Reads `len` bytes, or all remaining ones.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        head
    }

    /// Reads a number of one byte, then that number of bytes.
    pub fn bytes(&mut self) -> &'a [u8] {
        let len = self.byte();
        self.take(usize::from(len))
    }

    /// Reads a byte, and returns the value that it selects.
    pub fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    /// Reads a path, mostly one of [`PATHS`].
    pub fn path(&mut self) -> String {
        match self.byte() {
            240.. => String::from_utf8_lossy(self.bytes()).into_owned(),
            at => PATHS[usize::from(at) % PATHS.len()].to_owned(),
        }
    }

    fn paths(&mut self) -> Vec<String> {
        (0..self.byte() % 4).map(|_| self.path()).collect()
    }

    fn version(&mut self) -> i32 {
        i32::from(self.byte() % 4) - 1
    }

    fn data(&mut self) -> Option<Bytes> {
        match self.byte() {
            0 => None,
            len => Some(Bytes::copy_from_slice(self.take(usize::from(len - 1)))),
        }
    }

    fn acl(&mut self) -> Vec<Acl> {
        match self.byte() % 8 {
            0..4 => vec![Acl::anyone(perms::ALL)],
            4 => vec![Acl { perms: perms::ALL, identity: Identity::new("auth", "") }],
            5 => vec![Acl { perms: i32::from(self.byte()), identity: acl::digest_identity(b"me:pw") }],
            6 => vec![Acl::anyone(i32::from(self.byte())), Acl::anyone(perms::READ)],
            _ => {
                let scheme = self.choose(&["world", "ip", "digest", "x509", "auth", "super", "sasl"]);
                let id = String::from_utf8_lossy(self.bytes()).into_owned();
                vec![Acl { perms: i32::from(self.byte()), identity: Identity::new(scheme, id) }]
            }
        }
    }

    fn create(&mut self) -> Request {
        let op = self.choose(&[op::CREATE, op::CREATE2, op::CREATE_CONTAINER, op::CREATE_TTL, op::CREATE]);
        let flags = match (op, self.byte()) {
            (op::CREATE_CONTAINER, 0..200) => 4,
            (op::CREATE_TTL, byte @ 0..200) => 5 + i32::from(byte & 1),
            (_, byte @ 0..200) => i32::from(byte % 4),
            (_, byte) => i32::from(byte as i8),
        };
        let ttl = if op == op::CREATE_TTL { i64::from(self.short()) - 1 } else { -1 };
        Request::Create(CreateRequest {
            op,
            path: self.path(),
            data: self.data(),
            acl: self.acl(),
            flags,
            ttl,
        })
    }

    /// Reads a write that a multi may contain.
    pub fn write(&mut self) -> Request {
        match self.byte() % 8 {
            0..4 => self.create(),
            4 | 5 => Request::Delete { path: self.path(), version: self.version() },
            6 => Request::SetData { path: self.path(), data: self.data(), version: self.version() },
            _ => Request::Check { path: self.path(), version: self.version() },
        }
    }

    /// Reads a request of any kind.
    pub fn request(&mut self) -> Request {
        let watch = |input: &mut Self| input.byte() & 1 == 1;
        match self.byte() % 32 {
            0..8 => self.write(),
            8..11 => Request::Multi((0..self.byte() % 6).map(|_| self.write()).collect()),
            11 => {
                let read = |input: &mut Self| match input.byte() & 1 {
                    0 => Request::GetData { path: input.path(), watch: watch(input) },
                    _ => Request::GetChildren { path: input.path(), watch: watch(input) },
                };
                Request::MultiRead((0..self.byte() % 6).map(|_| read(self)).collect())
            }
            12 => Request::Exists { path: self.path(), watch: watch(self) },
            13 => Request::GetData { path: self.path(), watch: watch(self) },
            14 => Request::GetChildren { path: self.path(), watch: watch(self) },
            15 => Request::GetChildren2 { path: self.path(), watch: watch(self) },
            16 => Request::GetAcl { path: self.path() },
            17 => Request::SetAcl { path: self.path(), acl: self.acl(), version: self.version() },
            18 => Request::Sync { path: self.path() },
            19 => Request::Ping,
            20 => Request::CheckWatches { path: self.path(), kind: i32::from(self.byte()) },
            21 => Request::RemoveWatches { path: self.path(), kind: i32::from(self.byte()) },
            22 | 23 => Request::AddWatch { path: self.path(), mode: i32::from(self.byte() % 3) },
            24 | 25 => {
                let both = self.byte() & 1 == 1;
                Request::SetWatches(SetWatches {
                    relative_zxid: (1 << 32) + i64::from(self.byte()),
                    data: self.paths(),
                    exist: self.paths(),
                    child: self.paths(),
                    persistent: both.then(|| self.paths()),
                    recursive: both.then(|| self.paths()),
                })
            }
            26 | 27 => {
                let scheme = self.choose(&["digest", "digest", "ip", "x509", "world"]).to_owned();
                let credentials = Hidden(self.choose(&CREDENTIALS).as_bytes().to_vec());
                Request::Auth { kind: 0, scheme, credentials }
            }
            28 => Request::GetEphemerals { prefix: self.path() },
            29 => Request::GetAllChildrenNumber { path: self.path() },
            30 => self
                .choose(
                    &[
                        Request::WhoAmI,
                        Request::Sasl { token: None },
                        Request::Reconfig,
                        Request::DeleteContainer,
                    ]
                    .each_ref(),
                )
                .clone(),
            _ => match self.byte() % 4 {
                0 => Request::CloseSession,
                code => Request::Unknown { op: i32::from(code) - 100 },
            },
        }
    }
}

/// Encodes a request with its header.
pub fn frame(xid: i32, request: &Request) -> BytesMut {
    let mut out = BytesMut::new();
    RequestHeader { xid, op: request.op() }.encode(&mut Writer::new(&mut out));
    request.encode(&mut Writer::new(&mut out));
    out
}

/// Returns all records of a tree, sorted by path.
pub fn records(tree: &Tree) -> Vec<NodeRecord> {
    sorted(tree.records())
}

/// Returns these records, sorted by path.
pub fn sorted(records: impl IntoIterator<Item = NodeRecord>) -> Vec<NodeRecord> {
    let mut records: Vec<NodeRecord> = records.into_iter().collect();
    records.sort_by(|a, b| a.path.cmp(&b.path));
    records
}
