//! The options of the examples, and the table that they print.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use zoolock::TestServer;

use super::{Figures, Lock, Ours, Outcome, Plan, run};

#[derive(Parser)]
#[command(about = "Compares a textbook lock with zoolock: the same work, counted on the wire")]
struct Args {
    /// Number of contenders at any time
    #[arg(long, default_value_t = 100)]
    waiters: usize,
    /// Number of sessions that the contenders share. By default, one for each contender
    ///
    /// Contenders of one session share its watches, so the server sends fewer events. Each of them still sends its own
    /// requests.
    #[arg(long)]
    sessions: Option<usize>,
    /// Number of counted turns. By default, twice the number of contenders
    #[arg(long)]
    sections: Option<usize>,
    /// Duration of a turn, in milliseconds
    #[arg(long, default_value_t = 0)]
    work: u64,
    /// Address of the server to use. By default, a server in this process
    ///
    /// Only one address, because all connections pass a proxy. By default, Apache ZooKeeper accepts 60 connections from
    /// one host (maxClientCnxns).
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<String>,
}

/// Runs the lock `L` and zoolock, and prints a table of both.
pub(crate) async fn main<L: Lock>() -> ExitCode {
    match compare::<L>(Args::parse()).await {
        Ok(table) => {
            print!("{table}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn compare<L: Lock>(args: Args) -> Outcome<String> {
    let waiters = args.waiters.max(1);
    let plan = Plan {
        waiters,
        sessions: args.sessions.unwrap_or(waiters).clamp(1, waiters),
        sections: args.sections.unwrap_or(2 * waiters).max(1),
        work: Duration::from_millis(args.work),
    };
    let (server, address) = match &args.connect {
        None => {
            let server = TestServer::start().await?;
            let address = server.address();
            (Some(server), address)
        }
        Some(name) => {
            let address = tokio::net::lookup_host(name).await?.next();
            (None, address.ok_or_else(|| format!("{name} has no address"))?.to_string())
        }
    };
    let place = args.connect.as_deref().unwrap_or("a server in this process");
    println!("{} waiters on {} sessions, {} turns, on {place}\n", plan.waiters, plan.sessions, plan.sections);
    let theirs = run::<L>(&address, "theirs", plan).await?;
    let ours = run::<Ours>(&address, "ours", plan).await?;
    drop(server);
    Ok(table(L::NAME, &theirs, &ours))
}

type Row = (&'static str, fn(&Figures) -> String);

const ROWS: [Row; 8] = [
    ("wake-ups per hand-over", |figures| format!("{:.1}", figures.events())),
    ("requests per hand-over", |figures| format!("{:.1}", figures.requests())),
    ("bytes sent per hand-over", |figures| format!("{:.0}", figures.bytes_sent())),
    ("bytes received per hand-over", |figures| format!("{:.0}", figures.bytes_received())),
    ("time per hand-over", |figures| {
        let micros = figures.elapsed.as_secs_f64() * 1e6 / figures.plan.sections as f64;
        format!("{micros:.0} µs")
    }),
    ("first turns in order of arrival", |figures| {
        let of = figures.plan.waiters.min(figures.plan.sections);
        format!("{} of {of}", figures.in_order)
    }),
    ("turns that a waiter had", |figures| {
        let (fewest, most) = figures.turns;
        if fewest == most { fewest.to_string() } else { format!("{fewest} to {most}") }
    }),
    ("most holders at once", |figures| figures.most_inside.to_string()),
];

fn table(name: &str, theirs: &Figures, ours: &Figures) -> String {
    let width = name.chars().count().max(12);
    let mut table = format!("{:34}{name:>width$}{:>14}\n", "", Ours::NAME);
    for (what, figure) in ROWS {
        table += &format!("{what:34}{:>width$}{:>14}\n", figure(theirs), figure(ours));
    }
    table
}
