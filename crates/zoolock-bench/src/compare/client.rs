//! The measured clients.

use clap::ValueEnum as _;
use serde::{Deserialize, Serialize};

use crate::servers::Kind;
use crate::worker;

/// A client, run by a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(clippy::enum_variant_names, reason = "zookeeper-client is a name")]
pub(super) enum Client {
    Zoolock,
    Floor,
    Raw,
    Same,
    SameAtOnce,
    Curator,
    WriteLock,
    ZookeeperClient,
    Kazoo,
    Etcd,
    Redis,
}

/// The program that runs a client.
pub(super) enum Program {
    /// This program.
    Rust(String),
    /// `peers/Peers.java`.
    Java(&'static str),
    /// `peers/peers.py`.
    Python,
}

impl Client {
    /// Returns its name in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Client::Zoolock => "zoolock",
            Client::Floor => "floor",
            Client::Raw => "create + delete",
            Client::Same => "zoolock's requests",
            Client::SameAtOnce => "zoolock's requests, held for no time",
            Client::Curator => "Curator",
            Client::WriteLock => "WriteLock",
            Client::ZookeeperClient => "zookeeper-client",
            Client::Kazoo => "kazoo",
            Client::Etcd => "etcd's lock",
            Client::Redis => "SET NX + script",
        }
    }

    pub(super) fn program(self) -> Program {
        let rust = |client: worker::Client| {
            let name = client.to_possible_value().map(|value| value.get_name().to_owned());
            Program::Rust(name.expect("no variant is skipped"))
        };
        match self {
            Client::Zoolock => rust(worker::Client::Zoolock),
            Client::Floor => rust(worker::Client::Floor),
            Client::Raw => rust(worker::Client::Raw),
            Client::Same => rust(worker::Client::Same),
            Client::SameAtOnce => rust(worker::Client::SameAtOnce),
            Client::ZookeeperClient => rust(worker::Client::ZookeeperClient),
            Client::Etcd => rust(worker::Client::Etcd),
            Client::Redis => rust(worker::Client::Redis),
            Client::Curator => Program::Java("curator"),
            Client::WriteLock => Program::Java("write-lock"),
            Client::Kazoo => Program::Python,
        }
    }

    /// Returns whether it is a ZooKeeper lock of another library.
    pub(super) fn is_zookeeper_peer(self) -> bool {
        matches!(self, Client::Curator | Client::WriteLock | Client::ZookeeperClient | Client::Kazoo)
    }
}

/// A client on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct ClientOnServer {
    pub(super) client: Client,
    pub(super) server: Kind,
}

impl ClientOnServer {
    pub(super) fn name(self) -> String {
        match self.client {
            // Each of them has one kind of server.
            Client::Etcd => self.client.name().to_owned(),
            Client::Redis => self.server.name().to_owned(),
            client => format!("{}, {}", client.name(), self.server.name()),
        }
    }
}
