//! Describes the events in the history of a lock.

use zoolock::admin::{HistoryEvent, HistoryKind, Party, PreviousEnd, Snapshot};

use crate::base::reporter::escape_unprintable;
use crate::render::status::describe_program;

/// Adds how the previous holder ended, if only the history tells it.
///
/// The `held` marker of the present holder hides the marker of the previous one. But a holder that finds a crash records
/// it in the history, after its own grant.
pub(crate) fn complete_previous(lock: &mut Snapshot, history: &[HistoryEvent]) {
    let granted = lock.holder.as_ref().and_then(|holder| holder.held_since);
    let is_crash = |event: &&HistoryEvent| is_found(event) && granted.is_some() && event.at >= granted;
    if lock.previous == PreviousEnd::Unknown
        && let Some(event) = history.iter().rfind(is_crash)
    {
        lock.previous = match event.event {
            HistoryKind::Panicked => PreviousEnd::Panicked,
            _ => PreviousEnd::Crashed,
        };
        lock.previous_number = event.number;
    }
}

/// Returns whether a holder found this event, and no operator caused it.
fn is_found(event: &HistoryEvent) -> bool {
    matches!(event.event, HistoryKind::Crashed | HistoryKind::Panicked)
}

/// Formats the time of an event, in the time zone of this machine and with its offset from UTC.
pub(crate) fn format_time(event: &HistoryEvent) -> String {
    let time = event.at.and_then(|time| jiff::Timestamp::try_from(time).ok());
    let local = time.map(|time| time.to_zoned(jiff::tz::TimeZone::system()));
    local.map_or_else(|| "-".to_owned(), |time| time.strftime("%Y-%m-%d %H:%M:%S %:z").to_string())
}

/// Formats an event as one line: its time, what happened, to which contender, and by whom.
pub(crate) fn format_line(event: &HistoryEvent) -> String {
    let (contender, origin) = (describe_contender(event), describe_origin(event));
    format!("{} {}: {contender}; {origin}", format_time(event), event.event)
}

/// Describes the contender of an event: its number, and what is known of its process.
pub(crate) fn describe_contender(event: &HistoryEvent) -> String {
    let number = event.number.map_or_else(|| "-".to_owned(), |number| format!("number {number}"));
    let waited = if event.held == Some(false) { ", which waited" } else { "" };
    let said = match describe_process(&event.contender, event.contender.note.as_deref()) {
        Some(process) => format!("{number}, {process}{waited}"),
        None => format!("{number}{waited}"),
    };
    escape_unprintable(&said)
}

/// Describes who caused or found an event.
pub(crate) fn describe_origin(event: &HistoryEvent) -> String {
    let by = &event.by;
    let note = by.note.as_deref();
    if is_found(event) {
        let process = describe_process(by, note).unwrap_or_else(|| "an unknown holder".to_owned());
        return escape_unprintable(&format!("found by {process}"));
    }
    let mut said = by.user.clone().unwrap_or_else(|| "unknown user".to_owned());
    if let Some(host) = &by.host {
        said.push_str(&format!(" on {host}"));
    }
    if let Some(how) = by.command.as_ref().or(by.program.as_ref()) {
        said.push_str(&format!(", {how}"));
    }
    if let Some(reason) = note {
        said.push_str(&format!(": {reason}"));
    }
    escape_unprintable(&said)
}

