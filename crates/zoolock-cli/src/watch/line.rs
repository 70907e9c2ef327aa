//! Formats events as lines.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::story::Event;
use crate::base::duration::humane;
use crate::base::talk::printable;
use crate::render::status::who;
use crate::render::text::{Look, document_line, fitted, role};

const GREEN: &str = "32";
const YELLOW: &str = "33";
const RED: &str = "1;31";

/// Formats an event as one line of JSON, as `docs/JSON.md` describes it.
pub(super) fn json(event: &Event) -> String {
    document_line(event)
}

/// Formats an event as one line for people, with the time in the local time zone.
pub(super) fn text(event: &Event, look: &Look) -> String {
    let mut details = Vec::new();
    let at_least = if event.at_least { "at least " } else { "" };
    let lasted = |what: &str, ms: u64| format!("{what} {at_least}{}", humane(Duration::from_millis(ms)));
    if let Some(contender) = &event.contender {
        details.push(format!("{} ({})", who(contender), role(contender)));
    }
    if let Some(place) = event.place {
        details.push(format!("{place} of {} in line", event.waiting));
    }
    details.extend(event.waited_ms.map(|ms| lasted("waited", ms)));
    details.extend(event.held_ms.map(|ms| lasted("held", ms)));
    match event.event {
        "holds" | "granted" => {
            let token = event.contender.as_ref().and_then(|contender| contender.token.as_ref());
            details.extend(token.map(|token| format!("token {token}")));
        }
        "gone" if event.held_ms.is_none() => details.push("may have held it in between".to_owned()),
        _ => {}
    }
    if let Some(count) = event.count {
        details.push(format!(
            "up to {count} came and went between two looks, or are locks that were made below"
        ));
    }
    details.extend(event.message.as_deref().map(printable));
    let line = format!("{}  {:<8}  {}", time_of_day(event.at_ms), event.event, details.join(" · "));
    let color = match event.event {
        "granted" => GREEN,
        "gone" | "broken" | "unseen" => YELLOW,
        "crashed" | "panicked" | "lost" => RED,
        _ => return format!("{}\n", fitted(line.trim_end(), look.width)),
    };
    // Colored after the cut, since escape sequences take no columns.
    format!("{}\n", look.painted(color, &fitted(line.trim_end(), look.width)))
}

fn time_of_day(ms: u64) -> String {
    let stamp = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let zoned = stamp.map(|stamp| stamp.to_zoned(TimeZone::system()));
    zoned.map_or_else(|| "--:--:--".to_owned(), |zoned| zoned.strftime("%H:%M:%S").to_string())
}

#[cfg(test)]
mod tests {
    use super::super::story::{Moment, Story};
    use super::*;
    use crate::base::sample::{entry, lock};

    #[test]
    fn a_line_says_who_and_how_long_and_escapes_what_others_wrote() {
        let mut story = Story::new("/locks/x");
        let mut hostile = entry("lock-0000000001", "0.1");
        hostile.note = Some("\x1b[2Jgone\nfake".to_owned());
        let mut now = Moment::now();
        let lines = |events: Vec<Event>| -> Vec<String> {
            events.iter().map(|event| text(event, &Look::plain())[10..].to_owned()).collect()
        };
        let held = lock("/locks/x", Some(hostile), vec![]);
        let who = "host pid 7: \\u{1b}[2Jgone\\nfake (alone)";
        assert_eq!(lines(story.see(&held, Some(1), now)), [format!("holds     {who} · token 0.1\n")]);
        now.at += Duration::from_millis(1_500);
        let free = lock("/locks/x", None, vec![]);
        assert_eq!(
            lines(story.see(&free, Some(1), now)),
            [format!("gone      {who} · held at least 1.5s\n")]
        );
        let lost = story.lose_sight("no\x07answer", now).into_iter().collect();
        assert_eq!(lines(lost), ["lost      no\\u{7}answer\n"]);
        assert_eq!(lines(story.see(&free, Some(1), now)), ["back\n"]);
    }
}
