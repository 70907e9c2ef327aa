//! The lock of a killed `zoolock run` is free as soon as its command is dead, and not earlier.
//!
//! The reaper ends the session within a third of the session timeout, or the server frees the lock at least two thirds of
//! it after the kill, because a session renews after a third of it. So the time of the next grant shows which of the two has
//! freed the lock, however slow the machine is.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;
use zoolock_tests::proxy::Proxy;
use zoolock_tests::skip::Availability;
use zoolock_tests::{Authority, ServerOptions, on_both_servers};

use crate::common::process_tree::{child_of, live_pids_with, rounds_with_cases, signal};
use crate::common::{
    Running, Sandbox, is_alive, read_until, server_with, set_mode, start_server, wait_until,
};

/// The session timeout of locks that the reaper frees: the longest that both servers grant.
const LONG: (&str, Duration) = ("30s", Duration::from_secs(30));
/// The session timeout of locks that the server frees: the shortest.
const SHORT: (&str, Duration) = ("6s", Duration::from_secs(6));

/// A command that runs under the lock, and says so in the file `ready`.
struct Scene {
    flags: &'static [&'static str],
    script: &'static str,
}

const SCENES: [Scene; 8] = [
    Scene { flags: &[], script: "echo > $READY; exec sleep 1000" },
    // A process that has left the group, and ignores TERM.
    Scene {
        flags: &[],
        script: "(setsid sh -c 'trap \"\" TERM; echo > $READY; while :; do sleep 0.01; done' &); sleep 1000",
    },
    Scene {
        flags: &[],
        script: "i=0; while [ $i -lt 50 ]; do sleep 1000 & i=$((i+1)); done; echo > $READY; wait",
    },
    // Processes that the command left behind have their grace.
    Scene {
        flags: &["--grace", "5s"],
        script: "sh -c 'trap \"\" TERM; echo > $READY; while :; do sleep 0.01; done' & while ! [ -s $READY ]; do sleep 0.01; done",
    },
    Scene { flags: &[], script: "sh -c 'echo > $READY; kill -STOP $$'; true" },
    Scene { flags: &["--keep"], script: "echo > $READY; exec sleep 1000" },
    // The pause before the next start.
    Scene { flags: &["--keep"], script: "echo > $READY; sleep 0.2" },
    Scene { flags: &["--permits", "1", "--slot"], script: "echo > $READY; exec sleep 1000" },
];

/// A `zoolock run` that holds a lock, and the next contender.
struct Pair<'a> {
    sandbox: &'a Sandbox,
    name: String,
    mark: String,
    holder: Running,
    next: Running,
}

impl<'a> Pair<'a> {
    /// Starts both. `ends`: the flags of the connection of the holder, and of the next contender.
    fn start(
        sandbox: &'a Sandbox,
        ends: [&[&str]; 2],
        timeout: &str,
        name: &str,
        flags: &[&str],
        script: &str,
    ) -> Pair<'a> {
        let mark = format!("KILLED={}", sandbox.path(name).display());
        let session = ["run", "--quiet", "--session-timeout", timeout];
        let script = format!("export {mark} READY={name}.ready; {script}");
        let holder = [&session[..], ends[0], flags, &[name, "--", "sh", "-c", &script]];
        let holder = sandbox.start(&holder.concat());
        sandbox.wait_for_file(&format!("{name}.ready"));
        // The next contender needs the same kind of lock, but no restarts.
        let kind: Vec<&str> = flags.iter().copied().filter(|flag| *flag != "--keep").collect();
        let script = format!("date +%s.%N > {name}.next");
        let next = [&session[..], ends[1], &kind, &[name, "--", "sh", "-c", &script]].concat();
        let next = sandbox.start(&next);
        wait_until("both contend", || sandbox.contenders_with(ends[1], name) == 2);
        Pair { sandbox, name: name.to_owned(), mark, holder, next }
    }

    /// Returns the process id of the reaper.
    fn reaper(&self) -> String {
        child_of(&self.holder.0.id().to_string(), "lock-reaper").expect("zoolock has a reaper")
    }

    /// Waits for the next command, and returns the time from `begun` to its start. Asserts that no process of the killed
    /// command was alive then.
    fn time_to_next(&mut self, begun: SystemTime) -> Duration {
        let at = self.sandbox.wait_for_file(&format!("{}.next", self.name));
        assert_eq!(live_pids_with(&self.mark), Vec::<String>::new(), "{} was granted", self.name);
        assert_eq!(self.next.code(), 0);
        let at = at.split_once('.').expect("seconds and nanoseconds");
        let at = Duration::new(at.0.parse().expect("a number"), at.1.parse().expect("a number"));
        at.saturating_sub(begun.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970"))
    }
}

