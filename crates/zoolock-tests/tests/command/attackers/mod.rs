//! What somebody tries who is not meant to (docs/SECURITY.md): nothing leaks, nothing hangs, nothing panics.

mod contenders;
mod contents;
mod server;
mod sessions;
mod strangers;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Much more than anything here may take.
const BOUND: Duration = Duration::from_secs(60);

/// How many panics there were in any thread of this process; counts from the first call on. Those that the client crate
/// has on some answers are caught, and are errors.
fn panics() -> usize {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let told = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !panic.location().is_some_and(|place| place.file().contains("/zookeeper-client-")) {
                PANICS.fetch_add(1, Ordering::Relaxed);
                told(panic);
            }
        }));
    });
    PANICS.load(Ordering::Relaxed)
}

/// What a terminal obeys, or a reader does not see as it is.
fn is_obeyed(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t')
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
