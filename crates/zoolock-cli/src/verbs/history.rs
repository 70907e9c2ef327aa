//! `zoolock history`: what operators did, and the crashes that holders found.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use zoolock::admin::HistoryEvent;

use crate::args::HistoryArgs;
use crate::base::duration::format_duration;
use crate::base::exit::{Exit, Failure};
use crate::base::reporter::escape_unprintable;
use crate::base::server_clock;
use crate::base::unix_time::UnixTime as _;
use crate::plan::Context;
use crate::render::columns;
use crate::render::history::{describe_contender, describe_origin, format_line, format_time};
use crate::render::text::{TextStyle, format_json, format_table, lock_name, print, wrap_text};
use crate::service::connect::{connect_and_request, learn_server_clock};
use crate::verbs::missing_lock::MissingLock;

/// The note about the events that are not in the history.
const UNRECORDED: &str = "not recorded: releases, waiters that gave up, and crashes without --crash-detection; a crash is \
                          recorded when the next holder finds it";

impl HistoryArgs {
    /// Prints the last events of one lock, or of all locks.
    pub(crate) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let Context { global, reporter } = context;
        let Self { name, last, since } = self;
        let name = name.as_deref();
        let service = &match name {
            Some(name) => context.connection_for(name)?,
            None => context.connection()?,
        };
        let (history, missing) = connect_and_request(service, reporter, async |zoolock| {
            let last = last.unwrap_or(if since.is_some() { usize::MAX } else { 50 });
            let mut history = zoolock.admin().history(name, last).await?;
            let is_known = !history.is_empty();
            if let Some(since) = since {
                learn_server_clock(zoolock).await;
                let begin = server_clock::ms_before(server_clock::now_ms(), since);
                history.retain(|event| event.at.unix_ms().is_none_or(|at| at >= begin));
            }
            let missing = match name {
                _ if is_known => None,
                Some(name) => {
                    let lock = zoolock.admin().snapshot(name).await?;
                    MissingLock::find(zoolock, name, &lock, service).await?
                }
                None => MissingLock::find_root(zoolock, None, service).await?,
            };
            Ok((history, missing))
        })
        .await?;
        if global.json {
            print(&format_json(&BTreeMap::from([("history", &history)])))?;
        }
        if let Some(root @ MissingLock::Root(_)) = &missing {
            return Err(root.failure("", service));
        }
        if global.json {
            return Ok(Exit::OK);
        }
        if history.is_empty() {
            let (address, root) = (service.endpoint.address(), &service.root);
            let when =
                since.map(|since| format!(" in the last {}", format_duration(since))).unwrap_or_default();
            reporter.note(match name {
                Some(name) => {
                    format!(
                        "no history of {name} at {address} below {root}: no request, break or crash is recorded{when}{}",
                        missing.map_or_else(String::new, |missing| missing.hint(service))
                    )
                }
                None => format!("no history at {address} below {root}{when}"),
            });
            return Ok(Exit::OK);
        }
        let header = ["TIME", "EVENT", "LOCK", "CONTENDER", "BY"].map(str::to_owned);
        let rows: Vec<[String; 5]> = history
            .iter()
            .map(|event| {
                [
                    format_time(event),
                    event.event.to_string(),
                    escape_unprintable(lock_name(&event.lock, &service.root)),
                    describe_contender(event),
                    describe_origin(event),
                ]
            })
            .collect();
        let width = TextStyle::of_stdout(global.color).width;
        let table = format_table(&header, &rows, &TextStyle::of_stdout(global.color).uncut());
        let is_too_wide = |columns: usize| table.lines().skip(1).any(|line| columns::width(line) > columns);
        // A line that is cut would hide who acted, and why.
        let line = |event: &HistoryEvent| {
            let lock = escape_unprintable(lock_name(&event.lock, &service.root));
            format!("{}\n", wrap_text(&format!("{lock} {}", format_line(event)), 4, width))
        };
        let printed = print(&match width.is_some_and(is_too_wide) {
            true => history.iter().map(line).collect::<String>(),
            false => table,
        });
        if std::io::stdout().is_terminal() {
            reporter.note(UNRECORDED);
        }
        printed
    }
}
