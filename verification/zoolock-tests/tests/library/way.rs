//! The files that a reader of `Mutex::lock` opens, down to the socket, and how many lines they have. A change that makes the way
//! longer than its limit needs a reason, or a shorter way.

use std::path::{Path, PathBuf};

/// A part of the way.
struct Part {
    name: &'static str,
    folder: &'static str,
    files: &'static [&'static str],
    /// The maximum number of lines, without tests.
    limit: usize,
}

const WAY: [Part; 5] = [
    Part {
        name: "the call",
        folder: "crates/zoolock/src",
        files: &["api/handle.rs", "lock/acquire.rs", "lock/context.rs", "lock/held.rs"],
        limit: 1650,
    },
    Part {
        name: "the session",
        folder: "crates/zoolock/src/session",
        files: &["pool.rs", "mod.rs", "run.rs", "lease.rs", "member.rs"],
        limit: 1000,
    },
    Part {
        name: "requests and replies",
        folder: "crates/zoolock/src",
        files: &[
            "engine/mod.rs",
            "engine/requests.rs",
            "engine/expected.rs",
            "engine/replies.rs",
            "engine/watches.rs",
            "zk/session/mod.rs",
            "zk/session/inbox.rs",
            "zk/session/join.rs",
            "zk/session/requests.rs",
            "zk/session/codes.rs",
        ],
        limit: 2800,
    },
    Part {
        name: "the machine of a plain lock, and the lease",
        folder: "crates/zoolock-core/src",
        files: &[
            "acquisition/mod.rs",
            "acquisition/messages.rs",
            "acquisition/round_trip.rs",
            "acquisition/join.rs",
            "acquisition/position.rs",
            "acquisition/read.rs",
            "acquisition/wait.rs",
            "acquisition/settle.rs",
            "acquisition/hold.rs",
            "acquisition/cleanup.rs",
            "acquisition/conditions.rs",
            "lease.rs",
        ],
        limit: 3250,
    },
    Part {
        name: "the session client",
        folder: "crates/zoolock-client/src",
        files: &[
            "driver/mod.rs",
            "driver/handler.rs",
            "driver/handoff.rs",
            "driver/link.rs",
            "session/mod.rs",
            "session/connection.rs",
            "session/replies.rs",
            "session/types.rs",
        ],
        limit: 2200,
    },
];

/// Maximum number of lines above the session client.
const ABOVE_THE_CLIENT: usize = 8500;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the number of lines of a file, without a module of tests at its end.
fn lines(file: &str) -> usize {
    let path = root().join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let code = text.split("#[cfg(test)]\nmod tests {").next();
    code.map_or(0, |code| code.lines().count())
}

#[test]
fn way_of_a_plain_lock_is_short() {
    let mut above = 0;
    for Part { name, folder, files, limit } in &WAY {
        println!("{name}:");
        let mut sum = 0;
        for file in *files {
            let path = format!("{folder}/{file}");
            println!("{:>6}  {path}", lines(&path));
            sum += lines(&path);
        }
        println!("{sum:>6}  sum, at most {limit}");
        assert!(sum <= *limit, "{name}: {sum} lines");
        above += if *folder == "crates/zoolock-client/src" { 0 } else { sum };
    }
    println!("{above:>6}  above the session client, at most {ABOVE_THE_CLIENT}");
    assert!(above <= ABOVE_THE_CLIENT, "{above} lines above the session client");
}

/// Only the code of an acquisition knows which lock a position belongs to.
#[test]
fn index_of_a_lock_is_rare_in_the_machine() {
    let folder = root().join("crates/zoolock-core/src/acquisition");
    let mut found = 0;
    for entry in std::fs::read_dir(folder).expect("folder exists") {
        let path = entry.expect("entry is readable").path();
        if path.is_file() && path.file_name().is_some_and(|name| name != "tests.rs") {
            let text = std::fs::read_to_string(&path).expect("file is readable");
            found += text.lines().filter(|line| line.contains("lock_index")).count();
        }
    }
    println!("{found} lines with `lock_index`");
    assert!((1..=30).contains(&found), "{found} lines with `lock_index`");
}
