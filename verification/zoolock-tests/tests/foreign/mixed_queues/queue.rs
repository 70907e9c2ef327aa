//! Queues that a test creates znode by znode, and their display by the command.

use serde_json::Value;
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};
use zoolock_tests::locks::directory;
use zoolock_tests::{Place, ZoolockBinary, tree};

/// The unique part of a znode name of kazoo.
pub(crate) const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";

/// Returns the znode name for a pattern. `UUID` stands for the unique part of a Curator name, `HEX` for that of kazoo.
pub(crate) fn name_of(pattern: &str) -> String {
    pattern.replace("UUID", "_c_3f2504e0-4f89-11d3-9a0c-0305e82c3301").replace("HEX", HEX)
}

/// A lock directory, in which the test creates the znodes of any library.
pub(crate) struct Queue {
    client: Client,
    directory: String,
}

impl Queue {
    /// Creates the directory, with a new session.
    pub(crate) async fn new(place: &Place, name: &str) -> Queue {
        let client = tree::connect(&place.addr()).await.expect("connected");
        Queue::of(&client, place, name).await
    }

    /// Creates the directory, with an existing session.
    pub(crate) async fn of(client: &Client, place: &Place, name: &str) -> Queue {
        let queue = Queue { client: client.clone(), directory: directory(place, name) };
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        queue.client.mkdir(&queue.directory, &options).await.expect("created");
        queue
    }

    pub(crate) fn directory(&self) -> &str {
        &self.directory
    }

    /// Creates an ephemeral sequential znode, for a pattern of [`name_of`], and returns its name.
    pub(crate) async fn join(&self, prefix: &str, data: &[u8]) -> String {
        let prefix = name_of(prefix);
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let path = format!("{}/{prefix}", self.directory);
        let (_, number) = self.client.create(&path, data, &options).await.expect("created");
        format!("{prefix}{number}")
    }

    /// Creates a znode with this name.
    pub(crate) async fn create(&self, name: &str, mode: CreateMode, data: &[u8]) {
        let path = format!("{}/{name}", self.directory);
        self.client.create(&path, data, &mode.with_acls(Acls::anyone_all())).await.expect("created");
    }

    /// Returns the data of a znode in the directory.
    pub(crate) async fn data(&self, name: &str) -> Vec<u8> {
        self.client.get_data(&format!("{}/{name}", self.directory)).await.expect("the znode exists").0
    }

    /// Makes the directory, or a znode in it, unreadable for all clients. Clients can still queue.
    pub(crate) async fn hide(&self, name: Option<&str>) {
        let path = name.map_or_else(|| self.directory.clone(), |name| format!("{}/{name}", self.directory));
        let others = Permission::WRITE | Permission::CREATE | Permission::DELETE | Permission::ADMIN;
        let unreadable = [Acl::new(others, AuthId::anyone())];
        self.client.set_acl(&path, &unreadable, None).await.expect("the znode exists");
    }

    /// Writes the data of the directory.
    pub(crate) async fn write(&self, data: &[u8]) {
        self.client.set_data(&self.directory, data, None).await.expect("the directory exists");
    }
}

/// The output and the exit code of a command.
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// Asserts the exit code, and that the standard error contains all `words`.
    pub(crate) fn assert(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        for words in words {
            assert!(self.stderr.contains(words), "no {words:?} in {}", self.stderr);
        }
    }

    /// Asserts that the command succeeded, and parses its standard output as JSON.
    pub(crate) fn json(&self) -> Value {
        self.json_with_code(0)
    }

    /// Asserts the exit code, and parses the standard output as JSON.
    pub(crate) fn json_with_code(&self, code: i32) -> Value {
        self.assert(code, &[]);
        serde_json::from_str(&self.stdout).expect("the output is JSON")
    }

    /// Returns the first word of each row below the heading, and whether the row has this mark.
    pub(crate) fn rows(&self, mark: char) -> Vec<(&str, bool)> {
        let rows = self.stdout.lines().skip(1);
        rows.map(|row| (row.split(' ').next().unwrap_or_default(), row.contains(&format!(" {mark} "))))
            .collect()
    }
}

/// Runs the command on the server of this test.
pub(crate) async fn zoolock(place: &Place, arguments: &[&str]) -> Output {
    let binary = ZoolockBinary::find().expect("the command has been built");
    let connect = place.connect_string();
    let mut command = binary.command(["--connect", &connect].iter().chain(arguments));
    let output = command.stdin(std::process::Stdio::null()).output().await.expect("the command starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Output { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// Returns the JSON of `show` for a lock. Asserts that `ls` shows the same.
pub(crate) async fn shown(place: &Place, name: &str) -> Value {
    let shown = zoolock(place, &["show", name, "--json"]).await.json();
    let listed = zoolock(place, &["ls", "--json"]).await.json();
    let listed = listed["locks"].as_array().expect("locks are a list");
    let same: Vec<_> = listed.iter().filter(|lock| lock["path"] == shown["path"]).map(comparable).collect();
    assert_eq!(same, [comparable(&shown)], "ls differs from show");
    shown
}

/// Removes the parts that differ between `show` and `ls`. Each command invents its own name for an
/// owner that is a session. `ls` has only the first waiter, no history and no slots.
fn comparable(lock: &Value) -> Value {
    let mut lock = lock.clone();
    let waiters = lock["waiters"].as_array().expect("waiters are a list");
    assert!(lock["waiting"].as_u64() >= Some(waiters.len() as u64), "{lock}");
    let waiters = waiters.iter().take(1).cloned().collect();
    lock["waiters"] = waiters;
    for field in ["schema", "history", "slots"] {
        lock.as_object_mut().expect("a lock is an object").remove(field);
    }
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

/// Returns `field` of each holder.
pub(crate) fn holders<'a>(lock: &'a Value, field: &str) -> Vec<&'a Value> {
    let beside = lock["beside"].as_array().expect("holders are a list");
    let holder = Some(&lock["holder"]).filter(|holder| !holder.is_null());
    holder.into_iter().chain(beside).map(|entry| &entry[field]).collect()
}

/// Returns `field` of each waiter.
pub(crate) fn waiters<'a>(lock: &'a Value, field: &str) -> Vec<&'a Value> {
    lock["waiters"].as_array().expect("waiters are a list").iter().map(|entry| &entry[field]).collect()
}

/// Returns `field` of each contender, in the order of the queue.
pub(crate) fn contenders<'a>(lock: &'a Value, field: &str) -> Vec<&'a Value> {
    [holders(lock, field), waiters(lock, field)].concat()
}

/// Returns the text in `field` of the first holder.
pub(crate) fn of_holder<'a>(lock: &'a Value, field: &str) -> &'a str {
    holders(lock, field)[0].as_str().expect("the field is text")
}
