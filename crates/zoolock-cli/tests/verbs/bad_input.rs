//! Bad input: zoolock exits with the right code, names the input in its message, and leaves nothing behind.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use crate::common::{CommandOutput, Sandbox, output, set_mode, start_server};

/// Asserts that the command failed with `code`, and that its message contains `named`.
fn assert_refused(done: &CommandOutput, code: i32, named: &str) {
    assert_eq!(done.code, code, "{done:?}");
    assert_eq!(done.stdout, "", "{done:?}");
    assert!(done.stderr.starts_with("zoolock: ") && done.stderr.contains(named), "{named}: {done:?}");
}

#[test]
fn usage_errors_exit_64_without_connecting() {
    let sandbox = Sandbox::new();
    for (args, named) in [
        (&["run", "", "--", "true"][..], "\"\""),
        (&["run", "..", "--", "true"], ".."),
        (&["run", "a/../b", "--", "true"], "a/../b"),
        (&["hold", "a//b"], "a//b"),
        (&["hold", "a", "--", "echo", "b"], "zoolock run NAME -- CMD"),
        (&["hold", "--", "sleep", "5"], "zoolock run NAME -- CMD"),
        (&["hold"], "NAME"),
        (&["ls", "--connect", "local", "--reader", "world:anyone"], "--reader"),
        (&["show", "a/"], "a/"),
        (&["ls", ".."], ".."),
        (&["watch", ".."], ".."),
        (&["why", "a//b"], "a//b"),
        (&["deadlocks", ".."], ".."),
        (&["ZOOLOCK_OWNER=two words", "run", "a", "--", "true"], "two words"),
        (&["run", "--permits", "3", "a", "b", "--", "true"], "a b"),
        (&["run", "--permits", "4/3", "a", "--", "true"], "--permits 4/3"),
        (&["run", "--naming", "native,w", "a", "--", "true"], "rw and kazoo-pattern"),
        (&["break", "a", "--token", "17"], "17"),
        (&["run", "a"], "zoolock run a -- CMD"),
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
            "--tls-cert: cannot read c",
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
            assert_refused(&done, 64, named);
        }
        assert!(!done.stderr.contains("hunter2"), "{done:?}");
    }
    assert!(!sandbox.state().exists(), "no state directory is created");
}

#[test]
fn help_and_version_exit_zero() {
    let sandbox = Sandbox::new();
    for args in [&["--help"][..], &["run", "--help"], &["--version"], &["help", "serve"]] {
        let done = sandbox.output(args);
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
        assert!(!done.stdout.is_empty());
    }
}

#[test]
fn empty_variable_is_ignored_and_passwords_are_hidden() {
    let sandbox = Sandbox::new();
    let mut reader = sandbox.zoolock(["ls", "--connect", "h:1", "--reader", "x509:CN=ops"]);
    let done = CommandOutput::from(reader.env("ZOOLOCK_AUTH", "").output().expect("the command starts"));
    assert_refused(&done, 64, "reader x509:CN=ops: has no effect without credentials");
    let mut help = sandbox.zoolock(["ls", "--help"]);
    let done = CommandOutput::from(
        help.env("ZOOLOCK_AUTH", "digest:me:hunter2").output().expect("the command starts"),
    );
    assert!(done.code == 0 && done.stdout.contains("ZOOLOCK_AUTH"), "{done:?}");
    assert!(!done.stdout.contains("hunter2"), "{done:?}");
}

#[test]
fn unreachable_server_exits_69_and_is_named() {
    let sandbox = Sandbox::new();
    let closed = TcpListener::bind("127.0.0.1:0")
        .expect("port bound")
        .local_addr()
        .expect("address of the listener")
        .to_string();
    for hosts in ["no-such-host.invalid:2181", closed.as_str()] {
        let done = sandbox.output(&["ls", "ZOOLOCK_CONNECT_TIMEOUT=500ms", "--connect", hosts]);
        assert_refused(&done, 69, hosts);
        for flags in [&["ZOOLOCK_CONNECT_TIMEOUT=500ms"][..], &["--timeout", "500ms"]] {
            let command = [&["run"][..], flags, &["--connect", hosts, "x", "--", "touch", "ran"]].concat();
            let done = sandbox.output(&command);
            assert_refused(&done, 69, hosts);
            // Each setting limits the attempt to 500 ms, also without the other.
            assert!(done.stderr.contains("within 500ms"), "{done:?}");
            let cause = if hosts == closed { "refused" } else { "does not resolve" };
            assert!(done.stderr.contains(cause), "{done:?}");
        }
    }
    assert!(!sandbox.path("ran").exists());
}

#[test]
fn non_zookeeper_server_exits_69() {
    let sandbox = Sandbox::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("port bound");
    let hosts = listener.local_addr().expect("address of the listener").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let _ = std::io::Write::write_all(&mut stream, b"SSH-2.0-OpenSSH_9.7\r\n");
                let _ = stream.read_to_end(&mut Vec::new());
            });
        }
    });
    let done = sandbox.output(&["ls", "ZOOLOCK_CONNECT_TIMEOUT=1s", "--connect", &hosts]);
    assert_refused(&done, 69, &hosts);
}

