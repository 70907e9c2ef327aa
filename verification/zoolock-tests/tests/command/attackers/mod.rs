//! Attacks (docs/SECURITY.md): no secret leaks, nothing hangs, nothing panics.

mod contenders;
mod contents;
mod server;
mod sessions;
mod strangers;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::timeout;
use zoolock_tests::ZoolockBinary;

/// Much more time than any step of these tests needs.
const BOUND: Duration = Duration::from_secs(60);

/// Returns the number of panics in all threads of this process since the first call.
fn panics() -> usize {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let default_hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            default_hook(panic);
        }));
    });
    PANICS.load(Ordering::Relaxed)
}

/// Returns whether a character can control a terminal, or change the order in which text is shown.
fn is_unsafe(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t')
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Runs the command on a server. Returns its exit code and its whole output.
async fn output(address: &str, zoolock: &ZoolockBinary, args: &[&str]) -> (Option<i32>, String) {
    let mut command = zoolock.command(args);
    command.env("ZOOLOCK_CONNECT", address);
    let done = timeout(BOUND, command.output()).await.expect("command ended").expect("command started");
    let output = [done.stdout, done.stderr].concat();
    (done.status.code(), String::from_utf8_lossy(&output).into_owned())
}

/// Runs the command with each list of arguments, and returns the outputs. Checks that no command panics or prints an
/// unsafe character.
async fn safe_outputs(address: &str, zoolock: &ZoolockBinary, commands: &[&[&str]]) -> Vec<String> {
    let mut outputs = Vec::new();
    for args in commands {
        let (code, output) = output(address, zoolock, args).await;
        assert_ne!(code, Some(101), "{args:?} panics: {output}");
        assert!(!output.contains(is_unsafe), "{args:?}: {output:?}");
        outputs.push(output);
    }
    outputs
}
