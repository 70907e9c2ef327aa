//! The picture of the queue of a lock. A table on the same page shows the same facts.

use maud::{Markup, html};
use zoolock::admin::{Entry, Role, Snapshot};

use super::elements::{describe_entry, describe_free, format_count, format_counted, short_title};
use crate::base::reporter::escape_unprintable;
use crate::render::columns::{cut_end, wrap};
use crate::render::text::describe_role;

/// Maximum number of holders and of waiters in the picture of a queue.
const HOLDERS: usize = 4;
const WAITERS: usize = 4;
/// Size of the boxes, distance between them, and maximum length of names in letters.
const WIDTH: usize = 168;
const HEIGHT: usize = 62;
const GAP: usize = 34;
const LETTERS: usize = 17;

/// Height of the upper part of a semaphore's box, and of the line of a holder.
const SEMAPHORE_HEAD: usize = 52;
const LINE: usize = 18;

/// Draws the head of a queue, from left to right. A semaphore is one box with its holders.
pub(super) fn queue(lock: &Snapshot) -> Markup {
    let holders: Vec<&Entry> = lock.holders().collect();
    let (shown, hidden) = (holders.len().min(HOLDERS), holders.len().saturating_sub(HOLDERS));
    let is_semaphore = lock.permits.is_some()
        || lock.queue().any(|entry| entry.role == Role::Permit)
        || (lock.foreign_semaphore.is_some() && holders.is_empty());
    let described = match &lock.foreign_semaphore {
        Some(foreign) => foreign.to_string(),
        None => format!("{} hold", format_count(holders.len())),
    };
    let waiters = &lock.waiters[..lock.waiters.len().min(WAITERS)];
    let more = lock.waiting.saturating_sub(waiters.len());
    let rows = shown.max(1) + usize::from(hidden > 0);
    let columns = 1 + waiters.len() + usize::from(more > 0);
    let lines = shown + usize::from(hidden > 0);
    let head = if is_semaphore { SEMAPHORE_HEAD + lines * LINE } else { rows * (HEIGHT + 10) - 10 };
    let (width, height) = (columns * (WIDTH + GAP) - GAP + 4, head.max(HEIGHT) + 4);
    let middle = 2 + (head.max(HEIGHT) - HEIGHT) / 2;
    let x = |column: usize| 2 + column * (WIDTH + GAP);
    html! {
        figure.picture {
            div.scroll role="region" aria-label="Picture of the queue" tabindex="0" {
                svg.queue viewBox={ "0 0 " (width) " " (height) } width=(width) height=(height) role="img"
                    aria-label={
                        "A queue: " (described) ", " (format_count(lock.waiting)) " wait"
                        @if !lock.unread.is_empty() { ", in the part that can be read" }
                    }
                {
                    @if is_semaphore {
                        (draw_semaphore(lock, &holders[..shown], hidden, head))
                    } @else {
                        @for (at, holder) in holders.iter().take(shown).enumerate() {
                            (draw_contender(x(0), 2 + at * (HEIGHT + 10), holder, "holds", "holds"))
                        }
                        @if holders.is_empty() {
                            rect.box.free x=(x(0)) y=(middle) width=(WIDTH) height=(HEIGHT) rx="8" {}
                            @let lines = wrap(describe_free(lock), LETTERS + 4, 2);
                            @for (at, line) in lines.iter().enumerate() {
                                @let y = middle + 44 - 8 * lines.len() + 16 * at;
                                text.quiet x=(x(0) + WIDTH / 2) y=(y) text-anchor="middle" { (line) }
                            }
                        }
                        @if hidden > 0 {
                            text.quiet x=(x(0) + 12) y=(2 + shown * (HEIGHT + 10) + 36) { "and " (format_count(hidden)) " more hold" }
                        }
                    }
                    @for (at, waiter) in waiters.iter().enumerate() {
                        (arrow(x(at + 1), middle + HEIGHT / 2))
                        @let position = (at + 1).to_string();
                        @let word = if is_semaphore { format!("{position} · {}", describe_role(waiter)) } else { position };
                        (draw_contender(x(at + 1), middle, waiter, "waits", &word))
                    }
                    @if more > 0 {
                        (arrow(x(waiters.len() + 1), middle + HEIGHT / 2))
                        text.quiet x=(x(waiters.len() + 1) + 4) y=(middle + 36) { "and " (format_count(more)) " more" }
                    }
                }
            }
            figcaption {
                @if is_semaphore { "The semaphore is on the left, with its holders. Each waiter waits for free permits, and for the waiters to its left." }
                @else { "Holders are on the left. Each waiter waits for the contenders to its left." }
            }
        }
    }
}

