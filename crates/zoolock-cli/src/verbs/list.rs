//! `zoolock ls` and `zoolock show`: holders and waiters of locks.

use std::fmt::Write as _;

use serde::Serialize;
use zoolock::{Entry, Snapshot};

use crate::args::ColorWhen;
use crate::base::exit::{Exit, Failure};
use crate::base::reporter::{Reporter, escape_unprintable};
use crate::plan::ConnectionSettings;
use crate::render::text::{
    TextStyle, describe_role, format_age, format_json, format_table, lock_name, print, wrap_text,
};
use crate::service::connect::connect_and_request;

/// Runs `zoolock ls`.
pub(crate) async fn ls(
    service: &ConnectionSettings,
    prefix: Option<&str>,
    json: bool,
    color: ColorWhen,
    reporter: &Reporter,
) -> Result<Exit, Failure> {
    // One waiter per lock is enough: `ls` shows the number of waiters and the age of the first.
    let locks =
        connect_and_request(service, reporter, async |zoolock| zoolock.survey(prefix, 1).await).await?;
    if json {
        return print(&format_json(&Locks { locks }));
    }
    if locks.is_empty() {
        match prefix {
            Some(prefix) => reporter.note(format_args!("no locks at or below {prefix}")),
            None => reporter.note("no locks"),
        }
        return Ok(Exit::OK);
    }
    let rows = locks.iter().map(|lock| row(lock, &service.root)).collect::<Vec<_>>();
    let header = ["LOCK", "SINCE", "WAITING", "LONGEST", "HOLDER"].map(str::to_owned);
    let style = TextStyle::of_stdout(color);
    let printed = print(&match style.width {
        Some(width) if width < WIDE => {
            let narrow = |[lock, since, waiting, _, holder]: [String; 5]| [lock, since, waiting, holder];
            format_table(&narrow(header), &rows.into_iter().map(narrow).collect::<Vec<_>>(), &style)
        }
        _ => format_table(&header, &rows, &style),
    });
    if locks.iter().any(|lock| lock.clash.is_some()) {
        reporter.note("! marks locks that several may hold at once: `zoolock show` says why, and what to do");
    }
    if locks.iter().any(|lock| !lock.unread.is_empty()) {
        reporter.note(
            "? marks locks that this user may not read completely: `zoolock show` names the unreadable part",
        );
    }
    printed
}

/// Runs `zoolock show`.
pub(crate) async fn show(
    service: &ConnectionSettings,
    name: &str,
    json: bool,
    color: ColorWhen,
    reporter: &Reporter,
) -> Result<Exit, Failure> {
    let lock =
        connect_and_request(service, reporter, async |zoolock| zoolock.mutex(name).snapshot().await).await?;
    if json {
        return print(&format_json(&lock));
    }
    let style = TextStyle::of_stdout(color);
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
        None if lock.foreign_semaphore.is_some() => {}
        None if lock.unread.is_empty() => text.push_str("  free\n"),
        None => text.push_str("  free, but parts of the lock cannot be read\n"),
        Some(holder) => {
            for holder in std::iter::once(holder).chain(&lock.beside) {
                let token = holder.token.as_deref().unwrap_or("unknown");
                let asked = if holder.revoked { ", asked to release" } else { "" };
                let _ = writeln!(text, "  held by   {}{asked}", describe_with_stay(holder));
                let _ = writeln!(text, "  mode      {}", describe_role(holder));
                let _ = writeln!(
                    text,
                    "  since     {}",
                    format_age(holder).unwrap_or_else(|| "unknown".to_owned())
                );
                let _ = writeln!(text, "  token     {}", token);
                let _ = writeln!(text, "  znode     {}", escape_unprintable(&holder.node));
            }
        }
    }
    let held = lock.holders().map(|holder| u64::from(holder.weight)).sum::<u64>();
    match lock.permits.filter(|_| lock.foreign_semaphore.is_none()) {
        Some(permits) => _ = writeln!(text, "  permits   {held} of {permits}"),
        None if lock.holders().any(|holder| holder.role == "permit") => {
            _ = writeln!(text, "  permits   {held} held; the total is not recorded");
        }
        None => {}
    }
    let _ = writeln!(text, "  previous  {}", escape_unprintable(lock.previous));
    if let Some(clash) = &lock.clash {
        let _ = writeln!(
            text,
            "  {}",
            wrap_text(&format!("danger    {}", escape_unprintable(clash)), 12, style.width)
        );
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
        let header = ["", "SINCE", "TOKEN", "WAITING"].map(str::to_owned);
        let rows = lock
            .waiters
            .iter()
            .enumerate()
            .map(|(index, waiter)| {
                [
                    (index + 1).to_string(),
                    format_age(waiter).unwrap_or_else(|| "-".to_owned()),
                    waiter.token.clone().unwrap_or_else(|| "-".to_owned()),
                    format!("{} ({})", describe_with_stay(waiter), describe_role(waiter)),
                ]
            })
            .collect::<Vec<_>>();
        text.push('\n');
        text.push_str(&format_table(&header, &rows, &style));
    }
    print(&text)
}

fn row(lock: &Snapshot, root: &str) -> [String; 5] {
    let (since, holder) = match &lock.holder {
        Some(holder) => {
            let others = match lock.beside.len() {
                0 => String::new(),
                others => format!(" and {others} more"),
            };
            (format_age(holder).unwrap_or_else(|| "-".to_owned()), describe_with_stay(holder) + &others)
        }
        None => {
            let foreign = lock.foreign_semaphore.as_ref();
            ("-".to_owned(), foreign.map_or_else(|| "-".to_owned(), ToString::to_string))
        }
    };
    let mark = match (&lock.clash, lock.unread.is_empty()) {
        (Some(_), _) => "! ",
        (None, false) => "? ",
        (None, true) => "",
    };
    let longest = lock.waiters.first().and_then(format_age).unwrap_or_else(|| "-".to_owned());
    [
        escape_unprintable(lock_name(&lock.path, root)),
        since,
        lock.waiting.to_string(),
        longest,
        format!("{mark}{holder}"),
    ]
}

fn describe_with_stay(entry: &Entry) -> String {
    let stays = if entry.persistent { "; persistent znode, remains until it is deleted" } else { "" };
    crate::render::status::describe_contender(entry) + stays
}

/// Minimum terminal width in columns for the column `LONGEST`.
const WIDE: usize = 80;

/// JSON output of `ls`: an object, so that fields can be added later.
#[derive(Serialize)]
struct Locks {
    locks: Vec<Snapshot>,
}
