//! Bad input: the right code, one line that names it, nothing left behind.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use crate::common::{Done, Sandbox};

fn refused(done: &Done, code: i32, names: &str) {
    assert_eq!(done.code, code, "{done:?}");
    assert_eq!(done.stdout, "", "{done:?}");
    assert!(done.stderr.starts_with("zoolock: ") && done.stderr.contains(names), "{names}: {done:?}");
}

#[test]
fn usage_errors_end_with_64_and_connect_to_nothing() {
    let sandbox = Sandbox::new();
    for (args, names) in [
        (&["run", "", "--", "true"][..], "\"\""),
        (&["run", "..", "--", "true"], ".."),
        (&["run", "a/../b", "--", "true"], "a/../b"),
        (&["hold", "a//b"], "a//b"),
        (&["show", "a/"], "a/"),
        (&["ls", ".."], ".."),
        (&["watch", ".."], ".."),
        (&["why", "a//b"], "a//b"),
        (&["deadlocks", ".."], ".."),
        (&["run", "--owner", "two words", "a", "--", "true"], "two words"),
        (&["run", "--permits", "3", "a", "b", "--", "true"], "a b"),
        (&["run", "--take", "3", "a", "--", "true"], "--permits"),
        (&["run", "--shared", "--take", "3", "a", "--", "true"], "--take"),
        (&["run", "--shared", "--write", "a", "--", "true"], "--write"),
        (&["break", "a"], "--token"),
        (&["break", "a", "--token", "17"], "17"),
        (&["run", "a"], "CMD"),
        (&["run", "--", "true"], "NAME"),
        (&["run", "--timeout", "soon", "a", "--", "true"], "soon"),
        (&["run", "--try", "--timeout", "1s", "a", "--", "true"], "--timeout"),
        (&["run", "--grace", "20s", "a", "--", "true"], "--grace 20s"),
        (&["run", "--session-timeout", "1s", "a", "--", "true"], "--session-timeout 1s"),
        (&["run", "--on-busy-exit", "300", "a", "--", "true"], "300"),
        (&["ls", "--connect", "h:port"], "port"),
        (&["ls", "--connect", "h:0"], "\"0\""),
        (&["ls", "--connect", ""], "empty"),
        (&["ls", "--connect", "h:1,,i:1"], "h:1,,i:1"),
        (&["ls", "--connect", "h:1", "--auth", "digest:me:hunter2"], "@FILE"),
        (&["ls", "--auth", "digest:@/etc/passwd"], "--connect"),
        (&["ls", "--root", "no/slash"], "no/slash"),
        (&["serve"], "--listen"),
        (&["serve", "--listen", "nonsense"], "nonsense"),
        (&["serve", "--status", "--stop"], "--stop"),
        (&["serve", "--listen", "localhost"], "no port"),
        (&["serve", "--listen", "2181"], "no port"),
        (&["serve", "--listen", ":2181"], "no host"),
        (&["serve", "--listen", "::1:2181"], "[::1]:2181"),
        (&["serve", "--listen", "127.0.0.1:99999"], "99999"),
        (&["serve", "--listen", "127.0.0.1:0", "--connect", "h:1"], "--connect"),
        (&["serve", "--status", "--connect", "h:1"], "--connect"),
        (&["serve", "--listen", "127.0.0.1:0", "--auth", "digest:@f"], "--users"),
        (&["serve", "--listen", "127.0.0.1:0", "--cacert", "ca"], "--tls-client-ca"),
        (&["serve", "--listen", "127.0.0.1:0", "--cert", "c"], "--tls-cert"),
        (&["serve", "--listen", "127.0.0.1:0", "--key", "k"], "--tls-key"),
        (&["serve", "--listen", "127.0.0.1:0", "--tick", "soon"], "--tick"),
        (&["serve", "--listen", "127.0.0.1:0", "--tick", "0s"], "the tick is"),
        (&["serve", "--listen", "127.0.0.1:0", "--max-session-timeout", "5"], "--max-session-timeout"),
        (&["serve", "--listen", "127.0.0.1:0", "--min-session-timeout", "x"], "--min-session-timeout"),
        (&["serve", "--listen", "127.0.0.1:0", "--max-session-timeout", "3s"], "the shortest one, 4s"),
        (&["serve", "--local", "--idle", "0s"], "ZOOLOCK_LOCAL_IDLE"),
        (&["run", "--session-timeout", "2h", "a", "--", "true"], "--session-timeout 2h"),
        (&["serve", "--listen", "127.0.0.1:0", "--words", "ruok,frob"], "frob"),
        (&["serve", "--listen", "127.0.0.1:0", "--metrics", "9090"], "--metrics"),
        (&["serve", "--listen", "127.0.0.1:0", "--require-auth"], "--users"),
        (&["serve", "--listen", "127.0.0.1:0", "--users", "/no/such/file"], "/no/such/file"),
        (&["serve", "--listen", "127.0.0.1:0", "--tls-cert", "c.pem"], "--tls-listen"),
        (&["serve", "--tls-listen", "127.0.0.1:0"], "--tls-cert"),
        (
            &["serve", "--tls-listen", "127.0.0.1:0", "--tls-cert", "c", "--tls-key", "k"],
            "c as the certificate",
        ),
        (&["serve", "--listen", "127.0.0.1:0", "--tls-client-ca", "ca"], "--tls-listen"),
        (&["serve", "--listen", "127.0.0.1:0", "--max-connections", "0"], "--max-connections"),
        (&["serve", "--listen", "127.0.0.1:0", "--max-connections", "99999999"], "99999999"),
        (&["serve", "--stop", "--require-auth"], "--require-auth"),
        (&["frobnicate"], "frobnicate"),
        (&["ls", "--frobnicate"], "--frobnicate"),
        (&[], "Usage"),
    ] {
        let done = sandbox.output(args);
        if args.is_empty() {
            assert_eq!(done.code, 64, "{done:?}");
        } else {
            refused(&done, 64, names);
        }
        assert!(!done.stderr.contains("hunter2"), "{done:?}");
    }
    assert!(!sandbox.state().exists(), "nothing is left behind");
}

