//! `zoolock ls` and `zoolock show`: holders and waiters of locks.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use zoolock::admin::{Entry, HistoryEvent, PreviousEnd, Role, Snapshot};

use crate::args::{LsArgs, ShowArgs};
use crate::base::exit::{Exit, Failure};
use crate::base::reporter::escape_unprintable;
use crate::base::server_clock;
use crate::base::unix_time::UnixTime as _;
use crate::observe::{LockList, arrange, held_since, longest_holder, longest_wait};
use crate::plan::{ConnectionSettings, Context};
use crate::render::deadlock::{format_circle, is_certain};
use crate::render::history::{complete_previous, format_line};
use crate::render::status::describe_contender;
use crate::render::text::token_or;
use crate::render::text::{
    TextStyle, and_more, describe_role, format_age, format_asked, format_held, format_json, format_table,
    format_time_since, lock_name, print, wrap_text,
};
use crate::service::connect::{connect_and_request, learn_server_clock};
use crate::verbs::missing_lock::{MissingLock, note_free_locally};

/// Maximum number of waiters of each lock among which `ls` searches for the longest wait and for deadlocks.
const SEARCHED_WAITERS: usize = 16;

/// Number of events that `show` prints.
const SHOWN_EVENTS: usize = 5;

/// The document of `zoolock show --json`.
#[derive(Serialize)]
struct ShownLock<'a> {
    #[serde(flatten)]
    lock: &'a Snapshot,
    /// `None` if it cannot be read.
    history: Option<&'a [HistoryEvent]>,
    /// The numbers that holders of permits have; `None` if they cannot be read.
    slots: Option<&'a [u32]>,
}

impl LsArgs {
    /// Runs `zoolock ls`.
    pub(crate) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let Context { global, reporter } = context;
        let prefix = self.prefix.as_deref();
        let service = &context.connection_below(prefix)?;
        let (locks, deadlocks, missing) = connect_and_request(service, reporter, async |zoolock| {
            let locks = zoolock.admin().locks(prefix, SEARCHED_WAITERS).await?;
            // The JSON document has no deadlocks.
            let deadlocks =
                if global.json { Ok(Vec::new()) } else { zoolock.admin().deadlocks_among(&locks).await };
            let missing = match locks.is_empty() {
                true => Some(MissingLock::find_prefix(zoolock, prefix, service).await?),
                false => {
                    learn_server_clock(zoolock).await;
                    None
                }
            };
            Ok((locks, deadlocks, missing))
        })
        .await?;
        let found = locks.len();
        let list = LockList::of(locks);
        let locks = self.select(&list, server_clock::now_ms());
        if global.json {
            let first_waiter = |lock: &Snapshot| {
                let mut lock = lock.clone();
                lock.waiters.truncate(1);
                lock
            };
            let locks: Vec<Snapshot> = locks.iter().copied().map(first_waiter).collect();
            print(&format_json(&BTreeMap::from([("locks", locks)])))?;
        }
        if let Some(root @ MissingLock::Root(_)) = &missing {
            return Err(root.failure("", service));
        }
        if global.json {
            return Ok(Exit::OK);
        }
        if locks.is_empty() && found > 0 {
            reporter.note(format_args!("none of the {found} locks is selected"));
            return Ok(Exit::OK);
        }
        if let Some(missing) = missing {
            let ConnectionSettings { endpoint, root, .. } = service;
            let part = prefix.map_or_else(String::new, |prefix| format!(" at or below {prefix}"));
            let (address, hint) = (endpoint.address(), missing.hint(service));
            reporter.note(format_args!("no locks{part} at {address} below {root}{hint}"));
            return Ok(Exit::OK);
        }
        let rows =
            locks.iter().map(|lock| row(lock, &service.root, self.held_by.as_deref())).collect::<Vec<_>>();
        let header = ["LOCK", "HELD", "WAITING", "LONGEST", "HOLDER"].map(str::to_owned);
        let style = TextStyle::of_stdout(global.color);
        let printed = print(&match style.width {
            Some(width) if width < WIDE => {
                let narrow = |[lock, held, waiting, _, holder]: [String; 5]| [lock, held, waiting, holder];
                format_table(&narrow(header), &rows.into_iter().map(narrow).collect::<Vec<_>>(), &style)
            }
            _ => format_table(&header, &rows, &style),
        });
        if locks.iter().any(|lock| lock.clash.is_some()) {
            reporter
                .note("! marks locks that several may hold at once: `zoolock show` says why, and what to do");
        }
        if locks.iter().any(|lock| !lock.unread.is_empty()) {
            reporter.note(
                "? marks locks that this user may not read completely: `zoolock show` names the unreadable part",
            );
        }
        let deadlocks = deadlocks.unwrap_or_else(|error| {
            reporter.note(format_args!("locks that may be in a deadlock could not be read again: {error}"));
            Vec::new()
        });
        if !deadlocks.is_empty() {
            let circles: Vec<String> =
                deadlocks.iter().map(|deadlock| format_circle(deadlock, &service.root)).collect();
            let what = if deadlocks.iter().any(is_certain) { "deadlock" } else { "possible deadlock" };
            let hint = service.command_to_copy("deadlocks");
            reporter.note(format_args!("{what}: {}; `{hint}` says how to end it", circles.join("; ")));
        }
        printed
    }

    /// Returns the listed locks in their order. `now_ms`: the current Unix time in milliseconds.
    pub(crate) fn select<'a>(&self, list: &'a LockList, now_ms: u64) -> Vec<&'a Snapshot> {
        let places = arrange(&list.locks, self.sort, false, |lock| self.contains(lock, now_ms));
        places.into_iter().map(|place| &list.locks[place].lock).collect()
    }

    fn contains(&self, lock: &Snapshot, now_ms: u64) -> bool {
        let is_on = |host: &String| lock.holders().any(|holder| holder.host.as_ref() == Some(host));
        let is_old =
            |age| held_since(lock).is_some_and(|since| since <= server_clock::ms_before(now_ms, age));
        (!self.waiting || lock.waiting > 0)
            && self.held_by.as_ref().is_none_or(is_on)
            && self.older.is_none_or(is_old)
    }
}

