//! `zoolock ls` and `zoolock show`: holders and waiters of locks.

use std::fmt::Write as _;

use serde::Serialize;
use zoolock::{Entry, Snapshot};

use crate::args::ColorWhen;
use crate::base::exit::{Exit, Failure};
use crate::base::talk::{Talk, printable};
use crate::plan::Service;
use crate::render::text::{Look, age, document, name, print, role, table, wrapped};
use crate::service::connect::{close, connect};

/// Runs `zoolock ls`.
pub(crate) async fn ls(
    service: &Service,
    prefix: Option<&str>,
    json: bool,
    color: ColorWhen,
    talk: &Talk,
) -> Result<Exit, Failure> {
    let zoolock = connect(service, talk).await?;
    // One waiter per lock is enough: its age and the number of waiters are shown.
    let listed = zoolock.survey(prefix, 1).await;
    close(zoolock).await;
    let locks = listed?;
    if json {
        return print(&document(&Locks { locks }));
    }
    if locks.is_empty() {
        match prefix {
            Some(prefix) => talk.note(format_args!("no locks at or below {prefix}")),
            None => talk.note("no locks"),
        }
        return Ok(Exit::OK);
    }
    let rows = locks.iter().map(|lock| row(lock, &service.root)).collect::<Vec<_>>();
    let header = ["LOCK", "SINCE", "WAITING", "LONGEST", "HOLDER"].map(str::to_owned);
    let look = Look::of_stdout(color);
    let printed = print(&match look.width {
        Some(width) if width < WIDE => {
            let narrow = |[lock, since, waiting, _, holder]: [String; 5]| [lock, since, waiting, holder];
            table(&narrow(header), &rows.into_iter().map(narrow).collect::<Vec<_>>(), &look)
        }
        _ => table(&header, &rows, &look),
    });
    if locks.iter().any(|lock| lock.clash.is_some()) {
        talk.note("! marks locks that several may hold at once: `zoolock show` says why, and what to do");
    }
    if locks.iter().any(|lock| !lock.unread.is_empty()) {
        talk.note(
            "? marks locks that this user may not read completely: `zoolock show` names the unreadable part",
        );
    }
    printed
}

/// Runs `zoolock show`.
pub(crate) async fn show(
    service: &Service,
    name: &str,
    json: bool,
    color: ColorWhen,
    talk: &Talk,
) -> Result<Exit, Failure> {
    let zoolock = connect(service, talk).await?;
    let result = zoolock.mutex(name).snapshot().await;
    close(zoolock).await;
    let lock = result?;
    if json {
        return print(&document(&lock));
    }
    let look = Look::of_stdout(color);
    let mut text = format!("{}\n", look.bold(&printable(&lock.path)));
    if let Some(foreign) = &lock.foreign_semaphore {
        let size = lock.permits.map_or(String::new(), |permits| format!(" of {permits}"));
        let _ = writeln!(text, "  kind      semaphore of {}", foreign.library);
        let _ = writeln!(
            text,
            "  leases    {}{size}, in {}",
            foreign.leases,
            printable(&foreign.lease_directory)
        );
        let _ = writeln!(text, "  waiting   {}, in {}", lock.waiting, printable(&foreign.queue_directory));
    }
    match &lock.holder {
        None if lock.foreign_semaphore.is_some() => {}
        None if lock.unread.is_empty() => text.push_str("  free\n"),
        None => text.push_str("  free, as far as it may be read\n"),
        Some(holder) => {
            for holder in std::iter::once(holder).chain(&lock.beside) {
                let token = holder.token.as_deref().unwrap_or("unknown");
                let asked = if holder.revoked { ", asked to let go" } else { "" };
                let _ = writeln!(text, "  held by   {}{asked}", owner(holder));
                let _ = writeln!(text, "  as        {}", role(holder));
                let _ = writeln!(text, "  since     {}", age(holder).unwrap_or_else(|| "unknown".to_owned()));
                let _ = writeln!(text, "  token     {}", token);
                let _ = writeln!(text, "  node      {}", printable(&holder.node));
            }
        }
    }
    let holders = || lock.holder.iter().chain(&lock.beside);
    let held = holders().map(|holder| u64::from(holder.weight)).sum::<u64>();
    match lock.permits.filter(|_| lock.foreign_semaphore.is_none()) {
        Some(permits) => _ = writeln!(text, "  permits   {held} of {permits}"),
        None if holders().any(|holder| holder.role == "permit") => {
            _ = writeln!(text, "  permits   {held} of a number that only its clients know");
        }
        None => {}
    }
    let _ = writeln!(text, "  previous  {}", printable(lock.previous));
    if let Some(clash) = &lock.clash {
        let _ = writeln!(text, "  {}", wrapped(&format!("danger    {}", printable(clash)), 12, look.width));
    }
    for part in &lock.unread {
        let line =
            format!("unread    {}: no permission to read it; its contenders are not shown", printable(part));
        let _ = writeln!(text, "  {}", wrapped(&line, 12, look.width));
    }
    if !lock.waiters.is_empty() {
        // The column that may be long comes last, where the terminal cuts it: the token must be complete.
        let header = ["", "SINCE", "TOKEN", "WAITING"].map(str::to_owned);
        let rows = lock
            .waiters
            .iter()
            .enumerate()
            .map(|(index, waiter)| {
                [
                    (index + 1).to_string(),
                    age(waiter).unwrap_or_else(|| "-".to_owned()),
                    waiter.token.clone().unwrap_or_else(|| "-".to_owned()),
                    format!("{} ({})", owner(waiter), role(waiter)),
                ]
            })
            .collect::<Vec<_>>();
        text.push('\n');
        text.push_str(&table(&header, &rows, &look));
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
            (age(holder).unwrap_or_else(|| "-".to_owned()), owner(holder) + &others)
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
    let longest = lock.waiters.first().and_then(age).unwrap_or_else(|| "-".to_owned());
    [printable(name(&lock.path, root)), since, lock.waiting.to_string(), longest, format!("{mark}{holder}")]
}

fn owner(entry: &Entry) -> String {
    let stays =
        if entry.persistent { "; it has no session, and goes only when its znode is deleted" } else { "" };
    crate::render::status::who(entry) + stays
}

/// Minimum terminal width in columns for the column `LONGEST`.
const WIDE: usize = 80;

/// JSON output of `ls`: an object, so that fields can be added later.
#[derive(Serialize)]
struct Locks {
    locks: Vec<Snapshot>,
}