#[test]
fn help_and_version_are_answers() {
    let sandbox = Sandbox::new();
    for args in [&["--help"][..], &["run", "--help"], &["--version"], &["help", "serve"]] {
        let done = sandbox.output(args);
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
        assert!(!done.stdout.is_empty());
    }
}

#[test]
fn an_empty_variable_is_as_none_and_none_is_shown_that_may_hold_a_password() {
    let sandbox = Sandbox::new();
    let mut reader = sandbox.zoolock(["ls", "--connect", "h:1", "--reader", "x509:CN=ops"]);
    let done = Done::from(reader.env("ZOOLOCK_AUTH", "").output().expect("the command starts"));
    refused(&done, 64, "--reader needs --auth");
    let mut help = sandbox.zoolock(["ls", "--help"]);
    let done =
        Done::from(help.env("ZOOLOCK_AUTH", "digest:me:hunter2").output().expect("the command starts"));
    assert!(done.code == 0 && done.stdout.contains("ZOOLOCK_AUTH"), "{done:?}");
    assert!(!done.stdout.contains("hunter2"), "{done:?}");
}

#[test]
fn what_cannot_be_reached_ends_with_69_and_is_named() {
    let sandbox = Sandbox::new();
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").to_string();
    for hosts in ["no-such-host.invalid:2181", closed.as_str()] {
        let done = sandbox.output(&["ls", "--connect-timeout", "500ms", "--connect", hosts]);
        refused(&done, 69, hosts);
        let done = sandbox.output(&[
            "run",
            "--connect-timeout",
            "500ms",
            "--connect",
            hosts,
            "x",
            "--",
            "touch",
            "ran",
        ]);
        refused(&done, 69, hosts);
    }
    assert!(!sandbox.path("ran").exists());
}

#[test]
fn a_server_that_speaks_something_else_ends_with_69() {
    let sandbox = Sandbox::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let hosts = listener.local_addr().expect("bound").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let _ = std::io::Write::write_all(&mut stream, b"SSH-2.0-OpenSSH_9.7\r\n");
                let _ = stream.read_to_end(&mut Vec::new());
            });
        }
    });
    let done = sandbox.output(&["ls", "--connect-timeout", "1s", "--connect", &hosts]);
    refused(&done, 69, &hosts);
}

#[test]
fn a_file_of_credentials_is_yours_alone() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("credentials");
    std::fs::write(&file, "me:secret\n").expect("writable");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).expect("ours");
    let auth = format!("digest:@{}", file.display());
    refused(&sandbox.output(&["ls", "--connect", "127.0.0.1:1", "--auth", &auth]), 77, "chmod 600");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("ours");
    std::fs::write(&file, "no colon").expect("writable");
    refused(&sandbox.output(&["ls", "--connect", "127.0.0.1:1", "--auth", &auth]), 64, "USER:PASSWORD");
    std::fs::write(&file, format!("me:{}", "x".repeat(5000))).expect("writable");
    refused(&sandbox.output(&["ls", "--connect", "127.0.0.1:1", "--auth", &auth]), 64, "more than 4096");
    refused(
        &sandbox.output(&["ls", "--connect", "h:1", "--auth", "digest:@/no/such/file"]),
        64,
        "/no/such/file",
    );
}

#[test]
fn a_private_key_is_not_for_everybody() {
    let sandbox = Sandbox::new();
    let key = sandbox.path("me.key");
    std::fs::write(&key, "hunter2\n").expect("writable");
    let path = key.display().to_string();
    let args = ["ls", "--connect", "h:1", "--cacert", "ca.pem", "--cert", "me.pem", "--key", &path];
    for (mode, code, words) in [(0o644, 77, "chmod o= "), (0o640, 64, "ca.pem"), (0o600, 64, "ca.pem")] {
        std::fs::set_permissions(&key, PermissionsExt::from_mode(mode)).expect("ours");
        let done = sandbox.output(&args);
        assert!(!done.stderr.contains("hunter2"), "{done:?}");
        refused(&done, code, words);
    }
}

#[test]
fn files_of_accounts_are_yours_alone_and_hold_accounts() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("accounts");
    let path = file.display().to_string();
    for flag in ["--users", "--super-digest-file"] {
        let args = ["serve", "--listen", "127.0.0.1:0", flag, &path];
        std::fs::write(&file, "me:hunter2\n").expect("writable");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).expect("ours");
        refused(&sandbox.output(&args), 77, "chmod 600");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("ours");
        let done = sandbox.output(&args);
        refused(&done, 64, "USER:HASH");
        assert!(!done.stderr.contains("hunter2"), "{done:?}");
        std::fs::write(&file, "# none\n").expect("writable");
        refused(&sandbox.output(&args), 64, &path);
    }
}

#[test]
fn a_port_in_use_ends_with_69() {
    let sandbox = Sandbox::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    refused(&sandbox.output(&["serve", "--listen", &address]), 69, &address);
}
