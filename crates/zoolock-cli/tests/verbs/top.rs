//! `zoolock top` in a real terminal, with real holders and a server that is restarted. The tests in `src/top`
//! check what each screen shows and what each key does.

use std::path::Path;

use crate::common::{Lines, Running, Sandbox, start_server_from, wait_until};
use zoolock_tests::ports::Port;
use zoolock_tests::tmux::{self, Tmux};

/// An address and a data directory for a server, which a test can start more than once.
struct RestartableServer {
    sandbox: Sandbox,
    port: Port,
}

impl RestartableServer {
    fn new() -> Self {
        Self { sandbox: Sandbox::new(), port: Port::reserve().expect("a free port") }
    }

    fn address(&self) -> String {
        self.port.addr().to_string()
    }

    fn start(&self) -> Running {
        start_server_from(self.sandbox.zoolock(["serve", "--listen", &self.address(), "--data", "data"])).0
    }

    /// Returns a command line that runs zoolock with this server.
    fn line(&self, rest: &str) -> String {
        let binary = env!("CARGO_BIN_EXE_zoolock");
        format!("{binary} --session-timeout 6s --connect {} {rest}", self.address())
    }

    /// Starts a contender, and returns it with its output. The contender prints its token when it acquires the lock, and
    /// releases the lock at the end of its input.
    fn hold(&self, note: &str) -> (Running, Lines) {
        let mut holder =
            self.sandbox.start_piped(&["--connect", &self.address(), "hold", "db/main", "--note", note]);
        let lines = Lines::of(holder.take_stdout());
        (holder, lines)
    }

    fn wait_for_contenders(&self, count: usize) {
        let flags = ["--connect", &self.address()];
        wait_until("all contenders are in the queue", || {
            self.sandbox.contenders_with(&flags, "db/main") == count
        });
    }

    async fn terminal(&self) -> Tmux {
        let home = self.sandbox.path("");
        Tmux::start(&[("HOME", home.to_str().expect("UTF-8")), ("NO_COLOR", "")]).await.expect("tmux starts")
    }
}

fn read(directory: &Path, name: &str) -> String {
    std::fs::read_to_string(directory.join(name)).expect("the shell has written the file")
}

