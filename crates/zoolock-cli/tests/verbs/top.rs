//! `zoolock top` as people see it: in a terminal, typed into, beside real holders, a server that goes and comes back, and
//! whatever ends it.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use zoolock::Zoolock;
use zoolock_tests::ports::Port;
use zoolock_tests::tmux::{self, Tmux};
use zoolock_tests::wait::eventually;
use zoolock_tests::{Failure, Serving, ZoolockBinary};

const BOUND: Duration = Duration::from_secs(60);

/// A server that can be started again in its place.
struct House {
    binary: ZoolockBinary,
    port: Port,
    data: TempDir,
}

impl House {
    fn new() -> Self {
        Self {
            binary: ZoolockBinary::find().expect("the command has been built"),
            port: Port::reserve().expect("a port"),
            data: TempDir::new().expect("a directory"),
        }
    }

    fn address(&self) -> String {
        self.port.addr().to_string()
    }

    async fn open(&self) -> Serving {
        let data = self.data.path().join("data");
        let data = data.to_str().expect("a plain name");
        let command = self.binary.command(["serve", "--listen", &self.address(), "--data", data]);
        Serving::start(command).await.expect("it serves")
    }

    /// The command in a shell, with what every command of a test says.
    fn line(&self, rest: &str) -> String {
        let binary = self.binary.path().display();
        format!("{binary} --session-timeout 6s --connect {} {rest}", self.address())
    }

    /// Somebody who wants a lock, and holds it until its input ends.
    fn hold(&self, rest: &[&str]) -> Child {
        let address = self.address();
        let fixed = ["--session-timeout", "30s", "--connect", &address, "hold"];
        self.binary.spawn(fixed.iter().chain(rest))
    }

    async fn terminal(&self) -> Tmux {
        let home = self.binary.home().to_str().expect("a plain name");
        Tmux::start(&[("HOME", home), ("NO_COLOR", "")]).await.expect("a terminal")
    }
}

/// What a holder prints first.
async fn token(holder: &mut Child) -> String {
    let stdout = holder.stdout.as_mut().expect("it is piped");
    let mut line = String::new();
    let mut stdout = BufReader::new(stdout);
    tokio::time::timeout(BOUND, stdout.read_line(&mut line)).await.expect("in time").expect("a line");
    line.trim().to_owned()
}

async fn wait_for_waiters(address: &str, name: &str, count: usize) {
    let zl = Zoolock::builder().connect(address).await.expect("a session");
    let look = async || {
        let waiting =
            zl.mutex(name).snapshot().await.map_err(|error| Failure::during("a look", error))?.waiters.len();
        if waiting == count { Ok(()) } else { Err(Failure::new(format!("{waiting} wait"))) }
    };
    eventually("all stand in the queue", BOUND, look).await.expect("they do");
    zl.close().await;
}

/// Without what differs from run to run: figures, and how much room they take.
fn masked(line: &str) -> String {
    let mut masked = String::new();
    for c in line.trim_end().chars() {
        let c = if c.is_ascii_digit() { '#' } else { c };
        if !(masked.ends_with(c) && (c == '#' || c == ' ')) {
            masked.push(c);
        }
    }
    masked
}

/// The columns of the list before those that say who holds.
fn figures(screen: &str) -> Vec<String> {
    screen.lines().skip(3).map(|line| masked(&line.chars().take(56).collect::<String>())).collect()
}