fn kill(zoolock: &mut Running) -> SystemTime {
    let begun = SystemTime::now();
    zoolock.signal(Signal::KILL);
    zoolock.wait();
    begun
}

on_both_servers!(next_command_starts_when_the_killed_one_is_dead, |zookeeper| async move {
    let (sandbox, connect) = (Sandbox::new(), zookeeper.connect_string());
    let times = Mutex::new(Vec::new());
    tokio::task::block_in_place(|| {
        rounds_with_cases(&SCENES, |scene, round| {
            let name = format!("x{round}");
            let flags = ["--connect", connect.as_str()];
            let ends = [&flags[..]; 2];
            let mut pair = Pair::start(&sandbox, ends, LONG.0, &name, scene.flags, scene.script);
            let begun = kill(&mut pair.holder);
            let took = pair.time_to_next(begun);
            assert!(took < LONG.1 / 3, "round {round}: {took:?}");
            times.lock().expect("not poisoned").push(took);
        });
    });
    let mut times = times.into_inner().expect("not poisoned");
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!("{} kills: median {:?}, p99 {:?}, longest {:?}", times.len(), at(50), at(99), at(100));
});

// A kill at any moment of a short run, before the grant and after the end of the command included.
on_both_servers!(kill_at_any_moment_frees_the_lock_after_the_command, |zookeeper| async move {
    let (sandbox, connect) = (Sandbox::new(), zookeeper.connect_string());
    let early = Mutex::new([0, 0]);
    tokio::task::block_in_place(|| {
        let moments: Vec<u64> = (0..10).collect();
        rounds_with_cases(&moments, |tenth, round| {
            let name = format!("x{round}");
            let session = ["run", "--quiet", "--connect", &connect, "--session-timeout", SHORT.0];
            let mark = format!("KILLED={}", sandbox.path(&name).display());
            let script = format!("export {mark}; (sleep 0.02; sleep 0.02) & sleep 0.02");
            let mut run = sandbox.start(&[&session[..], &[&name, "--", "sh", "-c", &script]].concat());
            std::thread::sleep(Duration::from_millis(tenth * 12 + round as u64 % 12));
            let begun = Instant::now();
            run.signal(Signal::KILL);
            run.wait();
            let done = sandbox.output(&[&session[..], &[&name, "--", "true"]].concat());
            assert_eq!(done.code, 0, "{done:?}");
            assert_eq!(live_pids_with(&mark), Vec::<String>::new(), "round {round}");
            early.lock().expect("not poisoned")[usize::from(begun.elapsed() < SHORT.1 / 3)] += 1;
        });
    });
    let [late, early] = early.into_inner().expect("not poisoned");
    println!("{early} locks were free early, {late} after the session timeout");
});

/// The reasons why the reaper must not free the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    Asked,
    Stopped,
    BothKilled,
    CutOff,
}

#[test]
fn lock_in_doubt_is_kept_for_the_session_timeout() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("runtime built");
    let doubts = [Doubt::Asked, Doubt::Stopped, Doubt::BothKilled, Doubt::CutOff];
    rounds_with_cases(&doubts, |&doubt, round| {
        let proxy = runtime.block_on(Proxy::start(&address)).expect("proxy started");
        let name = format!("x{round}");
        let flags = if doubt == Doubt::Asked { &["--if-killed", "wait"][..] } else { &[] };
        let script = "echo > $READY; exec sleep 1000";
        let (through, direct) = (proxy.addr(), ["--connect", address.as_str()]);
        let through = ["--connect", through.as_str()];
        let ends = [&through[..], &direct];
        let mut pair = Pair::start(&sandbox, ends, SHORT.0, &name, flags, script);
        let reaper = pair.reaper();
        let begun = SystemTime::now();
        match doubt {
            Doubt::Stopped => signal(&pair.holder.0.id().to_string(), Signal::STOP),
            Doubt::BothKilled => {
                signal(&reaper, Signal::STOP);
                pair.holder.signal(Signal::KILL);
                signal(&reaper, Signal::KILL);
            }
            _ => {
                proxy.blackhole(doubt == Doubt::CutOff);
                pair.holder.signal(Signal::KILL);
            }
        }
        let took = pair.time_to_next(begun);
        assert!(took > SHORT.1 / 2, "{doubt:?}, round {round}: {took:?}");
        if doubt != Doubt::Stopped {
            wait_until("the reaper has ended", || !is_alive(&reaper));
        }
    });
}

