//! Writes the results as tables in Markdown, and as CSV.

use super::client::ComparedClient;
use super::results::{ClientResult, Results, WorkResults};
use super::target;
use crate::stats::three_digits;

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
    let mut text = "work,client,server,rounds,figure,least,most,p99,client_cpu,failed\n".to_owned();
    for work in &results.works {
        for entry in &work.entries {
            let number =
                |figure: Option<f64>| figure.map_or_else(String::new, |figure| format!("{figure:.3}"));
            let (least, most) = entry.spread();
            let spread = entry.median().map(|_| (least, most)).unzip();
            let figures =
                [entry.median(), spread.0, spread.1, entry.p99(), entry.cpu()].map(number).join(",");
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

/// Returns the table of the targets and their verdicts.
fn targets(results: &Results) -> String {
    let mut text = "| work | must be | is | |\n|-|-|-|-|\n".to_owned();
    for verdict in target::targets().iter().map(|target| target.judge(results)) {
        let Some(work) = results.work(verdict.work) else { continue };
        let condition = if verdict.what.is_empty() { String::new() } else { format!(": {}", verdict.what) };
        let mark = match verdict.reached {
            Some(true) => "reached",
            Some(false) => "missed",
            None => "",
        };
        text += &format!("| {}{condition} | {} | {} | {mark} |\n", work.title, verdict.bound, verdict.found);
    }
    text + "\n"
}

fn work_table(work: &WorkResults) -> String {
    let mut notes = Vec::new();
    if work.cut_short {
        notes.push("cut short");
    }
    if work.quick {
        notes.push("a quick run, its figures have no meaning");
    }
    let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) };
    let mut text = format!("**{}**{notes}; a round counts by {}\n\n", work.title, work.figure);
    let has_second = work.entries.iter().flat_map(|entry| &entry.rounds).any(|round| round.second.is_some());
    let crowd = work.settings.contains_key("tasks");
    text += "| | median of the rounds (least–most) | p99 | client's processor time |";
    text += if crowd { " until all were queued |" } else { "" };
    text += if has_second { " second process: turns, longest wait |" } else { "" };
    text += "\n|-|-|-|-|";
    text += if crowd { "-|" } else { "" };
    text += if has_second { "-|" } else { "" };
    for entry in &work.entries {
        text += &format!("\n| {} |{}", bold_if_zoolock(entry), cells(entry, crowd, has_second));
    }
    text + "\n\n"
}

fn bold_if_zoolock(entry: &ClientResult) -> String {
    let name = entry.who.name();
    if entry.who.client == ComparedClient::Zoolock { format!("**{name}**") } else { name }
}

fn cells(entry: &ClientResult, crowd: bool, has_second: bool) -> String {
    let failed = entry.failed.as_ref().map(|why| why.replace('|', "/"));
    let (Some(middle), Some(cpu)) = (entry.median(), entry.cpu()) else {
        let why = failed.map_or("not measured".to_owned(), |why| format!("failed: {why}"));
        return format!(
            " {why} | | |{}{}",
            if crowd { " |" } else { "" },
            if has_second { " |" } else { "" }
        );
    };
    let (least, most) = entry.spread();
    let failed = failed.map(|why| format!(", then failed: {why}")).unwrap_or_default();
    let mut text = format!(
        " {} µs ({}–{}){failed} | {} | {} µs |",
        three_digits(middle),
        three_digits(least),
        three_digits(most),
        entry.p99().map_or("–".to_owned(), |p99| format!("{} µs", three_digits(p99))),
        three_digits(cpu)
    );
    if crowd {
        let joined: Vec<f64> = entry.rounds.iter().map(|round| round.joined / 1e6).collect();
        text += &format!(" {} s |", three_digits(crate::stats::median(&joined)));
    }
    if has_second {
        let seconds: Vec<_> = entry.rounds.iter().filter_map(|round| round.second.as_ref()).collect();
        let turns: Vec<f64> = seconds.iter().map(|second| second.turns as f64).collect();
        let longest = seconds.iter().map(|second| second.longest_wait).fold(0.0, f64::max);
        text += &format!(" {:.0}, {} ms |", crate::stats::median(&turns), three_digits(longest / 1e3));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn csv_text_keeps_commas_and_quotes_in_one_field() {
        assert_eq!(quoted("Redis, no fsync"), "\"Redis, no fsync\"");
        assert_eq!(quoted("a \"b\"\nc"), "\"a \"\"b\"\" c\"");
    }
}
