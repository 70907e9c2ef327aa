//! Formats changes of a lock as lines.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;
use zoolock::admin::HistoryEvent;
use zoolock::observe::{Change, Diff};

use crate::base::duration::format_duration;
use crate::base::reporter::escape_unprintable;
use crate::render::history::describe_origin;
use crate::render::status::describe_contender;
use crate::render::text::{TextStyle, describe_role};

const GREEN: &str = "32";
const YELLOW: &str = "33";
const RED: &str = "1;31";

/// A change, and who broke the lock.
#[derive(Serialize)]
pub(super) struct WatchEvent {
    #[serde(flatten)]
    pub(super) diff: Diff,
    /// The break in the history, for the event `broken`.
    #[serde(serialize_with = "serialize_party")]
    pub(super) by: Option<HistoryEvent>,
}

fn serialize_party<S: serde::Serializer>(
    event: &Option<HistoryEvent>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    event.as_ref().map(|event| &event.by).serialize(serializer)
}

/// Formats an event as one line for people, with the time in the local time zone.
pub(super) fn format_text(WatchEvent { diff: event, by }: &WatchEvent, style: &TextStyle) -> String {
    let mut details = Vec::new();
    let at_least = if event.at_least { "at least " } else { "" };
    let lasted = |what: &str, time: Duration| format!("{what} {at_least}{}", format_duration(time));
    if let Some(contender) = &event.contender {
        details.push(format!("{} ({})", describe_contender(contender), describe_role(contender)));
    }
    if let Some(place) = event.place {
        details.push(format!("position {place} of {}", event.waiting));
    }
    details.extend(event.waited.map(|time| lasted("waited", time)));
    details.extend(event.held.map(|time| lasted("held", time)));
    match event.event {
        Change::Holds | Change::Granted => {
            let token = event.contender.as_ref().and_then(|contender| contender.token.as_ref());
            details.extend(token.map(|token| format!("token {token}")));
        }
        Change::Gone if event.held.is_none() => {
            details.push("may have held the lock between two reads".to_owned())
        }
        _ => {}
    }
    if let Some(count) = event.count {
        details.push(format!(
            "up to {count} contenders came and went between two reads (locks created below this one count, too)"
        ));
    }
    details.extend(by.as_ref().map(|by| format!("by {}", describe_origin(by))));
    details.extend(event.message.as_deref().map(escape_unprintable));
    let line = format!("{}  {:<11}  {}", time_of_day(event.at), event.event, details.join(" · "));
    let color = match event.event {
        Change::Granted => GREEN,
        Change::Gone | Change::Broken | Change::Unseen | Change::Asked => YELLOW,
        Change::Crashed | Change::Panicked | Change::Unreachable => RED,
        _ => return format!("{}\n", style.cut(line.trim_end())),
    };
    // Colors are added after the cut, because escape sequences take no columns.
    format!("{}\n", style.colorize(color, &style.cut(line.trim_end())))
}

fn time_of_day(time: SystemTime) -> String {
    let zoned = Timestamp::try_from(time).ok().map(|stamp| stamp.to_zoned(TimeZone::system()));
    zoned.map_or_else(|| "--:--:--".to_owned(), |zoned| zoned.strftime("%H:%M:%S").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::test_snapshots::{entry, ticket};
    use zoolock::internals::diff;

    #[test]
    fn line_shows_contender_and_escapes_text() {
        let line = |diff: &Diff| {
            let event = WatchEvent { diff: diff.clone(), by: None };
            format_text(&event, &TextStyle::plain())[10..].to_owned()
        };
        let mut hostile = entry("lock-0000000001", "0.1");
        hostile.note = Some("\x1b[2Jgone\nfake".to_owned());
        let who = "host pid 7: \\u{1b}[2Jgone\\nfake (exclusive)";
        let mut holder = diff(Change::Holds, Some(hostile));
        assert_eq!(line(&holder), format!("holds        {who} · token {}\n", ticket("0.1")));
        (holder.event, holder.held, holder.at_least) =
            (Change::Gone, Some(Duration::from_millis(1_500)), true);
        assert_eq!(line(&holder), format!("gone         {who} · held at least 1.5s\n"));
        let mut outage = diff(Change::Unreachable, None);
        outage.message = Some("no\x07answer".to_owned());
        assert_eq!(line(&outage), "unreachable  no\\u{7}answer\n");
        assert_eq!(line(&diff(Change::Back, None)), "back\n");
    }
}
