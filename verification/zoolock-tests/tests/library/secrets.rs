//! Passwords and keys appear in no output, log or process argument.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::timeout;
use tracing_subscriber::filter::LevelFilter;
use zoolock::{Builder, Tls};
use zoolock_tests::locks::{lock_and_release, settings};
use zoolock_tests::{Authority, ServerOptions, ZoolockBinary, on_both_servers};

const PASSWORD: &str = "correct-horse-battery";
const PATIENCE: Duration = Duration::from_secs(60);

/// Asserts that `text` does not contain the password, neither as text nor as bytes printed by
/// `Debug`.
fn assert_absent(place: &str, text: &str) {
    let bytes = format!("{:?}", PASSWORD.as_bytes());
    let bytes = bytes.trim_matches(['[', ']']);
    assert!(!text.contains(PASSWORD) && !text.contains(bytes), "{place} has the password: {text}");
}

/// The captured log of this process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("task does not panic").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Starts the log of this process. Under nextest, each test has a process of its own.
    fn begin() -> Self {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE);
        // Under `cargo test`, an earlier test of this process may have installed a subscriber.
        let _ = subscriber.with_writer(move || writer.clone()).try_init();
        log
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("task does not panic")).into_owned()
    }
}

fn secret(builder: Builder) -> Builder {
    builder.auth("digest", format!("jobs:{PASSWORD}"))
}

on_both_servers!(private library_shows_no_password, |place| async move {
    let log = Log::begin();
    let builder = secret(settings());
    assert_absent("a builder", &format!("{builder:?} {builder:#?}"));
    let zl = builder.connect(&place.connect_string()).await.expect("session starts");
    let guard = zl.mutex("nightly").lock().await.expect("lock acquired");
    assert_absent("a client", &format!("{zl:?} {:?} {guard:?}", zl.mutex("nightly")));
    // A new connection sends the credentials again.
    place.server().restart().await.expect("server restarts");
    guard.release().await.expect("release succeeds");
    let data = zl.admin().snapshot("nightly").await.expect("read succeeds");
    assert_absent("a snapshot", &format!("{data:?}"));
    zl.close().await;
    let text = log.text();
    assert!(text.contains("TRACE") || text.contains("DEBUG"), "nothing was logged");
    assert_absent("the log", &text);
});

on_both_servers!(
    private(ServerOptions { tls: Some(Arc::new(Authority::new())), ..ServerOptions::default() })
    library_shows_no_sasl_password_or_private_key,
    |place| async move {
        let log = Log::begin();
        let authority = place.authority();
        let signed = authority.client("jobs");
        let [ca, certificate, key] = [&authority.ca(), &signed.certificate, &signed.key]
            .map(|path| std::fs::read_to_string(path).expect("file is readable"));
        // The part of the file that is unique to this key.
        let inside: String = key.lines().filter(|line| !line.starts_with("-----")).collect();
        let inside = &inside[48..80];
        let tls = Tls::with_ca(ca).identity(certificate, key.as_str());
        assert!(!format!("{tls:?} {tls:#?}").contains(inside));
        let builder = settings().tls(tls).connect_timeout(Duration::from_secs(2));
        // Neither server has SASL users here, so the connection fails.
        let sasl = builder.clone().sasl_digest_md5("jobs", PASSWORD);
        assert_absent("a builder", &format!("{sasl:?} {sasl:#?}"));
        let refused = timeout(PATIENCE, sasl.connect(&place.server().secure_addr())).await.expect("finishes in time");
        assert_absent("an error", &format!("{:?}", refused.expect_err("server does not know the user")));
        let zl = builder.connect(&place.server().secure_addr()).await.expect("session starts");
        lock_and_release(&zl.mutex("nightly")).await;
        assert!(!format!("{zl:?}").contains(inside));
        zl.close().await;
        let text = log.text();
        assert!(text.contains("TRACE") || text.contains("DEBUG"), "nothing was logged");
        assert_absent("the log", &text);
        assert!(!text.contains(inside), "the log has the key");
    }
);

on_both_servers!(child_reads_the_standard_input, |place| async move {
    let zoolock = ZoolockBinary::find().expect("zoolock binary is built");
    // This is not `PASSWORD`, because `command_shows_no_password` searches the arguments of all
    // processes for `PASSWORD`.
    let source = "digest:command:cat >&2; echo jobs:not-that-one";
    let mut command = zoolock.command(["--auth", source, "run", "nightly", "--", "cat"]);
    command.env("ZOOLOCK_CONNECT", place.connect_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("command starts");
    let mut input = child.stdin.take().expect("standard input is a pipe");
    tokio::io::AsyncWriteExt::write_all(&mut input, b"for the child\n").await.expect("child reads its input");
    drop(input);
    let done =
        timeout(PATIENCE, child.wait_with_output()).await.expect("finishes in time").expect("command runs");
    assert_eq!((done.status.code(), done.stdout.as_slice()), (Some(0), &b"for the child\n"[..]), "{done:?}");
});

on_both_servers!(command_shows_no_password, |place| async move {
    let zoolock = ZoolockBinary::find().expect("zoolock binary is built");
    let file = zoolock.home().join("credentials");
    std::fs::write(&file, format!("jobs:{PASSWORD}\n")).expect("file is writable");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("permissions set");
    let file = file.display();
    // Prints the arguments of every process on the machine, including those of the command and of
    // its helper process.
    let look = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '";
    for (source, inherited) in [
        (format!("digest:@{file}"), false),
        ("digest:env:THE_SECRET".to_owned(), true),
        (format!("digest:command:cat {file}"), false),
    ] {
        let all = if inherited { look.to_owned() } else { format!("env; {look}") };
        let mut command =
            zoolock.command(["-v", "--auth", &source, "run", "nightly", "--", "sh", "-c", &all]);
        command.env("ZOOLOCK_CONNECT", place.connect_string());
        if inherited {
            command.env("THE_SECRET", format!("jobs:{PASSWORD}"));
        }
        let done =
            timeout(PATIENCE, command.output()).await.expect("finishes in time").expect("command runs");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(0), "{source}: {said}");
        assert!(said.contains("holding nightly"), "{said}");
        assert_absent(&source, &said);
        let seen = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(seen.contains("nightly"), "{seen}");
        assert_absent(&source, &seen);
    }
    // Nested commands inherit `ZOOLOCK_AUTH`, which has the path of the credentials file and not
    // the password.
    let mut command = zoolock.command(["show", "nightly", "--json"]);
    command.env("ZOOLOCK_CONNECT", place.connect_string()).env("ZOOLOCK_AUTH", format!("digest:@{file}"));
    let done = timeout(PATIENCE, command.output()).await.expect("finishes in time").expect("command runs");
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_absent("what is shown", &String::from_utf8_lossy(&done.stdout));
    // A client without the credentials is refused.
    let stranger = zoolock.command(["show", "nightly", "--connect", &place.connect_string()]).output().await;
    assert_eq!(stranger.expect("command runs").status.code(), Some(77));
});
