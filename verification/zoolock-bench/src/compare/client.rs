//! The measured clients.

use clap::ValueEnum as _;
use serde::{Deserialize, Serialize};

use crate::servers::ServerKind;
use crate::worker;

/// A measured client, which a worker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(clippy::enum_variant_names, reason = "zookeeper-client is a name")]
pub(super) enum ComparedClient {
    Zoolock,
    Floor,
    Raw,
    Same,
    SameAtOnce,
    SameFloor,
    Curator,
    WriteLock,
    ZookeeperClient,
    Kazoo,
    Etcd,
    Redis,
}

/// The program that runs a client.
pub(super) enum Program {
    /// This program, as a worker with this client.
    Rust(String),
    /// `peers/Peers.java`.
    Java(&'static str),
    /// `peers/peers.py`.
    Python,
}

impl ComparedClient {
    /// Returns the name of the client in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            ComparedClient::Zoolock => "zoolock",
            ComparedClient::Floor => "floor",
            ComparedClient::Raw => "create + delete",
            ComparedClient::Same => "zoolock's requests",
            ComparedClient::SameAtOnce => "zoolock's requests, held for no time",
            ComparedClient::SameFloor => "floor of zoolock's requests, held for no time",
            ComparedClient::Curator => "Curator",
            ComparedClient::WriteLock => "WriteLock",
            ComparedClient::ZookeeperClient => "zookeeper-client",
            ComparedClient::Kazoo => "kazoo",
            ComparedClient::Etcd => "etcd's lock",
            ComparedClient::Redis => "SET NX + script",
        }
    }

    pub(super) fn program(self) -> Program {
        let rust = |client: worker::PeerKind| {
            let name = client.to_possible_value().map(|value| value.get_name().to_owned());
            Program::Rust(name.expect("no variant is skipped"))
        };
        match self {
            ComparedClient::Zoolock => rust(worker::PeerKind::Zoolock),
            ComparedClient::Floor => rust(worker::PeerKind::Floor),
            ComparedClient::Raw => rust(worker::PeerKind::Raw),
            ComparedClient::Same => rust(worker::PeerKind::Same),
            ComparedClient::SameAtOnce => rust(worker::PeerKind::SameAtOnce),
            ComparedClient::SameFloor => rust(worker::PeerKind::SameFloor),
            ComparedClient::ZookeeperClient => rust(worker::PeerKind::ZookeeperClient),
            ComparedClient::Etcd => rust(worker::PeerKind::Etcd),
            ComparedClient::Redis => rust(worker::PeerKind::Redis),
            ComparedClient::Curator => Program::Java("curator"),
            ComparedClient::WriteLock => Program::Java("write-lock"),
            ComparedClient::Kazoo => Program::Python,
        }
    }

    /// Returns whether the client is a ZooKeeper lock of another library.
    pub(super) fn is_zookeeper_peer(self) -> bool {
        matches!(
            self,
            ComparedClient::Curator
                | ComparedClient::WriteLock
                | ComparedClient::ZookeeperClient
                | ComparedClient::Kazoo
        )
    }
}

/// A client on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct ClientOnServer {
    pub(super) client: ComparedClient,
    pub(super) server: ServerKind,
}

impl ClientOnServer {
    pub(super) fn name(self) -> String {
        match self.client {
            // For these clients, the name of the client or of the server is enough.
            ComparedClient::Etcd => self.client.name().to_owned(),
            ComparedClient::Redis => self.server.name().to_owned(),
            client => format!("{}, {}", client.name(), self.server.name()),
        }
    }
}
