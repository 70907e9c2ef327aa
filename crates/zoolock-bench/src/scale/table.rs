//! Tables for people.

use super::figures::{Each, Figures, Server};
use crate::stats::short;

/// All of it.
pub(super) fn page(figures: &Figures) -> String {
    let mut text = format!("\n{}.\n\n", figures.measured.machine);
    text += &points(figures);
    text += &costs(figures);
    text += &each(figures);
    text += &simulated(figures);
    text + &spread(figures)
}

fn points(figures: &Figures) -> String {
    let mut text =
        "Turns a second, clients and servers on the same processors, as measured and as the fitted model \
                    has it:\n\n| clients at once |"
            .to_owned();
    for server in &figures.measured.servers {
        text += &format!(" {} | model |", server.kind.name());
    }
    text += &format!("\n|-|{}\n", "-|-|".repeat(figures.measured.servers.len()));
    let Some(first) = figures.measured.servers.first() else { return text };
    for (at, point) in first.points.iter().enumerate() {
        text += &format!("| {} |", point.clients);
        for (server, fitted) in figures.measured.servers.iter().zip(&figures.fitted) {
            let (seen, made) = (server.points.get(at), fitted.rates.get(at));
            let (Some(seen), Some(made)) = (seen, made) else { continue };
            text += &format!(" {:.0} | {made:.0} ({:+.0} %) |", seen.rate, (made / seen.rate - 1.0) * 100.0);
        }
        text += "\n";
    }
    text + "\n"
}

fn costs(figures: &Figures) -> String {
    let mut text = "| | way there and back | a sync | a write, of the one place they pass | two writes at most | server's \
                    processor for a turn |\n|-|-|-|-|-|-|\n"
        .to_owned();
    for (server, fitted) in figures.measured.servers.iter().zip(&figures.fitted) {
        let cost = fitted.cost;
        text += &format!(
            "| {} | {} µs | {} µs | {} µs | {:.0} turns/s | {} µs |\n",
            fitted.kind.name(),
            short(cost.way * 1e6),
            short(cost.sync * 1e6),
            short(cost.write * 1e6),
            0.5 / cost.write,
            short(server.turn_cpu_us),
        );
    }
    text + "\n"
}

fn each(figures: &Figures) -> String {
    let told: Vec<(&Server, &Each)> =
        figures.measured.servers.iter().filter_map(|server| Some((server, server.each.as_ref()?))).collect();
    let mut text = "| while nothing happens |".to_owned();
    told.iter().for_each(|(server, _)| text += &format!(" {} |", server.kind.name()));
    text += &format!("\n|-|{}\n", "-|".repeat(told.len()));
    let mut row = |what: &str, cell: &dyn Fn(&Each) -> String| {
        let cells: String = told.iter().map(|(_, each)| format!(" {} |", cell(each))).collect();
        text += &format!("| {what} |{cells}\n");
    };
    row("an idle session: processor time a second", &|each| {
        format!("{} µs (timeout {} s)", short(each.session_cpu_us), each.session_timeout_s)
    });
    row("an idle session: memory", &|each| kib(each.session_bytes));
    row("a held lock: memory", &|each| kib(each.lock_bytes));
    row("a waiter: memory", &|each| kib(each.waiter_bytes));
    text + "\n"
}

fn kib(bytes: f64) -> String {
    format!("{} KiB", short(bytes / 1024.0))
}

fn simulated(figures: &Figures) -> String {
    let Some(first) = figures.answers.first() else { return String::new() };
    let mut text = format!(
        "Simulated, with what three ZooKeepers take: each client wants its lock every {:.0} s on average and holds it for \
         {:.0} ms.\n\n",
        first.asked.think_s,
        first.asked.hold_s * 1e3
    );
    text += "| clients | for each lock | ensembles | turns/s | busiest ensemble | to the grant: p50 | p99 | most |\n\
             |-|-|-|-|-|-|-|-|\n";
    for answer in &figures.answers {
        let (asked, fared) = (&answer.asked, &answer.fared);
        text += &format!("| {} | {} | {} |", asked.clients, asked.sharers, asked.ensembles);
        text += &if fared.busiest > 0.99 {
            format!(" {:.0}, not all that want | full | grows without end | | |\n", fared.rate)
        } else {
            let ms = |seconds: f64| format!("{} ms", short(seconds * 1e3));
            format!(
                " {:.0} | {:.0} % | {} | {} | {} |\n",
                fared.rate,
                fared.busiest * 100.0,
                ms(fared.p50),
                ms(fared.p99),
                ms(fared.most)
            )
        };
    }
    text + "\n"
}

fn spread(figures: &Figures) -> String {
    let mut text =
        "| ensembles | locks of the fullest, beside the average | of all locks, moved when one is added |\n\
                    |-|-|-|\n"
            .to_owned();
    for spread in &figures.spread {
        text +=
            &format!("| {} | {:.3} | {:.1} % |\n", spread.ensembles, spread.fullest, spread.moved * 100.0);
    }
    text + "\n"
}