/// A process that zoolock may not kill, as sudo starts it.
#[test]
fn lock_is_kept_while_a_process_of_another_user_lives() {
    let root = match rustix::process::geteuid().is_root() {
        true => Availability::Available,
        false => Availability::Missing("only root can run a command as another user".to_owned()),
    };
    if !root.or_skip("killed::lock_is_kept_while_a_process_of_another_user_lives") {
        return;
    }
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let zoolock = sandbox.path("zoolock");
    std::fs::copy(env!("CARGO_BIN_EXE_zoolock"), &zoolock).expect("program copied");
    set_mode(&zoolock, 0o755);
    let setpriv = sandbox.path("setpriv");
    let found = ["/usr/bin/setpriv", "/bin/setpriv"].into_iter().find(|path| Path::new(path).exists());
    std::fs::copy(found.expect("setpriv is installed"), &setpriv).expect("program copied");
    set_mode(&setpriv, 0o4755);
    chown(sandbox.path("."), Some(NOBODY), Some(NOBODY)).expect("directory given away");
    for (seconds, timeout, keep, is_early) in
        [("1", LONG, false, true), ("5", SHORT, false, false), ("8", SHORT, true, false)]
    {
        let name = format!("x{seconds}");
        // The process is root's. It ends by itself, early or late. With --keep, the first command leaves it behind.
        let then = if keep { "exit" } else { "echo > $READY; sleep 1000" };
        let script = format!(
            "READY={name}.ready; [ -e {name}.left ] && {{ echo > $READY; exec sleep 1000; }}
             ./setpriv --reuid=0 --regid=0 --clear-groups sh -c 'echo > {name}.left; exec sleep {seconds}' &
             while ! [ -e {name}.left ]; do sleep 0.01; done; {then}"
        );
        let mut command = sandbox.command("setpriv");
        command.args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups"]);
        command.arg(&zoolock).args(["run", "--quiet", "--connect", &address, "--session-timeout", timeout.0]);
        command.args(keep.then_some("--keep"));
        command.args([&name, "--", "sh", "-c", &script]).stdin(std::process::Stdio::null());
        let mut holder = Running(command.spawn().expect("setpriv starts"));
        sandbox.wait_for_file(&format!("{name}.ready"));
        let began = Instant::now();
        kill(&mut holder);
        let done = sandbox.output(&["run", "--connect", &address, &name, "--", "true"]);
        assert_eq!(done.code, 0, "{done:?}");
        let took = began.elapsed();
        // The process lives for a second, or longer than a third of the session timeout.
        assert_eq!(took < timeout.1 / 3, is_early, "{took:?}");
    }
}

/// A user without rights.
const NOBODY: u32 = 65_534;

#[test]
fn lost_close_is_repeated() {
    const CLOSE_SESSION: i32 = -11;
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("runtime built");
    let proxy = runtime.block_on(Proxy::start(&address)).expect("proxy started");
    let (through, direct) = (proxy.addr(), ["--connect", address.as_str()]);
    let through = ["--connect", through.as_str()];
    let ends = [&through[..], &direct];
    let script = "echo > $READY; exec sleep 1000";
    let mut pair = Pair::start(&sandbox, ends, LONG.0, "x", &[], script);
    proxy.drop_next_request(CLOSE_SESSION);
    let begun = kill(&mut pair.holder);
    let took = pair.time_to_next(begun);
    assert!(took < LONG.1 / 3, "{took:?}");
    // One close was lost, and one has arrived.
    assert_eq!((proxy.stats().dropped_requests, proxy.counts().requests(CLOSE_SESSION)), (1, 1));
}

/// A daemon may live on after the release, so it lives on if zoolock is killed during the release.
#[test]
fn daemon_outlives_zoolock_that_is_killed_in_the_release() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("runtime built");
    let proxy = runtime.block_on(Proxy::start(&address)).expect("proxy started");
    let script = "setsid sh -c 'echo $$ > daemon; exec sleep 1000' & while ! [ -e go ]; do sleep 0.01; done";
    let flags = ["run", "--session-timeout", LONG.0, "--connect", &proxy.addr()];
    let mut holder = sandbox.start_piped(&[&flags[..], &["x", "--", "sh", "-c", script]].concat());
    let daemon = sandbox.wait_for_file("daemon");
    let reaper = child_of(&holder.0.id().to_string(), "lock-reaper").expect("zoolock has a reaper");
    proxy.blackhole(true);
    std::fs::write(sandbox.path("go"), "").expect("written");
    // zoolock then waits for the close of its session.
    read_until(&mut holder.take_stderr(), &mut String::new(), "cannot release x");
    kill(&mut holder);
    proxy.blackhole(false);
    wait_until("the reaper has ended", || !is_alive(&reaper));
    assert!(is_alive(&daemon));
    signal(&daemon, Signal::KILL);
    let done = sandbox.output(&["run", "--try", "--connect", &address, "x", "--", "true"]);
    assert_eq!(done.code, 0, "{done:?}");
}

