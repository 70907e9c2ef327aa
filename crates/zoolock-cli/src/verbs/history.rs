//! `zoolock history`: what operators did, and the crashes that holders found.

use serde::Serialize;
use zoolock::HistoryEvent;

use crate::args::ColorWhen;
use crate::base::exit::{Exit, Failure};
use crate::base::reporter::{Reporter, escape_unprintable};
use crate::plan::ConnectionSettings;
use crate::render::history::{describe_contender, describe_origin, format_line, format_time};
use crate::render::text::{TextStyle, format_json, format_table, lock_name, print, wrap_text};
use crate::service::connect::connect_and_request;
use crate::verbs::missing_lock::{find_similar, suggestion};

#[derive(Serialize)]
struct History {
    history: Vec<HistoryEvent>,
}

/// Prints the last events of one lock, or of all locks.
pub(crate) async fn history(
    service: &ConnectionSettings,
    name: Option<&str>,
    last: usize,
    json: bool,
    color: ColorWhen,
    reporter: &Reporter,
) -> Result<Exit, Failure> {
    let (history, similar) = connect_and_request(service, reporter, async |zoolock| {
        let history = zoolock.history(name, last).await?;
        let is_unknown = match name.filter(|_| history.is_empty()) {
            Some(name) => !zoolock.mutex(name).snapshot().await?.exists,
            None => false,
        };
        let similar = match name.filter(|_| is_unknown) {
            Some(name) => find_similar(zoolock, name, service).await?,
            None => None,
        };
        Ok((history, similar))
    })
    .await?;
    if json {
        return print(&format_json(&History { history }));
    }
    if history.is_empty() {
        let (address, root) = (service.endpoint.address(), &service.root);
        reporter.note(match name {
            Some(name) => {
                format!(
                    "no history of {name} at {address} below {root}: no request, break or crash is recorded{}",
                    suggestion(similar.as_deref())
                )
            }
            None => format!("no history at {address} below {root}"),
        });
        return Ok(Exit::OK);
    }
    let header = ["TIME", "EVENT", "LOCK", "CONTENDER", "BY"].map(str::to_owned);
    let rows: Vec<[String; 5]> = history
        .iter()
        .map(|event| {
            [
                format_time(event),
                escape_unprintable(&event.event),
                escape_unprintable(lock_name(&event.lock, &service.root)),
                describe_contender(event),
                describe_origin(event),
            ]
        })
        .collect();
    let width = TextStyle::of_stdout(color).width;
    let table = format_table(&header, &rows, &TextStyle::of_stdout(color).uncut());
    let is_too_wide = |width: usize| table.lines().skip(1).any(|line| line.chars().count() > width);
    if !width.is_some_and(is_too_wide) {
        return print(&table);
    }
    // A line that is cut would hide who acted, and why.
    let line = |event: &HistoryEvent| {
        let lock = escape_unprintable(lock_name(&event.lock, &service.root));
        format!("{}\n", wrap_text(&format!("{lock} {}", format_line(event)), 4, width))
    };
    print(&history.iter().map(line).collect::<String>())
}