/// Describes a process in a few words; `None` if nothing is known of it.
fn describe_process(party: &Party, note: Option<&str>) -> Option<String> {
    let mut words = Vec::new();
    match (&party.library, &party.host) {
        (Some(library), Some(host)) => words.push(format!("{library} at {host}")),
        (library, host) => words.extend(library.clone().or_else(|| host.clone())),
    }
    words.extend(party.pid.map(|pid| format!("pid {pid}")));
    let describe = |program: &String| format!("({})", describe_program(program, party.runs_program));
    words.extend(party.program.as_ref().map(describe));
    let said = words.join(" ");
    let said = match note {
        Some(note) if said.is_empty() => note.to_owned(),
        Some(note) => format!("{said}: {note}"),
        None => said,
    };
    Some(said).filter(|said| !said.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::test_snapshots::{entry, lock};
    use crate::base::unix_time::time_at;

    /// Parses an event, because other crates cannot create one.
    fn event(text: &str) -> HistoryEvent {
        serde_json::from_str(text).expect("an event")
    }

    #[test]
    fn crash_names_holder_and_finder() {
        let crash = event(
            r#"{"event":"crashed","path":"/locks/x","number":17,"held":true,
                "contender":{"host":"web-3","pid":4711},"by":{"host":"web-2","pid":77,"program":"job","note":"standby"}}"#,
        );
        assert_eq!(describe_contender(&crash), "number 17, web-3 pid 4711");
        assert_eq!(describe_origin(&crash), "found by web-2 pid 77 (job): standby");
        assert_eq!(format_time(&crash), "-");
        let unknown = event(r#"{"event":"panicked","path":"/locks/x","number":17}"#);
        assert_eq!(describe_contender(&unknown), "number 17");
        assert_eq!(describe_origin(&unknown), "found by an unknown holder");
    }

    #[test]
    fn crash_in_the_history_completes_the_lock() {
        let mut holder = entry("lock-0000000018", "0.2.0");
        holder.held_since = Some(time_at(5_000));
        let held = lock("/locks/x", Some(holder), vec![]);
        let mut crash = event(r#"{"event":"crashed","path":"/locks/x","number":17}"#);
        let completed = |lock: &Snapshot, event: &HistoryEvent| {
            let mut lock = lock.clone();
            complete_previous(&mut lock, std::slice::from_ref(event));
            (lock.previous, lock.previous_number)
        };
        crash.at = Some(time_at(4_000));
        assert_eq!(
            completed(&held, &crash),
            (PreviousEnd::Unknown, None),
            "an earlier holder found this crash"
        );
        crash.at = Some(time_at(5_000));
        assert_eq!(completed(&held, &crash), (PreviousEnd::Crashed, Some(17)));
        let mut recorded = held;
        (recorded.previous, recorded.previous_number) = (PreviousEnd::Clean, Some(17));
        assert_eq!(completed(&recorded, &crash), (PreviousEnd::Clean, Some(17)));
    }

    #[test]
    fn contender_names_library_or_running_program() {
        let of = |contender: &str| {
            let text = format!(r#"{{"event":"asked","path":"/locks/x","number":5,"contender":{contender}}}"#);
            describe_contender(&event(&text))
        };
        assert_eq!(of(r#"{"library":"kazoo","note":"host-7"}"#), "number 5, kazoo: host-7");
        assert_eq!(of(r#"{"library":"Curator","host":"10.0.0.7"}"#), "number 5, Curator at 10.0.0.7");
        let run = r#"{"host":"web-3","pid":7,"program":"sh","runs_program":true}"#;
        assert_eq!(of(run), "number 5, web-3 pid 7 (run of sh)");
    }

    #[test]
    fn time_has_the_offset_of_its_zone() {
        let mut event = event(r#"{"event":"asked","path":"/locks/x"}"#);
        event.at = Some(time_at(1_767_323_045_000));
        let time = format_time(&event);
        let timestamp: jiff::Timestamp =
            time.replacen(' ', "T", 1).replace(' ', "").parse().expect("a timestamp");
        assert_eq!(timestamp.as_millisecond(), 1_767_323_045_000, "{time}");
    }

    #[test]
    fn break_names_user_command_and_reason() {
        let broken = event(
            r#"{"event":"broken","path":"/locks/x","number":18,"held":false,
                "by":{"user":"ann","host":"ops-1","pid":9,"program":"zoolock","command":"zoolock break x","note":"st\u001buck"}}"#,
        );
        assert_eq!(describe_contender(&broken), "number 18, which waited");
        assert_eq!(describe_origin(&broken), "ann on ops-1, zoolock break x: st\\u{1b}uck");
        let nobody = event(r#"{"event":"asked","path":"/locks/x","number":18,"by":{"host":"ops-1"}}"#);
        assert_eq!(describe_origin(&nobody), "unknown user on ops-1");
    }
}
