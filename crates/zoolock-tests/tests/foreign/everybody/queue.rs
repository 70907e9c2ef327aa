//! Queues made node by node, and how the command shows them.

use serde_json::Value;
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};
use zoolock_tests::{Place, ZoolockBinary, tree};

use zoolock_tests::locks::directory;

/// A directory into which anybody's nodes are put, as they would put them.
pub(crate) struct Queue {
    client: Client,
    directory: String,
}

impl Queue {
    pub(crate) async fn new(place: &Place, name: &str) -> Queue {
        let client = tree::connect(&place.addr()).await.expect("a session");
        let queue = Queue { client, directory: directory(place, name) };
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        queue.client.mkdir(&queue.directory, &options).await.expect("made");
        queue
    }

    pub(crate) fn directory(&self) -> &str {
        &self.directory
    }

    /// Creates a node whose number the server gives, and says how it is called.
    pub(crate) async fn join(&self, prefix: &str, data: &[u8]) -> String {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let path = format!("{}/{prefix}", self.directory);
        let (_, number) = self.client.create(&path, data, &options).await.expect("made");
        format!("{prefix}{number}")
    }

    /// Creates a node with just this name.
    pub(crate) async fn make(&self, name: &str, mode: CreateMode, data: &[u8]) {
        let path = format!("{}/{name}", self.directory);
        self.client.create(&path, data, &mode.with_acls(Acls::anyone_all())).await.expect("made");
    }

    pub(crate) async fn data(&self, node: &str) -> Vec<u8> {
        self.client.get_data(&format!("{}/{node}", self.directory)).await.expect("there").0
    }

    /// Lets nobody read the directory, or a node in it. Whoever likes may still queue.
    pub(crate) async fn hide(&self, node: Option<&str>) {
        let path = node.map_or_else(|| self.directory.clone(), |node| format!("{}/{node}", self.directory));
        let others = Permission::WRITE | Permission::CREATE | Permission::DELETE | Permission::ADMIN;
        let unreadable = [Acl::new(others, AuthId::anyone())];
        self.client.set_acl(&path, &unreadable, None).await.expect("there");
    }

    pub(crate) async fn write(&self, data: &[u8]) {
        self.client.set_data(&self.directory, data, None).await.expect("there");
    }
}

/// What a command said, and how it ended.
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) output: String,
    pub(crate) notes: String,
}

/// Runs the command on this server.
pub(crate) async fn zoolock(place: &Place, arguments: &[&str]) -> Said {
    let binary = ZoolockBinary::find().expect("the command has been built");
    let connect = place.connect_string();
    let mut command = binary.command(["--connect", &connect].iter().chain(arguments));
    let output = command.stdin(std::process::Stdio::null()).output().await.expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Said { code: output.status.code(), output: text(&output.stdout), notes: text(&output.stderr) }
}

/// One lock, as `show` says it; `ls` must say the same.
pub(crate) async fn shown(place: &Place, name: &str) -> Value {
    let parsed = |said: Said| -> Value {
        assert_eq!(said.code, Some(0), "{}", said.notes);
        serde_json::from_str(&said.output).expect("JSON")
    };
    let shown = parsed(zoolock(place, &["show", name, "--json"]).await);
    let listed = parsed(zoolock(place, &["ls", "--json"]).await);
    let listed = listed["locks"].as_array().expect("a list");
    let same: Vec<_> = listed.iter().filter(|lock| lock["path"] == shown["path"]).map(comparable).collect();
    assert_eq!(same, [comparable(&shown)], "ls says something else");
    shown
}

/// What two commands say alike: each has its own word for a session, and `ls` names the next in turn alone.
fn comparable(lock: &Value) -> Value {
    let mut lock = lock.clone();
    let waiters = lock["waiters"].as_array().expect("a list");
    assert!(lock["waiting"].as_u64() >= Some(waiters.len() as u64), "{lock}");
    let waiters = waiters.iter().take(1).cloned().collect();
    lock["waiters"] = waiters;
    lock.as_object_mut().expect("an object").remove("schema");
    for part in ["holder", "beside", "waiters"] {
        let entries = match &mut lock[part] {
            Value::Array(entries) => entries.iter_mut().collect(),
            Value::Null => Vec::new(),
            entry => vec![entry],
        };
        for entry in entries {
            if entry["owner_kind"] == "session" {
                entry["owner"] = Value::Null;
            }
        }
    }
    lock
}

/// A part of it, of each of those who hold.
pub(crate) fn holders<'a>(lock: &'a Value, part: &str) -> Vec<&'a Value> {
    let beside = lock["beside"].as_array().expect("a list");
    let holder = Some(&lock["holder"]).filter(|holder| !holder.is_null());
    holder.into_iter().chain(beside).map(|entry| &entry[part]).collect()
}

/// A part of it, of each of those who wait.
pub(crate) fn waiters<'a>(lock: &'a Value, part: &str) -> Vec<&'a Value> {
    lock["waiters"].as_array().expect("a list").iter().map(|entry| &entry[part]).collect()
}
