//! Pictures of the queue and the history of a lock. A table on the same page shows the same facts.

use maud::{Markup, html};
use zoolock::{Entry, Snapshot};

use super::elements::{describe_entry, format_count};
use crate::base::reporter::escape_unprintable;
use crate::ui::clock::{format_span, time_of_day};
use crate::ui::history::PastHold;

/// Maximum number of holders and of waiters in the picture of a queue.
const HOLDERS: usize = 4;
const WAITERS: usize = 12;
/// Size of the boxes, distance between them, and maximum length of names in letters.
const WIDTH: usize = 168;
const HEIGHT: usize = 62;
const GAP: usize = 34;
const LETTERS: usize = 17;

/// Maximum number of lanes of a timeline, and the height of a lane. Each lane shows the holds of
/// one of the last holders.
const LANES: usize = 8;
const LANE: u64 = 30;
/// Width of the names, width of the bars, and maximum length of names in letters.
const NAMES: u64 = 220;
const BARS: u64 = 620;
const NAME_LETTERS: usize = 28;

/// Draws the head of a queue, from left to right.
pub(super) fn queue(lock: &Snapshot) -> Markup {
    let holders: Vec<&Entry> = lock.holders().collect();
    let (shown, hidden) = (holders.len().min(HOLDERS), holders.len().saturating_sub(HOLDERS));
    let waiters = &lock.waiters[..lock.waiters.len().min(WAITERS)];
    let more = lock.waiting.saturating_sub(waiters.len());
    let rows = shown.max(1) + usize::from(hidden > 0);
    let columns = 1 + waiters.len() + usize::from(more > 0);
    let (width, height) = (columns * (WIDTH + GAP) - GAP + 4, rows * (HEIGHT + 10) - 10 + 4);
    let middle = 2 + (rows * (HEIGHT + 10) - 10 - HEIGHT) / 2;
    let x = |column: usize| 2 + column * (WIDTH + GAP);
    html! {
        figure.picture {
            div.scroll role="region" aria-label="Picture of the queue" tabindex="0" {
                svg.queue viewBox={ "0 0 " (width) " " (height) } width=(width) height=(height) role="img"
                    aria-label={ "A queue: " (format_count(holders.len())) " hold, " (format_count(lock.waiting)) " wait" }
                {
                    @for (at, holder) in holders.iter().take(shown).enumerate() {
                        (draw_contender(x(0), 2 + at * (HEIGHT + 10), holder, "holds", "holds"))
                    }
                    @if holders.is_empty() {
                        rect.box.free x=(x(0)) y=(middle) width=(WIDTH) height=(HEIGHT) rx="8" {}
                        text.quiet x=(x(0) + WIDTH / 2) y=(middle + 36) text-anchor="middle" { "free" }
                    }
                    @if hidden > 0 {
                        text.quiet x=(x(0) + 12) y=(2 + shown * (HEIGHT + 10) + 36) { "and " (format_count(hidden)) " more hold" }
                    }
                    @for (at, waiter) in waiters.iter().enumerate() {
                        (arrow(x(at + 1), middle + HEIGHT / 2))
                        (draw_contender(x(at + 1), middle, waiter, "waits", &(at + 1).to_string()))
                    }
                    @if more > 0 {
                        (arrow(x(waiters.len() + 1), middle + HEIGHT / 2))
                        text.quiet x=(x(waiters.len() + 1) + 4) y=(middle + 36) { "and " (format_count(more)) " more" }
                    }
                }
            }
            figcaption { "Holders are on the left. Each waiter waits for the contenders to its left." }
        }
    }
}