#[test]
fn server_that_closes_connections_is_reported_as_such() {
    let sandbox = Sandbox::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("port bound");
    let hosts = listener.local_addr().expect("address of the listener").to_string();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let done =
        sandbox.output(&["run", "ZOOLOCK_CONNECT_TIMEOUT=500ms", "--connect", &hosts, "x", "--", "true"]);
    assert_refused(&done, 69, "closes it without an answer");
    assert!(done.stderr.contains("server's log") && !done.stderr.contains("check the address"), "{done:?}");
}

#[test]
fn credentials_file_must_be_private() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("credentials");
    std::fs::write(&file, "me:secret\n").expect("file written");
    set_mode(&file, 0o644);
    let auth = format!("digest:@{}", file.display());
    assert_refused(&sandbox.output(&["ls", "--connect", "127.0.0.1:1", "--auth", &auth]), 77, "chmod 600");
    set_mode(&file, 0o600);
    std::fs::write(&file, "no colon").expect("file written");
    assert_refused(
        &sandbox.output(&["ls", "--connect", "127.0.0.1:1", "--auth", &auth]),
        64,
        "USER:PASSWORD",
    );
    std::fs::write(&file, format!("me:{}", "x".repeat(5000))).expect("file written");
    assert_refused(
        &sandbox.output(&["ls", "--connect", "127.0.0.1:1", "--auth", &auth]),
        64,
        "more than 4096",
    );
    assert_refused(
        &sandbox.output(&["ls", "--connect", "h:1", "--auth", "digest:@/no/such/file"]),
        64,
        "/no/such/file",
    );
}

#[test]
fn secret_must_be_in_a_regular_file() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let sandbox = Sandbox::new();
    let path = |name: &str| sandbox.path(name).display().to_string();
    let (pipe, socket, directory) = (path("pipe"), path("socket"), path(""));
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).expect("pipe created");
    let _socket = UnixListener::bind(&socket).expect("socket bound");
    for (file, kind) in
        [(pipe, "a pipe"), (socket, "a socket"), (directory, "a directory"), ("/dev/zero".into(), "a device")]
    {
        let (auth, file) = (format!("digest:@{file}"), file.as_str());
        let serve = |flags: &[&'static str]| [&["serve", "--listen", "127.0.0.1:0"], flags].concat();
        for args in [
            vec!["ls", "--connect", "h:1", "--auth", &auth],
            vec!["ls", "--connect", "h:1", "--cacert", file],
            vec!["ls", "--connect", "h:1", "--cacert", "ca.pem", "--cert", "me.pem", "--key", file],
            [serve(&["--users"]), vec![file]].concat(),
            [serve(&["--super-digest-file"]), vec![file]].concat(),
            [serve(&["--tls-listen", "127.0.0.1:0", "--tls-key", "k", "--tls-cert"]), vec![file]].concat(),
        ] {
            let done = sandbox.output(&args);
            assert_refused(&done, 64, file);
            assert!(done.stderr.contains(&format!("it is {kind}; name a regular file")), "{done:?}");
        }
    }
}

#[test]
fn private_key_must_not_be_world_readable() {
    let sandbox = Sandbox::new();
    let key = sandbox.path("me.key");
    std::fs::write(&key, "hunter2\n").expect("file written");
    let path = key.display().to_string();
    let args = ["ls", "--connect", "h:1", "--cacert", "ca.pem", "--cert", "me.pem", "--key", &path];
    for (mode, code, named) in [(0o644, 77, "chmod o= "), (0o640, 64, "ca.pem"), (0o600, 64, "ca.pem")] {
        set_mode(&key, mode);
        let done = sandbox.output(&args);
        assert!(!done.stderr.contains("hunter2"), "{done:?}");
        assert_refused(&done, code, named);
    }
}