/// Draws a semaphore as one box: its permits, and its first holders. Of a semaphore of another client
/// library, only the leases and the waiters are known.
fn draw_semaphore(lock: &Snapshot, holders: &[&Entry], hidden: usize, height: usize) -> Markup {
    let held: u64 = lock.holders().map(|holder| u64::from(holder.weight)).sum();
    let at_least = if lock.unread.is_empty() { "" } else { "≥ " };
    let permits = match (&lock.foreign_semaphore, lock.permits) {
        (Some(foreign), _) => {
            let waits = if lock.waiting == 1 { "waits" } else { "wait" };
            let leases = format_counted(foreign.leases, "lease", "leases");
            format!("{leases}, {} {waits}", format_count(lock.waiting))
        }
        (None, Some(permits)) => format!("{at_least}{held} of {permits} permits held"),
        (None, None) => format!("{at_least}{held} permits held"),
    };
    let line = |at: usize| 2 + SEMAPHORE_HEAD + at * LINE + 4;
    html! {
        g {
            rect.box.semaphore x="2" y="2" width=(WIDTH) height=(height) rx="8" {}
            text.tag x=(WIDTH - 8) y="21" text-anchor="end" { "semaphore" }
            svg x="14" y="0" width=(WIDTH - 16) height=(height + 4) {
                text.name x="0" y="40" { (permits) }
                @for (at, holder) in holders.iter().enumerate() {
                    text.host x="0" y=(line(at)) {
                        title { (describe_entry(holder)) ", " (describe_role(holder)) @if holder.revoked { ", asked to release" } }
                        (cut_end(&format!("{} × {}", holder.weight, short_title(holder)), LETTERS + 4))
                    }
                }
                @if hidden > 0 { text.host x="0" y=(line(holders.len())) { "and " (format_count(hidden)) " more holders" } }
            }
        }
    }
}

/// Draws a contender. The words in the upper right corner tell its position, or that it was asked to release the lock.
fn draw_contender(x: usize, y: usize, entry: &Entry, class: &str, word: &str) -> Markup {
    let host = entry.host.as_deref().map_or_else(|| "–".to_owned(), escape_unprintable);
    html! {
        g {
            title { (describe_entry(entry)) }
            rect class={ "box " (class) } x=(x) y=(y) width=(WIDTH) height=(HEIGHT) rx="8" {}
            text class={ "tag " (class) } x=(x + WIDTH - 10) y=(y + 19) text-anchor="end" {
                (word) @if entry.revoked { ", asked" }
            }
            // The nested `svg` cuts text at the edge of the box, because wide letters may exceed the box.
            svg x=(x + 12) y=(y) width=(WIDTH - 16) height=(HEIGHT) {
                text.name x="0" y="37" { (cut_end(&short_title(entry), LETTERS)) }
                text.host x="0" y="53" { (cut_end(&host, LETTERS + 4)) }
            }
        }
    }
}

/// Draws an arrow from the box at `x` to the box on its left.
fn arrow(x: usize, y: usize) -> Markup {
    let (from, to) = (x - 5, x - GAP + 7);
    html! {
        path.arrow d={ "M" (from) " " (y) "H" (to) "m6 -5l-6 5l6 5" } fill="none" {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::test_snapshots::{entry, lock};

    #[test]
    fn picture_shows_only_first_waiters() {
        let waiters = (1..=5_000).map(|at| entry(&format!("lock-{at:010}"), &format!("0.{at}.0"))).collect();
        let text = queue(&lock("/locks/x", Some(entry("lock-0000000000", "0.0.0")), waiters)).into_string();
        assert_eq!(text.matches("<rect").count(), 1 + WAITERS);
        assert!(text.contains("and 4\u{202f}996 more"), "{text}");
    }

    #[test]
    fn semaphore_is_one_box_with_its_permits() {
        let permit = |number: u32, weight: u32| {
            let mut entry = entry(&format!("permit-{number:010}"), &format!("0.{number}.0"));
            (entry.role, entry.weight, entry.note) = (Role::Permit, weight, Some(format!("job {number}")));
            entry
        };
        let mut pool = lock("/locks/x", Some(permit(0, 2)), vec![permit(9, 4)]);
        pool.permits = Some(9);
        pool.beside = (1..=5).map(|number| permit(number, 1)).collect();
        let text = queue(&pool).into_string();
        assert_eq!(text.matches("<rect").count(), 2, "{text}");
        for words in [">7 of 9 permits held<", "2 × job 0", ">and 2 more holders<", ">1 · 4 permits<"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        (pool.holder, pool.beside) = (None, vec![]);
        assert!(queue(&pool).into_string().contains(">0 of 9 permits held<"));
    }

    #[test]
    fn asked_contender_is_marked() {
        let mut holder = entry("lock-0000000000", "0.0.0");
        holder.revoked = true;
        let text = queue(&lock("/locks/x", Some(holder), vec![])).into_string();
        assert!(text.contains(">holds, asked<"), "{text}");
    }

    #[test]
    fn free_lock_has_a_picture() {
        let mut lock = lock("/locks/x", None, vec![]);
        let text = queue(&lock).into_string();
        assert!(text.contains(">free<"), "{text}");
        lock.unread.push("leases".to_owned());
        let text = queue(&lock).into_string();
        assert!(text.contains(">no holder in the part<") && !text.contains(">free<"), "{text}");
    }
}