impl ShowArgs {
    /// Runs `zoolock show`.
    pub(crate) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let Context { global, reporter } = context;
        let name = self.name.as_str();
        let service = &context.connection_for(name)?;
        let (lock, history, slots, missing) = connect_and_request(service, reporter, async |zoolock| {
            let mut lock = zoolock.admin().snapshot(name).await?;
            // A client that may read the lock may be unable to read the history.
            let history = zoolock.admin().history(Some(name), SHOWN_EVENTS).await.ok();
            let is_semaphore = lock.holders().any(|holder| holder.role == Role::Permit);
            let slots = if is_semaphore { zoolock.admin().slots(name).await.ok() } else { Some(Vec::new()) };
            complete_previous(&mut lock, history.as_deref().unwrap_or_default());
            let missing = MissingLock::find(zoolock, name, &lock, service).await?;
            if missing.is_none() {
                learn_server_clock(zoolock).await;
            }
            Ok((lock, history, slots, missing))
        })
        .await?;
        if global.json {
            let (history, slots) = (history.as_deref(), slots.as_deref());
            print(&format_json(&ShownLock { lock: &lock, history, slots }))?;
        }
        if let Some(missing) = missing {
            return Err(missing.failure(name, service));
        }
        if global.json {
            return Ok(Exit::OK);
        }
        let style = TextStyle::of_stdout(global.color);
        let mut text = format!("{}\n", style.bold(&escape_unprintable(&lock.path)));
        if let Some(foreign) = &lock.foreign_semaphore {
            let size = lock.permits.map_or(String::new(), |permits| format!(" of {permits}"));
            let _ = writeln!(text, "  kind      semaphore of {}", foreign.library);
            let _ = writeln!(
                text,
                "  leases    {}{size}, in {}",
                foreign.leases,
                escape_unprintable(&foreign.lease_directory)
            );
            let _ = writeln!(
                text,
                "  waiting   {}, in {}",
                lock.waiting,
                escape_unprintable(&foreign.queue_directory)
            );
        }
        match &lock.holder {
            None if lock.foreign_semaphore.is_some() || lock.unusable.is_some() => {}
            None if lock.unread.is_empty() => text.push_str("  free\n"),
            None => text.push_str("  no holder in the part that can be read\n"),
            Some(holder) => {
                for holder in std::iter::once(holder).chain(&lock.beside) {
                    let token = token_or("unknown", holder);
                    let _ = writeln!(text, "  held by   {}", describe_with_stay(holder));
                    let _ = writeln!(text, "  mode      {}", describe_role(holder));
                    let _ = writeln!(text, "  held for  {}", describe_hold(holder));
                    if let Some(asked) = format_asked(holder) {
                        let _ = writeln!(text, "  asked     {}", asked.trim_start_matches("asked "));
                    }
                    let _ = writeln!(text, "  token     {}", token);
                    let _ = writeln!(text, "  znode     {}", escape_unprintable(&holder.node));
                }
            }
        }
        let held = lock.holders().map(|holder| u64::from(holder.weight)).sum::<u64>();
        match lock.permits.filter(|_| lock.foreign_semaphore.is_none()) {
            Some(permits) => _ = writeln!(text, "  permits   {held} of {permits}"),
            None if lock.holders().any(|holder| holder.role == Role::Permit) => {
                _ = writeln!(text, "  permits   {held} held; the total is not recorded");
            }
            None => {}
        }
        if let Some(slots) = slots.filter(|slots| !slots.is_empty()) {
            let slots = slots.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            let _ = writeln!(text, "  slots     {slots}");
        }
        if let Some(end) = describe_previous(&lock) {
            let _ = writeln!(text, "  last end  {end}");
        }
        if history.is_none() {
            text.push_str("  history   it cannot be read\n");
        }
        for event in history.iter().flatten() {
            let line = format!("history   {}", format_line(event));
            let _ = writeln!(text, "  {}", wrap_text(&line, 12, style.width));
        }
        for (word, message) in [("danger", &lock.clash), ("unusable", &lock.unusable)] {
            if let Some(message) = message {
                let line = format!("{word:<9} {}", escape_unprintable(message));
                let _ = writeln!(text, "  {}", wrap_text(&line, 12, style.width));
            }
        }
        for part in &lock.unread {
            let line = format!(
                "unread    {}: no permission to read it; its contenders are not shown",
                escape_unprintable(part)
            );
            let _ = writeln!(text, "  {}", wrap_text(&line, 12, style.width));
        }
        if !lock.waiters.is_empty() {
            // The column with long text comes last, because lines are cut at their end and the token must be complete.
            let header = ["", "FOR", "TOKEN", "WAITING"].map(str::to_owned);
            let rows = lock
                .waiters
                .iter()
                .enumerate()
                .map(|(index, waiter)| {
                    [
                        (index + 1).to_string(),
                        format_age(waiter).unwrap_or_else(|| "-".to_owned()),
                        token_or("-", waiter),
                        format!("{} ({})", describe_in_list(waiter), describe_role(waiter)),
                    ]
                })
                .collect::<Vec<_>>();
            text.push('\n');
            text.push_str(&format_table(&header, &rows, &style));
        }
        let printed = print(&text);
        if lock.holder.is_none() && lock.foreign_semaphore.is_none() && lock.unread.is_empty() {
            note_free_locally(name, service, reporter);
        }
        printed
    }
}