/// A certificate of X.509 version 1, its key, and the same key with a passphrase.
const VERSION_1: [&str; 3] = [
    "-----BEGIN CERTIFICATE-----\n\
     MIIBJDCBywIUPXNhBI6lAP8S3QnDjoNGrBztREkwCgYIKoZIzj0EAwIwFDESMBAG\n\
     A1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyOTEyMDk1M1oYDzIxMjYxMTA1MTIwOTUz\n\
     WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC\n\
     AAT0e415gNVMrnJ7Q+TE3rf4pmQ5iekpYjCY+1qdBf5Kc21ktBREjt2AcQehPPNW\n\
     D5L0f93eDOFqxXktc4nWwtf/MAoGCCqGSM49BAMCA0gAMEUCIQCeli843pX/JI77\n\
     PZvX7k++7MSQz5SIFtW2tt3g8bywvQIgOun4gx7y5AN9vH8VaVWPWYWhOAzi3/76\n\
     nezz4SuIXks=\n\
     -----END CERTIFICATE-----\n",
    "-----BEGIN PRIVATE KEY-----\n\
     MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgMh/XnqcAnNch7F2K\n\
     5G1Nyks1Tpbn/Lfzx/leA0nQOJuhRANCAAT0e415gNVMrnJ7Q+TE3rf4pmQ5iekp\n\
     YjCY+1qdBf5Kc21ktBREjt2AcQehPPNWD5L0f93eDOFqxXktc4nWwtf/\n\
     -----END PRIVATE KEY-----\n",
    "-----BEGIN ENCRYPTED PRIVATE KEY-----\n\
     MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAjHMFxHl4ayyQICCAAw\n\
     DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEMF3nZ/6LtHTBDMfaI3JwNcEgZCh\n\
     Z/vvGcBVSw3kqamiY0UjBllUsW96ZaqVAOmFQD1SOj2quFxRwTVOmvBWQeKM2+wW\n\
     PU8ermhVvP7mXhlmPmmkaVaDYJPvX8VVKDoTRIaTShziz2NPWsf/mK4nQWWlJS/0\n\
     22yjuJd77Y1DbrgKMJaenLNfpnfAYCWuiw+m277qc2y17vI8P3YsLgpWH5jNwrw=\n\
     -----END ENCRYPTED PRIVATE KEY-----\n",
];

#[test]
fn old_certificate_and_encrypted_key_are_named() {
    let sandbox = Sandbox::new();
    let [certificate, key, encrypted] = ["certificate", "key", "encrypted"];
    for (name, text) in [certificate, key, encrypted].iter().zip(VERSION_1) {
        sandbox.write_private(name, text);
    }
    for (key, named) in [(key, "version 1"), (encrypted, "encrypted")] {
        let client = ["ls", "--connect", "h:1", "--cacert", certificate, "--cert", certificate, "--key", key];
        let server = ["serve", "--tls-listen", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key];
        for args in [&client[..], &server] {
            let done = sandbox.output(args);
            assert!(done.code == 64 && done.stderr.contains(named), "{done:?}");
            assert!(!done.stderr.contains("belong to"), "{done:?}");
        }
    }
}

#[test]
fn credentials_file_may_belong_to_own_group() {
    let sandbox = Sandbox::new();
    let path = sandbox.write_private("credentials", "me:secret\n");
    let code = |group, mode| {
        std::os::unix::fs::chown(&path, None, Some(group)).ok()?;
        set_mode(&path, mode);
        let auth = format!("digest:@{path}");
        let mut command = sandbox.zoolock(["ls", "--connect", "127.0.0.1:1", "--auth", &auth]);
        Some(output(command.env("ZOOLOCK_CONNECT_TIMEOUT", "1ns")).code)
    };
    if rustix::process::geteuid().is_root() {
        assert_eq!([code(0, 0o440), code(0, 0o444), code(70_000, 0o440)], [Some(69), Some(77), Some(77)]);
    }
}

#[test]
fn longest_connect_timeout_is_accepted() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let longest = format!("{}s", i64::MAX);
    for args in [&["ls"][..], &["run", "x", "--", "true"], &["doctor"]] {
        let mut command = sandbox.zoolock([&["--connect", &*address][..], args].concat());
        let done = output(command.env("ZOOLOCK_CONNECT_TIMEOUT", &longest));
        assert_eq!(done.code, 0, "{done:?}");
    }
}

#[test]
fn cause_of_missing_null_device_is_named() {
    let sandbox = Sandbox::new();
    let script = "mount -t tmpfs tmpfs /dev && exec \"$0\" run x -- true";
    if let Some(done) = sandbox.in_mount_namespace(script) {
        assert!(done.code == 69 && done.stderr.contains("/dev/null is missing"), "{done:?}");
    }
}

#[test]
fn accounts_file_must_be_private_and_valid() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("accounts");
    let path = file.display().to_string();
    for flag in ["--users", "--super-digest-file"] {
        let args = ["serve", "--listen", "127.0.0.1:0", flag, &path];
        std::fs::write(&file, "me:hunter2\n").expect("file written");
        set_mode(&file, 0o644);
        assert_refused(&sandbox.output(&args), 77, "chmod 600");
        set_mode(&file, 0o600);
        let done = sandbox.output(&args);
        assert_refused(&done, 64, "USER:HASH");
        assert!(!done.stderr.contains("hunter2"), "{done:?}");
        std::fs::write(&file, "# none\n").expect("file written");
        assert_refused(&sandbox.output(&args), 64, &path);
    }
}

#[test]
fn port_in_use_exits_69() {
    let sandbox = Sandbox::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("port bound");
    let address = taken.local_addr().expect("address of the listener").to_string();
    assert_refused(&sandbox.output(&["serve", "--listen", &address]), 69, &address);
}