/// Kills a holder with these flags of its connection, and asserts that the reaper frees its lock.
fn assert_freed(sandbox: &Sandbox, name: &str, flags: &[&str]) {
    let script = "echo > $READY; exec sleep 1000";
    let mut pair = Pair::start(sandbox, [flags, flags], LONG.0, name, &[], script);
    assert_no_secret(&pair.reaper());
    let begun = kill(&mut pair.holder);
    let took = pair.time_to_next(begun);
    assert!(took < LONG.1 / 3, "{flags:?}: {took:?}");
}

#[test]
fn lock_of_a_session_with_a_password_is_freed() {
    let sandbox = Sandbox::new();
    // The password is pw.
    let users = sandbox.write_private("users", "me:xlpJGzVhaayvpHfFn/RwowgwqI4=\n");
    let secret = sandbox.write_private("secret", "me:pw\n");
    let (_server, address) = server_with(&sandbox, &["--require-auth", "--users", &users]);
    for (name, auth) in
        [("file", format!("digest:@{secret}")), ("command", format!("digest:command:cat {secret}"))]
    {
        assert_freed(&sandbox, name, &["--connect", &address, "--auth", &auth]);
    }
}

on_both_servers!(private(secure()) lock_of_a_session_with_tls_is_freed, |zookeeper| async move {
    let (sandbox, authority) = (Sandbox::new(), zookeeper.authority());
    let (connect, client) = (zookeeper.server().secure_addr(), authority.client("me"));
    let text = |path: PathBuf| path.display().to_string();
    let (ca, certificate, key) = (text(authority.ca()), text(client.certificate), text(client.key));
    let flags = ["--connect", &connect, "--cacert", &ca, "--cert", &certificate, "--key", &key];
    tokio::task::block_in_place(|| assert_freed(&sandbox, "x", &flags));
});

fn secure() -> ServerOptions {
    ServerOptions { tls: Some(Arc::new(Authority::new())), ..ServerOptions::default() }
}

/// Asserts that the reaper shows the password in no file of `/proc`, and has no file open that contains it.
fn assert_no_secret(reaper: &str) {
    // Only root may look into the reaper.
    let Ok(files) = std::fs::read_dir(format!("/proc/{reaper}/fd")) else {
        return assert!(!rustix::process::geteuid().is_root());
    };
    let files = files.flatten();
    let shown = ["environ", "cmdline", "comm"].map(|file| format!("/proc/{reaper}/{file}").into());
    for file in files.map(|file| file.path()).chain(shown) {
        // Sockets and timers cannot be opened.
        let text = std::fs::read(&file).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        // The packet has the bytes as numbers.
        assert!(!text.contains("me:pw") && !text.contains("109,101,58,112,119"), "{}", file.display());
    }
}

/// A zoolock in the command has a lock of its own. Both locks are freed.
#[test]
fn inner_lock_is_freed_with_the_outer_one() {
    let sandbox = Sandbox::new();
    let (_server, address) = start_server(&sandbox);
    let zoolock = env!("CARGO_BIN_EXE_zoolock");
    rounds_with_cases(&[()], |(), round| {
        let (outer, inner) = (format!("outer{round}"), format!("inner{round}"));
        let flags = ["--connect", address.as_str()];
        let ends = [&flags[..]; 2];
        let script = format!(
            "{zoolock} run --session-timeout {} {inner} -- sh -c 'echo > $READY; sleep 1000'",
            LONG.0
        );
        let mut pair = Pair::start(&sandbox, ends, LONG.0, &outer, &[], &script);
        let waiting = ["run", "--connect", &address, &inner, "--", "true"];
        let mut next = sandbox.start(&waiting);
        wait_until("both contend", || sandbox.contenders_with(ends[0], &inner) == 2);
        let begun = kill(&mut pair.holder);
        assert!(pair.time_to_next(begun) < LONG.1 / 3);
        assert_eq!(next.code(), 0);
        let took = begun.elapsed().expect("the clock was not set back");
        assert!(took < LONG.1 / 3, "{took:?}");
    });
}