/// Describes how the previous holder ended, if that is recorded.
fn describe_previous(lock: &Snapshot) -> Option<String> {
    match (lock.previous, lock.previous_number) {
        (word, Some(number)) => Some(format!("{word} (number {number}, the last that is recorded)")),
        (PreviousEnd::Unknown, None) => None,
        (word, None) => Some(word.to_string()),
    }
}

/// Returns the row of a lock. Names the holder that has held it longest. If `host` is given, names one on this host.
fn row(lock: &Snapshot, root: &str, host: Option<&str>) -> [String; 5] {
    let on_host = host.and_then(|host| lock.holders().find(|holder| holder.host.as_deref() == Some(host)));
    let (held, holder) = match on_host.or_else(|| longest_holder(lock)) {
        Some(holder) => {
            let others = and_more(lock.beside.len());
            (format_held(holder).unwrap_or_else(|| "-".to_owned()), describe_in_list(holder) + &others)
        }
        None => {
            let foreign = lock.foreign_semaphore.as_ref();
            let nobody = if lock.unusable.is_some() { "unusable" } else { "-" };
            ("-".to_owned(), foreign.map_or_else(|| nobody.to_owned(), ToString::to_string))
        }
    };
    let mark = match (&lock.clash, lock.unread.is_empty()) {
        (Some(_), _) => "! ",
        (None, false) => "? ",
        (None, true) => "",
    };
    let longest = longest_wait(lock).and_then(format_time_since).unwrap_or_else(|| "-".to_owned());
    [
        escape_unprintable(lock_name(&lock.path, root)),
        held,
        lock.waiting.to_string(),
        longest,
        format!("{mark}{holder}"),
    ]
}