/// Returns whether the shell has printed a new prompt. The shell drops keys that are typed before the prompt.
fn is_at_prompt(screen: &str) -> bool {
    screen.trim_end().ends_with("ready>")
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_is_shown_and_cleared_on_screen() {
    if !tmux::availability().or_skip("queue_is_shown_and_cleared_on_screen") {
        return;
    }
    let zookeeper = RestartableServer::new();
    let server = zookeeper.start();
    let (mut first, lines) = zookeeper.hold("database move");
    let first_token = lines.next().trim().to_owned();
    let (mut second, second_lines) = zookeeper.hold("second");
    zookeeper.wait_for_contenders(2);
    let (mut third, third_lines) = zookeeper.hold("third");
    zookeeper.wait_for_contenders(3);

    let tmux = zookeeper.terminal().await;
    tmux.run("stty -a > before");
    // A prompt that comes after the next line was typed would look like the prompt after the end of top.
    tmux.until("the shell is ready again", |screen| screen.contains("before\nready>")).await;
    tmux.run(&zookeeper.line("top --interval 200ms"));
    let listed = |screen: &str| screen.contains("1 locks, 1 held, 2 waiting");
    let screen = tmux.until("the lock is listed", listed).await;
    assert_eq!(tmux.format_value("#{alternate_on} #{cursor_flag}"), "1 0");
    assert_eq!(screen.lines().count(), 24, "{screen}");
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    tmux.press(&["Enter"]);
    let screen = tmux
        .until("the queue is shown", |screen| {
            screen.contains("/locks/db/main: 1 hold, 2 wait") && !screen.contains("not read")
        })
        .await;
    assert!(screen.contains("note    database move") && screen.contains(&first_token), "{screen}");
    assert!(screen.contains(&format!("pid {}", first.0.id())), "{screen}");

    tmux.press(&["w"]);
    let is_explained =
        |screen: &str| screen.contains("┌ why db/main") && screen.contains("db/main is held by");
    let screen = tmux.until("the reason is shown", is_explained).await;
    assert!(screen.contains("it waits for no lock that zoolock sees"), "{screen}");
    tmux.press(&["Escape"]);
    tmux.until("the window is closed", |screen| !screen.contains("┌ why")).await;

    // Revokes the holder, but only after the answer yes.
    let asks_about_holder = |screen: &str| {
        screen.contains("Ask the holder to release?") && screen.contains(&format!("token  {first_token}"))
    };
    tmux.press(&["r"]);
    tmux.until("the question names the holder", asks_about_holder).await;
    tmux.press(&["n"]);
    tmux.until("the holder is not asked", |screen| screen.contains("no request sent")).await;
    tmux.press(&["r", "y"]);
    tmux.until("the holder is asked", |screen| screen.contains(&format!("asked {first_token} to release")))
        .await;
    assert_eq!(first.code(), 0);
    let second_token = second_lines.next().trim().to_owned();
    tmux.until("the second contender holds", |screen| {
        screen.contains(": 1 hold, 1 wait") && screen.contains(&second_token)
    })
    .await;

    // The holder releases the lock while top asks whether to break it. top then refuses to break
    // the lock, which has a new holder.
    tmux.press(&["Home", "b"]);
    tmux.until("the question is shown", |screen| screen.contains(&format!("token  {second_token}"))).await;
    second.end_of_input();
    assert_eq!(second.code(), 0);
    let third_token = third_lines.next().trim().to_owned();
    tmux.until("the release is noticed", |screen| screen.contains("! it has left the queue")).await;
    tmux.type_text("break");
    tmux.press(&["Enter"]);
    let is_refused = |screen: &str| {
        screen.contains("! lock /locks/db/main: ")
            && screen.contains(&second_token)
            && screen.contains(": 1 hold, 0 wait")
    };
    let screen = tmux.until("the break is refused", is_refused).await;
    assert!(screen.contains(&third_token), "{screen}");
    assert!(third.0.try_wait().expect("status of our child").is_none(), "the wrong holder was broken");

    // The holder still holds the lock when the question is answered. So top breaks the lock.
    tmux.press(&["b"]);
    tmux.until("the question is shown", |screen| screen.contains(&format!("token  {third_token}"))).await;
    tmux.type_text("break");
    tmux.press(&["Enter"]);
    tmux.until("the lock is broken", |screen| {
        screen.contains(&format!("removed {third_token} from the queue"))
    })
    .await;
    assert_eq!(third.code(), 70);
    tmux.until("the lock is free", |screen| screen.contains("free, no waiters")).await;

    // Keys work while the server is down. The list stays on the screen, and is updated after the restart.
    tmux.press(&["Escape"]);
    tmux.until("the list is shown", |screen| screen.contains("0 held, 0 waiting")).await;
    drop(server);
    tmux.until("the disconnect is noticed", |screen| screen.contains("! no answer since ")).await;
    tmux.press(&["?"]);
    tmux.until("help is shown", |screen| screen.contains("┌ help ")).await;
    tmux.press(&["Space", "3"]);
    let screen = tmux.until("the sort order has changed", |screen| screen.contains("[3 rate]")).await;
    assert!(screen.contains("! no answer since ") && screen.contains("db/main"), "{screen}");
    let _server = zookeeper.start();
    tmux.until("the list is updated", |screen| {
        screen.contains("0 held, 0 waiting") && !screen.contains("unreachable")
    })
    .await;

    tmux.press(&["q"]);
    tmux.until("the shell prompt is shown", is_at_prompt).await;
    tmux.run("echo code=$?; stty -a > after");
    tmux.until("top exits with code 0", |screen| screen.contains("code=0\nready>")).await;
    assert_eq!(tmux.format_value("#{alternate_on} #{cursor_flag}"), "0 1");
    assert_eq!(read(tmux.directory(), "before"), read(tmux.directory(), "after"));
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlock_is_shown_until_it_is_broken() {
    if !tmux::availability().or_skip("deadlock_is_shown_until_it_is_broken") {
        return;
    }
    let zookeeper = RestartableServer::new();
    let _server = zookeeper.start();
    let tmux = zookeeper.terminal().await;
    tmux.run(&zookeeper.line("top --interval 200ms"));
    tmux.until("top is shown", |screen| screen.contains("no locks")).await;

    // Each command holds one lock and waits for the other. The last waiter in a queue is in the circle, too.
    let nested = |outer: &str, inner: &str| {
        let inner = zookeeper.line(&format!("run {inner} --note inner-{inner} -- true"));
        let script = format!(
            "touch holds-{outer}; while [ $(ls holds-* | wc -l) -lt 2 ]; do sleep 0.02; done; {inner}"
        );
        let address = zookeeper.address();
        zookeeper.sandbox.start(&["--connect", &address, "run", outer, "--", "sh", "-c", &script])
    };
    let (mut first, _second) = (nested("a", "b"), nested("b", "a"));
    let has_banner =
        |screen: &str| screen.contains("! 1 deadlock: ") && screen.contains("; see zoolock deadlocks");
    let screen = tmux.until("the deadlock is shown", has_banner).await;
    assert!(screen.contains("a → b → a") || screen.contains("b → a → b"), "{screen}");
    assert!(screen.contains("2 held, 2 waiting"), "{screen}");

    // The banner stays above a queue. It disappears there, too, when the lock is broken.
    tmux.press(&["/"]);
    tmux.type_text("a");
    tmux.press(&["Enter", "Enter"]);
    let screen = tmux.until("the queue is shown", |screen| screen.contains("/locks/a: 1 hold, 1 wait")).await;
    assert!(has_banner(&screen), "{screen}");
    tmux.press(&["w"]);
    tmux.until("the circle is explained", |screen| screen.contains("again: a deadlock")).await;
    tmux.press(&["Escape", "b"]);
    tmux.until("the question is shown", |screen| screen.contains("type break and enter")).await;
    tmux.type_text("break");
    tmux.press(&["Enter"]);
    tmux.until("the deadlock is over", |screen| {
        !screen.contains("deadlock") && screen.contains("/locks/a: ")
    })
    .await;
    assert_eq!(first.code(), 70);
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_is_restored_however_top_ends() {
    if !tmux::availability().or_skip("terminal_is_restored_however_top_ends") {
        return;
    }
    let zookeeper = RestartableServer::new();
    let _server = zookeeper.start();
    let tmux = zookeeper.terminal().await;
    tmux.run("stty -a > before");
    tmux.until("the shell is ready again", |screen| screen.contains("before\nready>")).await;
    let directory = tmux.directory();
    // Waits for the shell, checks the exit code and the terminal modes, and clears the screen.
    let assert_restored = async |code: &str| {
        tmux.until("the shell prompt is shown", is_at_prompt).await;
        assert_eq!(tmux.format_value("#{alternate_on} #{cursor_flag}"), "0 1", "{code}");
        tmux.run("echo code=$?; stty -a > after");
        tmux.until("the exit code is printed", |screen| screen.contains(&format!("{code}\nready>"))).await;
        assert_eq!(read(directory, "before"), read(directory, "after"), "{code}");
        tmux.run("clear");
        tmux.until("the screen is empty", |screen| is_at_prompt(screen) && !screen.contains("code=")).await;
    };
    let listed = |screen: &str| screen.contains("no locks") && screen.contains("LOCK");

    // Suspend and continue.
    tmux.run(&zookeeper.line("top"));
    tmux.until("top is shown", listed).await;
    tmux.press(&["C-z"]);
    assert_restored("code=147").await;
    tmux.run("fg");
    tmux.until("top is shown again", listed).await;

    // top survives every size of the terminal.
    tmux.resize(40, 8);
    tmux.until("the size is reported", |screen| screen.contains("terminal too small: 40×8")).await;
    tmux.resize(1, 1);
    tmux.resize(100, 30);
    tmux.until("top fills the screen", |screen| screen.lines().count() == 30 && listed(screen)).await;
    tmux.resize(80, 24);
    tmux.until("top has its first size again", |screen| screen.lines().count() == 24 && listed(screen)).await;
    tmux.press(&["C-c"]);
    assert_restored("code=0").await;

    // top ends on these signals, which `kill` sends to the process id in the file `pid`.
    for (signal, code) in [("TERM", "code=143"), ("HUP", "code=129")] {
        tmux.run(&format!("sh -c 'echo $$ > pid; exec {}'", zookeeper.line("top --read-only")));
        let screen = tmux.until("top is shown", listed).await;
        assert!(!screen.contains("revoke"), "{screen}");
        let pid = read(directory, "pid");
        let killed = std::process::Command::new("kill").args([&format!("-{signal}"), pid.trim()]).status();
        assert!(killed.expect("kill starts").success());
        assert_restored(code).await;
    }

    // Without a capable terminal, top does not run, and names an alternative.
    tmux.run(&format!("{} | cat; echo", zookeeper.line("top")));
    tmux.until("the alternative is printed", |screen| screen.replace('\n', "").contains("zoolock ls --json"))
        .await;
    tmux.run(&format!("clear; TERM=dumb {}", zookeeper.line("top")));
    tmux.until("the alternative is printed", |screen| {
        screen.contains("(TERM)") && screen.contains("zoolock ls")
    })
    .await;
}