fn modes(directory: &Path, name: &str) -> String {
    std::fs::read_to_string(directory.join(name)).expect("stty has written it")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_found_looked_at_and_cleared_from_the_screen() {
    if !tmux::availability().or_skip("a_queue_is_found_looked_at_and_cleared_from_the_screen") {
        return;
    }
    let house = House::new();
    let server = house.open().await;
    let mut first = house.hold(&["db/main", "--note", "database move"]);
    let first_token = token(&mut first).await;
    let mut second = house.hold(&["db/main"]);
    wait_for_waiters(&house.address(), "db/main", 1).await;
    let mut third = house.hold(&["db/main"]);
    wait_for_waiters(&house.address(), "db/main", 2).await;
    // It would clear the screen, name the window and turn the text around.
    let mut hostile = house.hold(&["nightly", "--note", "\x1b[2J\x1b]2;owned\x07\u{202e}夜"]);
    token(&mut hostile).await;

    let tmux = house.terminal().await;
    tmux.run("stty -a > before");
    tmux.run(&house.line("top --interval 200ms"));
    let screen =
        tmux.until("the locks are listed", |screen| screen.contains("2 locks, 2 held, 2 waiting")).await;
    assert_eq!(tmux.tells("#{alternate_on} #{cursor_flag}"), "1 0");
    assert_eq!(screen.lines().count(), 24, "{screen}");
    let listed = [" LOCK WAITING LONGEST RATE/S HELD", "> db/main # #s # #s", " nightly # - # #s", ""];
    let screen = tmux
        .until("the list is as it should be", |screen| {
            figures(screen).starts_with(&listed.map(str::to_owned))
        })
        .await;
    assert!(
        screen.lines().last().is_some_and(|keys| keys.contains("r revoke") && keys.contains("q quit")),
        "{screen}"
    );
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    assert!(!tmux.tells("#{pane_title}").contains("owned"));

    tmux.press(&["2"]);
    tmux.until("the order is said", |screen| screen.contains("[2 longest wait]")).await;
    tmux.type_text("/nigh");
    tmux.until("one is found", |screen| screen.contains("/nigh_ (1)") && !screen.contains("db/main")).await;
    tmux.press(&["Enter", "Enter"]);
    let screen =
        tmux.until("its queue is shown", |screen| screen.contains("/locks/nightly: 1 hold, 0 wait")).await;
    assert!(screen.contains("note    \\u{1b}[2J\\u{1b}]2;owned\\u{7}\\u{202e}夜"), "{screen}");
    // Two that come as one are taken for one.
    tmux.press(&["Escape"]);
    tmux.until("what was found is shown again", |screen| screen.contains("/nigh (1)")).await;
    tmux.press(&["Escape"]);
    tmux.until("all are shown again", |screen| screen.contains("> db/main") || screen.contains("  db/main"))
        .await;

    tmux.press(&["Home", "Enter"]);
    let screen = tmux
        .until("the queue is shown", |screen| {
            screen.contains("/locks/db/main: 1 hold, 2 wait") && !screen.contains("not read")
        })
        .await;
    let words = |line: usize, count| {
        let line = screen.lines().nth(line).unwrap_or_default();
        line.split_whitespace().take(count).map(masked).collect::<Vec<_>>().join(" ")
    };
    assert_eq!([words(4, 4), words(5, 3)], ["# SINCE TOKEN WHO", "> holds #s"], "{screen}");
    assert_eq!([words(6, 2), words(7, 2)], ["# #s", "# #s"], "{screen}");
    let zxid = first_token.split('-').nth(1).expect("a token").trim_start_matches('0');
    let row = screen.lines().nth(5).expect("a row");
    assert_eq!(row.split_whitespace().nth(3), Some(zxid), "{screen}");
    assert!(screen.contains("note    database move") && screen.contains(&first_token), "{screen}");
    let pid = first.id().expect("it lives").to_string();
    assert!(screen.contains(&format!("pid {pid}")), "{screen}");

    // Asked, and only after a yes.
    tmux.press(&["r"]);
    let named = |screen: &str| {
        screen.contains("Ask the holder to let go?") && screen.contains(&format!("token  {first_token}"))
    };
    tmux.until("the question names the holder", named).await;
    tmux.press(&["n"]);
    tmux.until("nobody was asked", |screen| screen.contains("nobody was asked")).await;
    tmux.press(&["r", "y"]);
    tmux.until("it was asked", |screen| screen.contains(&format!("asked {first_token} to let go"))).await;
    assert!(first.wait().await.expect("it ends").success());
    let second_token = token(&mut second).await;
    tmux.until("the next one holds", |screen| {
        screen.contains(": 1 hold, 1 wait") && screen.contains(&second_token)
    })
    .await;

    // Not broken: whom the question was about is gone when it is answered.
    tmux.press(&["Home", "b"]);
    tmux.until("the question is there", |screen| {
        screen.contains("Take the lock away") && screen.contains(&format!("token  {second_token}"))
    })
    .await;
    drop(second.stdin.take());
    assert!(second.wait().await.expect("it ends").success());
    let third_token = token(&mut third).await;
    tmux.until("it is seen to be gone", |screen| screen.contains("! it is not there any more")).await;
    tmux.type_text("break");
    tmux.press(&["Enter"]);
    let refused = |screen: &str| {
        screen.contains("! lock /locks/db/main: ")
            && screen.contains(&second_token)
            && screen.contains(": 1 hold, 0 wait")
    };
    let screen = tmux.until("it was refused", refused).await;
    assert!(screen.contains(&third_token), "{screen}");
    assert!(third.try_wait().expect("it is ours").is_none(), "the wrong one was broken");

    // Broken: the one that was seen.
    tmux.press(&["b"]);
    tmux.until("the question is there", |screen| screen.contains(&format!("token  {third_token}"))).await;
    tmux.type_text("break");
    tmux.press(&["Enter"]);
    tmux.until("it was broken", |screen| screen.contains(&format!("taken away from {third_token}"))).await;
    assert_eq!(third.wait().await.expect("it ends").code(), Some(70));
    tmux.until("the lock is free", |screen| screen.contains("free, and nobody waits")).await;

    // Keys are taken while nobody answers; what was read is still there, and goes on by itself.
    tmux.press(&["Escape"]);
    tmux.until("the list is there", |screen| screen.contains("1 held, 0 waiting")).await;
    server.kill().await;
    tmux.until("silence is noticed", |screen| screen.contains("! disconnected since ")).await;
    tmux.press(&["?"]);
    tmux.until("help is shown", |screen| screen.contains("┌ help ")).await;
    tmux.press(&["Space", "3"]);
    let screen = tmux.until("the order is another", |screen| screen.contains("[3 hand-overs/s]")).await;
    assert!(screen.contains("! disconnected since ") && screen.contains("nightly"), "{screen}");
    let server = house.open().await;
    tmux.until("it goes on", |screen| {
        screen.contains("1 held, 0 waiting") && !screen.contains("disconnected")
    })
    .await;

    tmux.press(&["q"]);
    tmux.until("the shell is back", |screen| screen.contains("ready>") && !screen.contains("LOCK")).await;
    tmux.run("echo code=$?; stty -a > after");
    tmux.until("it ended well", |screen| screen.contains("code=0\nready>")).await;
    assert_eq!(tmux.tells("#{alternate_on} #{cursor_flag}"), "0 1");
    assert_eq!(modes(tmux.directory(), "before"), modes(tmux.directory(), "after"));
    drop(tmux);
    drop(hostile);
    server.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_is_given_back_however_it_ends() {
    if !tmux::availability().or_skip("the_terminal_is_given_back_however_it_ends") {
        return;
    }
    let house = House::new();
    let server = house.open().await;
    let tmux = house.terminal().await;
    tmux.run("stty -a > before");
    let directory = tmux.directory();
    // Alone, so that the screen is the shell's once more, and as it was.
    let given_back = async |code: &str| {
        tmux.until("the shell is back", |screen| screen.contains("ready>") && !screen.contains("LOCK")).await;
        assert_eq!(tmux.tells("#{alternate_on} #{cursor_flag}"), "0 1", "{code}");
        tmux.run("echo code=$?; stty -a > after");
        tmux.until("its code is told", |screen| screen.contains(&format!("{code}\nready>"))).await;
        assert_eq!(modes(directory, "before"), modes(directory, "after"), "{code}");
        tmux.run("clear");
        tmux.until("the screen is empty", |screen| !screen.contains("code=")).await;
    };
    let listed = |screen: &str| screen.contains("no locks") && screen.contains("LOCK");

    // Stopped and continued.
    tmux.run(&house.line("top"));
    tmux.until("it is there", listed).await;
    tmux.press(&["C-z"]);
    given_back("code=147").await;
    tmux.run("fg");
    tmux.until("it is there again", listed).await;

    // No size makes it fail.
    tmux.resize(40, 8);
    tmux.until("it says so", |screen| screen.contains("terminal too small: 40×8")).await;
    tmux.resize(1, 1);
    tmux.resize(100, 30);
    tmux.until("it fills the screen", |screen| screen.lines().count() == 30 && listed(screen)).await;
    tmux.resize(80, 24);
    tmux.until("it is as it was", |screen| screen.lines().count() == 24 && listed(screen)).await;
    tmux.press(&["C-c"]);
    given_back("code=0").await;

    // Told to end from elsewhere, and with its process id in a file.
    for (signal, code) in [("TERM", "code=143"), ("HUP", "code=129")] {
        tmux.run(&format!("sh -c 'echo $$ > pid; exec {}'", house.line("top --read-only")));
        let screen = tmux.until("it is there", listed).await;
        assert!(!screen.contains("revoke"), "{screen}");
        let pid = modes(directory, "pid");
        let killed = std::process::Command::new("kill").args([&format!("-{signal}"), pid.trim()]).status();
        assert!(killed.expect("there is a `kill`").success());
        given_back(code).await;
    }

    // What has no screen gets none.
    tmux.run(&format!("{} | cat; echo", house.line("top")));
    tmux.until("it says what to do", |screen| screen.replace('\n', "").contains("zoolock ls --json")).await;
    tmux.run(&format!("clear; TERM=dumb {}", house.line("top")));
    tmux.until("it says what to do", |screen| screen.contains("(TERM)") && screen.contains("zoolock ls"))
        .await;
    drop(tmux);
    server.kill().await;
}