/// Describes how long a holder has held the lock, and how long it has been in the queue.
fn describe_hold(holder: &Entry) -> String {
    match (holder.held_since.unix_ms(), format_held(holder), format_age(holder)) {
        (Some(_), Some(held), Some(age)) if held != age => format!("{held}; joined the queue {age} ago"),
        (Some(_), Some(held), _) => held,
        (None, _, Some(age)) => {
            format!("at most {age}, since it joined the queue; the time of the grant is not recorded")
        }
        _ => "unknown".to_owned(),
    }
}

fn describe_in_list(entry: &Entry) -> String {
    let asked = format_asked(entry).map_or(String::new(), |asked| format!("{asked}; "));
    asked + &describe_with_stay(entry)
}

fn describe_with_stay(entry: &Entry) -> String {
    let stays = if entry.persistent { "; persistent znode, remains until it is deleted" } else { "" };
    describe_contender(entry) + stays
}

/// Minimum terminal width in columns for the column `LONGEST`.
const WIDE: usize = 80;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::args::ListOrder;
    use crate::base::test_snapshots::{entry, lock};
    use crate::base::unix_time::time_at;

    #[test]
    fn locks_are_selected_and_sorted() {
        let holder = |host: &str, since: Option<u64>, held_since: Option<u64>| {
            let mut holder = entry("lock-0000000001", "0.1");
            (holder.host, holder.since, holder.held_since) =
                (Some(host.to_owned()), since.map(time_at), held_since.map(time_at));
            Some(holder)
        };
        let waiter = |since| {
            let mut waiter = entry("lock-0000000002", "0.2");
            waiter.since = Some(time_at(since));
            vec![waiter]
        };
        let locks = || {
            vec![
                lock("/locks/10", holder("web1", Some(1_000), Some(90_000)), waiter(50_000)),
                lock("/locks/9", holder("web2", Some(20_000), None), Vec::new()),
                lock("/locks/8", None, waiter(40_000)),
            ]
        };
        let all = LsArgs { prefix: None, sort: ListOrder::Name, waiting: false, held_by: None, older: None };
        let listed = |selection: LsArgs| {
            let list = LockList::of(locks());
            let listed = selection.select(&list, 100_000);
            listed.into_iter().map(|lock| lock.path.replace("/locks/", "")).collect::<Vec<_>>()
        };
        assert_eq!(listed(all.clone()), ["8", "9", "10"]);
        assert_eq!(listed(LsArgs { sort: ListOrder::Held, ..all.clone() }), ["9", "10", "8"]);
        assert_eq!(listed(LsArgs { sort: ListOrder::Longest, ..all.clone() }), ["8", "10", "9"]);
        assert_eq!(listed(LsArgs { sort: ListOrder::Waiting, ..all.clone() }), ["8", "10", "9"]);
        assert_eq!(listed(LsArgs { waiting: true, ..all.clone() }), ["8", "10"]);
        assert_eq!(listed(LsArgs { held_by: Some("web1".to_owned()), ..all.clone() }), ["10"]);
        // Lock 9 may have been held since 20 s, lock 10 has been held for 10 s.
        let older = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(listed(LsArgs { older: older(11), ..all.clone() }), ["9"]);
        assert_eq!(listed(LsArgs { older: older(10), ..all }), ["9", "10"]);
    }
}
