//! Describes contenders in a limited number of columns.

use zoolock::admin::{Entry, Snapshot};

use crate::observe::longest_holder;
use crate::render::columns::{cut_end, width};
use crate::render::status::{describe_client, note};

/// Minimum width of the description of a client whose note does not fit.
const MIN_CLIENT: usize = 6;

/// Describes a contender in at most `columns` columns. `others` is a text about the other holders.
///
/// If the text is too long, the program gives way first, then the process, then the end of the host. The mark of a
/// request to release and the other holders stay. The note is cut last.
pub(super) fn fit_contender(contender: &Entry, others: &str, columns: usize) -> String {
    let note = note(contender).map_or(String::new(), |note| format!(": {note}"));
    let tail = format!("{}{others}", if contender.revoked { ", asked to release" } else { "" });
    let forms = forms(contender);
    if note.is_empty() && tail.is_empty() {
        return cut_end(&forms[0], columns);
    }
    let mut texts = forms.iter().map(|client| cut_end(&format!("{client}{tail}{note}"), usize::MAX));
    if let Some(fitting) = texts.find(|text| width(text) <= columns) {
        return fitting;
    }
    let room = columns.saturating_sub(width(&tail));
    let note_width = width(&cut_end(&note, usize::MAX));
    let client =
        cut_end(&forms[forms.len() - 1], room.saturating_sub(note_width).max(room / 4).max(MIN_CLIENT));
    cut_end(&format!("{client}{tail}{note}"), columns)
}

/// Describes the holders of a lock in at most `columns` columns. Names the holder that has held the lock longest, and
/// counts the waiters that were asked to release.
pub(super) fn fit_holders(lock: &Snapshot, columns: usize) -> String {
    match (longest_holder(lock), &lock.foreign_semaphore) {
        (Some(holder), _) => fit_contender(holder, &describe_others(lock, holder), columns),
        (None, Some(foreign)) => cut_end(&foreign.to_string(), columns),
        (None, None) => "-".to_owned(),
    }
}

/// Returns the forms of the description without the note, the longest first.
fn forms(contender: &Entry) -> Vec<String> {
    let mut forms = vec![describe_client(contender)];
    // The description of a client of another library begins with its library.
    if let Some(host) = contender.host.as_ref().filter(|host| forms[0].starts_with(host.as_str())) {
        forms.extend(contender.pid.map(|pid| format!("{host} pid {pid}")));
        forms.push(host.clone());
    }
    forms
}

/// Describes the other holders, and the waiters that were asked to release.
fn describe_others(lock: &Snapshot, holder: &Entry) -> String {
    let is_asked = |other: &&Entry| other.revoked && other.node != holder.node;
    let comma = if holder.revoked { "," } else { "" };
    let others = match (lock.beside.len(), lock.holders().filter(is_asked).count()) {
        (0, _) => String::new(),
        (others, 0) => format!("{comma} and {others} more"),
        (others, asked) => format!("{comma} and {others} more ({asked} asked to release)"),
    };
    match lock.waiters.iter().filter(is_asked).count() {
        0 => others,
        1 => format!("{others}; 1 waiter asked to release"),
        count => format!("{others}; {count} waiters asked to release"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{contender, lock};
    use super::*;

    #[test]
    fn note_keeps_its_place() {
        let mut noted = contender(1, 5);
        noted.note = Some("database move, call Ann".to_owned());
        for (columns, text) in [
            (60, "web1 pid 4001 (backup.sh): database move, call Ann"),
            (49, "web1 pid 4001: database move, call Ann"),
            (30, "web1: database move, call Ann"),
            (20, "web1: database move…"),
        ] {
            assert_eq!(fit_contender(&noted, "", columns), text);
        }
        noted.host = Some("a-very-long-host-name.example.org".to_owned());
        assert_eq!(fit_contender(&noted, "", 36), "a-very-lon…: database move, call Ann");
        assert_eq!(fit_contender(&noted, "", 30), "a-very…: database move, call …");
    }

    #[test]
    fn request_and_other_holders_stay_visible() {
        let mut asked = contender(1, 5);
        asked.revoked = true;
        assert_eq!(fit_contender(&asked, "", 31), "web1 pid 4001, asked to release");
        assert_eq!(fit_contender(&asked, "", 30), "web1, asked to release");
        assert_eq!(fit_contender(&contender(1, 5), "", 22), "web1 pid 4001 (backup…");
        let mut readers = lock("config", &[contender(1, 5)]).lock;
        readers.beside = vec![contender(2, 4), contender(3, 3)];
        assert_eq!(fit_holders(&readers, 24), "web1 pid 4001 and 2 more");
        readers.beside[1].revoked = true;
        assert_eq!(fit_holders(&readers, 44), "web1 and 2 more (1 asked to release)");
        readers.beside[1].revoked = false;
        readers.holder.as_mut().expect("a holder").revoked = true;
        assert_eq!(fit_holders(&readers, 40), "web1, asked to release, and 2 more");
    }

    #[test]
    fn asked_waiters_are_counted() {
        let mut main = lock("db/main", &[contender(1, 184), contender(2, 60), contender(3, 5)]).lock;
        main.waiters[1].revoked = true;
        assert_eq!(fit_holders(&main, 31), "web1; 1 waiter asked to release");
        main.waiters[0].revoked = true;
        let full = "web1 pid 4001 (backup.sh); 2 waiters asked to release";
        assert_eq!(fit_holders(&main, usize::MAX), full);
    }
}
