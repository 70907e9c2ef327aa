//! `zoolock top` in a real terminal, with real holders and a server that goes and comes back. The tests in `src/top`
//! check what each screen shows and what each key does.

use std::path::Path;

use crate::common::{Lines, Running, Sandbox, serving, wait_until};
use zoolock_tests::ports::Port;
use zoolock_tests::tmux::{self, Tmux};

/// A server that can be started again at the same address.
struct House {
    sandbox: Sandbox,
    port: Port,
}

impl House {
    fn new() -> Self {
        Self { sandbox: Sandbox::new(), port: Port::reserve().expect("a port") }
    }

    fn address(&self) -> String {
        self.port.addr().to_string()
    }

    fn open(&self) -> Running {
        serving(self.sandbox.zoolock(["serve", "--listen", &self.address(), "--data", "data"])).0
    }

    /// A command line for a shell.
    fn line(&self, rest: &str) -> String {
        let binary = env!("CARGO_BIN_EXE_zoolock");
        format!("{binary} --session-timeout 6s --connect {} {rest}", self.address())
    }

    /// Starts a contender, which releases the lock at the end of its input. It prints its token when it holds the lock.
    fn hold(&self, note: &str) -> (Running, Lines) {
        let mut holder =
            self.sandbox.converse(&["--connect", &self.address(), "hold", "db/main", "--note", note]);
        let lines = Lines::of(holder.0.stdout.take().expect("caught"));
        (holder, lines)
    }

    fn wait_for_contenders(&self, count: usize) {
        let flags = ["--connect", &self.address()];
        wait_until("all are in the queue", || self.sandbox.contenders_with(&flags, "db/main") == count);
    }

    async fn terminal(&self) -> Tmux {
        let home = self.sandbox.path("");
        Tmux::start(&[("HOME", home.to_str().expect("UTF-8")), ("NO_COLOR", "")]).await.expect("a terminal")
    }
}

fn modes(directory: &Path, name: &str) -> String {
    std::fs::read_to_string(directory.join(name)).expect("stty has written it")
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_is_shown_and_cleared_on_screen() {
    if !tmux::availability().or_skip("queue_is_shown_and_cleared_on_screen") {
        return;
    }
    let house = House::new();
    let server = house.open();
    let (mut first, lines) = house.hold("database move");
    let first_token = lines.next().trim().to_owned();
    let (mut second, second_lines) = house.hold("second");
    house.wait_for_contenders(2);
    let (mut third, third_lines) = house.hold("third");
    house.wait_for_contenders(3);

    let tmux = house.terminal().await;
    tmux.run("stty -a > before");
    tmux.run(&house.line("top --interval 200ms"));
    let listed = |screen: &str| screen.contains("1 locks, 1 held, 2 waiting");
    let screen = tmux.until("the lock is listed", listed).await;
    assert_eq!(tmux.tells("#{alternate_on} #{cursor_flag}"), "1 0");
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

    // Revoked, and only after a yes.
    let named = |screen: &str| {
        screen.contains("Ask the holder to let go?") && screen.contains(&format!("token  {first_token}"))
    };
    tmux.press(&["r"]);
    tmux.until("the question names the holder", named).await;
    tmux.press(&["n"]);
    tmux.until("nobody was asked", |screen| screen.contains("nobody was asked")).await;
    tmux.press(&["r", "y"]);
    tmux.until("it was asked", |screen| screen.contains(&format!("asked {first_token} to let go"))).await;
    assert_eq!(first.code(), 0);
    let second_token = second_lines.next().trim().to_owned();
    tmux.until("the next one holds", |screen| {
        screen.contains(": 1 hold, 1 wait") && screen.contains(&second_token)
    })
    .await;

    // Not broken: the holder of the question is gone when it is answered.
    tmux.press(&["Home", "b"]);
    tmux.until("the question is there", |screen| screen.contains(&format!("token  {second_token}"))).await;
    second.end_of_input();
    assert_eq!(second.code(), 0);
    let third_token = third_lines.next().trim().to_owned();
    tmux.until("the holder is seen to be gone", |screen| screen.contains("! it is not there any more")).await;
    tmux.type_text("break");
    tmux.press(&["Enter"]);
    let refused = |screen: &str| {
        screen.contains("! lock /locks/db/main: ")
            && screen.contains(&second_token)
            && screen.contains(": 1 hold, 0 wait")
    };
    let screen = tmux.until("it was refused", refused).await;
    assert!(screen.contains(&third_token), "{screen}");
    assert!(third.0.try_wait().expect("our child").is_none(), "the wrong holder was broken");

    // Broken: the holder of the question.
    tmux.press(&["b"]);
    tmux.until("the question is there", |screen| screen.contains(&format!("token  {third_token}"))).await;
    tmux.type_text("break");
    tmux.press(&["Enter"]);
    tmux.until("it was broken", |screen| screen.contains(&format!("taken away from {third_token}"))).await;
    assert_eq!(third.code(), 70);
    tmux.until("the lock is free", |screen| screen.contains("free, and nobody waits")).await;

    // Keys work while the server is down. The list stays, and goes on by itself.
    tmux.press(&["Escape"]);
    tmux.until("the list is there", |screen| screen.contains("0 held, 0 waiting")).await;
    drop(server);
    tmux.until("silence is noticed", |screen| screen.contains("! disconnected since ")).await;
    tmux.press(&["?"]);
    tmux.until("help is shown", |screen| screen.contains("┌ help ")).await;
    tmux.press(&["Space", "3"]);
    let screen = tmux.until("the order is another", |screen| screen.contains("[3 hand-overs/s]")).await;
    assert!(screen.contains("! disconnected since ") && screen.contains("db/main"), "{screen}");
    let _server = house.open();
    tmux.until("it goes on", |screen| {
        screen.contains("0 held, 0 waiting") && !screen.contains("disconnected")
    })
    .await;

    tmux.press(&["q"]);
    tmux.until("the shell is back", |screen| screen.contains("ready>") && !screen.contains("LOCK")).await;
    tmux.run("echo code=$?; stty -a > after");
    tmux.until("it ended well", |screen| screen.contains("code=0\nready>")).await;
    assert_eq!(tmux.tells("#{alternate_on} #{cursor_flag}"), "0 1");
    assert_eq!(modes(tmux.directory(), "before"), modes(tmux.directory(), "after"));
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_is_restored_however_top_ends() {
    if !tmux::availability().or_skip("terminal_is_restored_however_top_ends") {
        return;
    }
    let house = House::new();
    let _server = house.open();
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
}