fn draw_contender(x: usize, y: usize, entry: &Entry, class: &str, word: &str) -> Markup {
    let host = entry.host.as_deref().map_or_else(|| "–".to_owned(), escape_unprintable);
    html! {
        g {
            title { (describe_entry(entry)) }
            rect class={ "box " (class) } x=(x) y=(y) width=(WIDTH) height=(HEIGHT) rx="8" {}
            text class={ "tag " (class) } x=(x + WIDTH - 10) y=(y + 19) text-anchor="end" { (word) }
            // The nested `svg` cuts text at the edge of the box, because wide letters may exceed the box.
            svg x=(x + 12) y=(y) width=(WIDTH - 16) height=(HEIGHT) {
                text.name x="0" y="37" { (cut(&describe_entry(entry), LETTERS)) }
                text.host x="0" y="53" { (cut(&host, LETTERS + 4)) }
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

/// Draws the holds of a lock over time, with one lane for each of the last holders.
pub(super) fn timeline(holds: &[PastHold], now: u64) -> Markup {
    let mut lanes: Vec<&str> = Vec::new();
    for hold in holds {
        if !lanes.contains(&hold.who.as_str()) {
            lanes.push(&hold.who);
        }
    }
    let others = lanes.len().saturating_sub(LANES);
    lanes.truncate(LANES);
    let lane = |hold: &PastHold| lanes.iter().position(|who| *who == hold.who);
    let shown: Vec<(usize, &PastHold)> = holds.iter().filter_map(|hold| Some((lane(hold)?, hold))).collect();
    let begin =
        shown.iter().map(|(_, hold)| hold.from_ms).min().unwrap_or(now).min(now.saturating_sub(10_000));
    let x = |ms: u64| NAMES + ms.clamp(begin, now).saturating_sub(begin) * BARS / (now - begin).max(1);
    let (width, bottom) = (NAMES + BARS + 40, LANE * lanes.len() as u64);
    html! {
        figure.picture {
            div.scroll role="region" aria-label="Picture of the history" tabindex="0" {
                svg.timeline viewBox={ "0 0 " (width) " " (bottom + 28) } width=(width) height=(bottom + 28) role="img"
                    aria-label={ "Who held the lock in the last " (format_span(now - begin)) ", as in the table below" }
                {
                    @for (ms, y) in ticks(begin, now).map(|ms| (ms, bottom)) {
                        line.grid x1=(x(ms)) x2=(x(ms)) y1="0" y2=(y + 4) {}
                        text.axis x=(x(ms)) y=(y + 20) text-anchor="middle" { (time_of_day(ms)) }
                    }
                    @for (at, who) in lanes.iter().enumerate() {
                        @let y = at as u64 * LANE;
                        line.lane x1="0" x2=(width) y1=(y + LANE) y2=(y + LANE) {}
                        svg x="4" y=(y) width=(NAMES - 8) height=(LANE) {
                            text.name x="0" y="20" { title { (who) } (cut(who, NAME_LETTERS)) }
                        }
                    }
                    @for (at, hold) in shown {
                        @let from = x(hold.from_ms);
                        @let to = x(hold.until_ms.unwrap_or(now));
                        @let bad = matches!(hold.ending, "crashed" | "broken" | "panicked") && hold.until_ms.is_some();
                        g {
                            title { (hold.who) ", " (description(hold, now)) }
                            rect class=(class(hold, bad)) x=(from) y=(at as u64 * LANE + 8) rx="3" height="14"
                                width=((to.saturating_sub(from)).max(3)) {}
                            // A cross marks a bad end, so that color is not the only sign.
                            @if bad { text.cross x=(to + 4) y=(at as u64 * LANE + 20) { "✕" } }
                        }
                    }
                }
            }
            figcaption {
                "The last " (format_span(now - begin)) "."
                @if others > 0 { " " (format_count(others)) " earlier holders are listed only in the table." }
            }
        }
    }
}

fn description(hold: &PastHold, now: u64) -> String {
    let time = format_span(hold.until_ms.unwrap_or(now).saturating_sub(hold.from_ms));
    let end = if hold.until_ms.is_some() { hold.ending } else { "holds" };
    format!("{} for {time}, {end}", time_of_day(hold.from_ms))
}

fn class(hold: &PastHold, bad: bool) -> &'static str {
    match hold.until_ms {
        None => "bar holds",
        Some(_) if bad => "bar bad",
        Some(_) => "bar",
    }
}

/// Returns the times to label on the axis: at most eight, at round steps of the clock.
fn ticks(begin: u64, now: u64) -> impl Iterator<Item = u64> {
    const STEPS: [u64; 13] = [1, 2, 5, 15, 30, 60, 120, 300, 900, 1_800, 3_600, 7_200, 14_400];
    let length = now - begin;
    let step = STEPS.into_iter().map(|seconds| seconds * 1000).find(|step| length / step <= 6);
    let step = step.unwrap_or_else(|| (length / 6).max(1));
    let first = begin.next_multiple_of(step);
    (0..8).map(move |at| first + at * step).take_while(move |ms| *ms <= now)
}

/// Cuts `text` at its end, if it has more than `letters` characters. `…` marks the cut.
pub(super) fn cut(text: &str, letters: usize) -> String {
    if text.chars().nth(letters).is_none() {
        return text.to_owned();
    }
    text.chars().take(letters - 1).chain(['…']).collect()
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
        assert!(text.contains("and 4\u{202f}988 more"), "{text}");
    }

    #[test]
    fn free_lock_has_a_picture() {
        let text = queue(&lock("/locks/x", None, vec![])).into_string();
        assert!(text.contains(">free<"), "{text}");
    }

    #[test]
    fn timeline_accepts_any_times() {
        let hold = |from_ms, until_ms| PastHold {
            node: "lock-0000000001".to_owned(),
            token: None,
            who: "ada".to_owned(),
            from_ms,
            began_before: false,
            until_ms,
            ending: "crashed",
        };
        for holds in [vec![], vec![hold(5, None)], vec![hold(99, Some(20)), hold(0, Some(u64::MAX))]] {
            let text = timeline(&holds, 50).into_string();
            assert_eq!(text.matches("<rect").count(), holds.len());
        }
        assert!(timeline(&[hold(0, Some(7))], 50).into_string().contains('✕'));
    }

    #[test]
    fn ticks_are_few_and_round() {
        for length in [10_000, 61_000, 3_599_000, 86_400_000, 31_536_000_000] {
            let ticks: Vec<u64> = ticks(1_234, 1_234 + length).collect();
            assert!((1..=8).contains(&ticks.len()), "{length}: {ticks:?}");
        }
    }

    #[test]
    fn long_name_is_cut_between_letters() {
        assert_eq!((cut("prüfung", 7), cut("prüfung", 4)), ("prüfung".to_owned(), "prü…".to_owned()));
    }
}
