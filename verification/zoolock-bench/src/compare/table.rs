//! Writes the results as tables in Markdown, and as CSV.

use super::client::ComparedClient;
use super::results::{ClientResult, Results, WorkResults};
use super::target;
use crate::servers::ServerKind;
use crate::stats::{median, three_digits};

/// Returns the whole page: the machine, the versions, the targets, and a table for each work.
pub(super) fn page(results: &Results) -> String {
    let mut text = format!("\n{}.\n\n", results.machine);
    let versions: Vec<String> =
        results.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    text += &format!("Measured: {}.\n\n", versions.join(", "));
    text += &targets(results);
    for work in &results.works {
        text += &work_table(work);
    }
    text
}

/// Returns the results as CSV: one line for each work, client and server, with times in microseconds.
pub(super) fn csv(results: &Results) -> String {
    let mut text = "work,client,server,rounds,figure,least,most,p99,client_cpu,until_queued,second_turns,\
                    second_longest_wait,failed\n"
        .to_owned();
    for work in &results.works {
        for entry in &work.entries {
            let number =
                |figure: Option<f64>| figure.map_or_else(String::new, |figure| format!("{figure:.3}"));
            let (least, most) = entry.spread();
            let spread = entry.median().map(|_| (least, most)).unzip();
            let second = second_process(entry).unzip();
            let queued = work.settings.contains_key("tasks").then(|| until_queued(entry)).flatten();
            let figures =
                [entry.median(), spread.0, spread.1, entry.p99(), entry.cpu(), queued, second.0, second.1]
                    .map(number)
                    .join(",");
            let (client, server) = (entry.who.client.name(), entry.who.server.name());
            text += &format!(
                "{},{},{},{},{figures},{}\n",
                work.name,
                quoted(client),
                quoted(server),
                entry.rounds.len(),
                quoted(entry.failed.as_deref().unwrap_or_default())
            );
        }
    }
    text
}

/// Quotes a text field of a CSV line. Names contain commas, and errors can contain any character.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\"").replace(['\n', '\r'], " "))
}

/// Returns the median time until all contenders of a round were queued.
fn until_queued(entry: &ClientResult) -> Option<f64> {
    let joined: Vec<f64> = entry.rounds.iter().map(|round| round.joined).collect();
    Some(median(&joined)).filter(|figure| figure.is_finite())
}

/// Returns the median of the second process's turns, and its longest wait in all rounds. Returns
/// `None` if there was no second process.
fn second_process(entry: &ClientResult) -> Option<(f64, f64)> {
    let seconds: Vec<_> = entry.rounds.iter().filter_map(|round| round.second.as_ref()).collect();
    let turns: Vec<f64> = seconds.iter().map(|second| second.turns as f64).collect();
    let longest = seconds.iter().map(|second| second.longest_wait).reduce(f64::max)?;
    Some((median(&turns), longest))
}

/// Returns the table of the targets and their verdicts.
fn targets(results: &Results) -> String {
    let mut text = "| work | must be | is | |\n|-|-|-|-|\n".to_owned();
    for verdict in target::verdicts(results) {
        let condition = if verdict.what.is_empty() { String::new() } else { format!(", {}", verdict.what) };
        let mark = match verdict.reached {
            Some(true) => "reached",
            Some(false) => "missed",
            None => "",
        };
        text +=
            &format!("| {}{condition} | {} | {} | {mark} |\n", verdict.work, verdict.bound, verdict.found);
    }
    text + "\n"
}

/// Returns the table of a work. It has a row for each client, and a column for each server.
fn work_table(work: &WorkResults) -> String {
    let mut notes = Vec::new();
    if work.cut_short {
        notes.push("cut short");
    }
    if work.quick {
        notes.push("a quick run, its figures have no meaning");
    }
    let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) };
    let mut text =
        format!("`{}`: **{}**{notes}; a round counts by {}, in µs\n\n", work.name, work.title, work.figure);
    let servers = distinct(work.entries.iter().map(zookeeper_server));
    let clients = distinct(work.entries.iter().map(client_name));
    let names: Vec<_> =
        servers.iter().map(|server| server.map_or("its own server", ServerKind::name)).collect();
    text += &format!("| | {} |\n|-|{}", names.join(" | "), "-|".repeat(servers.len()));
    for client in clients {
        let of_client: Vec<_> = work.entries.iter().filter(|entry| client_name(entry) == client).collect();
        let cells = servers.iter().map(|&server| {
            of_client.iter().find(|entry| zookeeper_server(entry) == server).map(|entry| cell(entry))
        });
        let cells: Vec<_> = cells.map(Option::unwrap_or_default).collect();
        let is_zoolock = of_client.iter().any(|entry| entry.who.client == ComparedClient::Zoolock);
        let client = if is_zoolock { format!("**{client}**") } else { client };
        text += &format!("\n| {client} | {} |", cells.join(" | "));
    }
    text + "\n\n"
}

/// Returns the ZooKeeper server of an entry, or `None` for a server with another protocol.
fn zookeeper_server(entry: &ClientResult) -> Option<ServerKind> {
    let server = entry.who.server;
    matches!(server, ServerKind::Apache | ServerKind::Ensemble | ServerKind::Ours).then_some(server)
}

/// Returns the name of an entry's row.
fn client_name(entry: &ClientResult) -> String {
    match zookeeper_server(entry) {
        Some(_) => entry.who.client.name().to_owned(),
        None => entry.who.name(),
    }
}

/// Returns the different items, in the order in which they first appear.
fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for item in items {
        if !found.contains(&item) {
            found.push(item);
        }
    }
    found
}

/// Returns the median of the rounds with the smallest and the largest one, and the longest wait of a
/// second process.
fn cell(entry: &ClientResult) -> String {
    let failed = entry.failed.as_ref().map(|why| format!("failed: {}", why.replace('|', "/")));
    let Some(middle) = entry.median() else {
        return failed.unwrap_or_else(|| "not measured".to_owned());
    };
    let (least, most) = entry.spread();
    let mut text = format!("{} ({}–{})", three_digits(middle), three_digits(least), three_digits(most));
    if let Some((_, longest)) = second_process(entry) {
        text += &format!("; second process at most {} ms", three_digits(longest / 1e3));
    }
    if let Some(failed) = failed {
        text += &format!(", then {failed}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::results::Results;
    use super::{csv, page, quoted};

    #[test]
    fn page_and_csv_show_the_saved_results() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("a text file");
        let results = Results::load(&root.join("bench/results/compare.json")).expect("saved results");
        assert_eq!(csv(&results), read("bench/results/compare.csv"));
        let table = page(&results);
        assert!(read("docs/BENCHMARKS.md").contains(&table), "docs/BENCHMARKS.md lacks this text:\n{table}");
    }

    #[test]
    fn csv_text_keeps_commas_and_quotes_in_one_field() {
        assert_eq!(quoted("Redis, no fsync"), "\"Redis, no fsync\"");
        assert_eq!(quoted("a \"b\"\nc"), "\"a \"\"b\"\" c\"");
    }
}
