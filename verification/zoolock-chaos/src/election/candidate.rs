//! A candidate: a process that stands in several elections, and reports what its terms see.
//!
//! On the order `resign` it gives up its terms and stands again. It ends on the order `end`, or when its input ends.

use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::sleep;
use zoolock::{Connection, Election, Ended, Term, Zoolock};

use super::{CandidateBug, GRACE, SESSION};
use crate::Outcome;
use crate::clock::now;
use crate::ensemble::TICK;
use crate::orders::{Orders, send_report};

/// Pause between two checks of a term.
const LOOK: Duration = Duration::from_millis(10);

/// The settings of a candidate.
#[derive(Args, Debug)]
pub(crate) struct CandidateArgs {
    #[arg(long)]
    connect: String,
    #[arg(long)]
    elections: usize,
    #[arg(long = "break")]
    broken: Option<CandidateBug>,
}

/// A report of a term. Times are those of [`now`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TermReport {
    pub(crate) election: usize,
    pub(crate) token: String,
    pub(crate) at: i64,
    pub(crate) what: TermMoment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TermMoment {
    /// The work has begun.
    Began,
    /// The term was valid, with this number of milliseconds left. The work read the clock, and then checked the term.
    Valid { left: u64 },
    /// The term was not valid.
    Invalid,
    /// The work has returned, or was dropped.
    Ended,
}

/// Stands until the order to end.
pub(crate) async fn stand(settings: CandidateArgs) -> Outcome<()> {
    let builder = Zoolock::builder().tick_time(TICK).session_timeout(SESSION);
    let zoolock = builder.connect(&settings.connect).await?;
    let elections: Vec<Election> =
        (0..settings.elections).map(|number| zoolock.election(super::name(number)).grace(GRACE)).collect();
    let mut standing = JoinSet::new();
    for (number, election) in elections.iter().cloned().enumerate() {
        standing.spawn(stand_in(election, number, settings.broken));
    }
    let mut orders = Orders::listen();
    loop {
        tokio::select! {
            // A candidate that stands no more ends the process, which the drill finds.
            Some(ended) = standing.join_next() => return ended?,
            () = sleep(LOOK), if settings.broken == Some(CandidateBug::Flees) => {
                if zoolock.connection() != Connection::Connected {
                    elections.iter().for_each(Election::resign);
                }
            }
            order = orders.next() => match order.as_deref() {
                Some("resign") => elections.iter().for_each(Election::resign),
                Some("end") => break,
                order => return Err(format!("unexpected order: {order:?}").into()),
            },
        }
    }
    standing.shutdown().await;
    zoolock.close().await;
    Ok(())
}

async fn stand_in(election: Election, number: usize, broken: Option<CandidateBug>) -> Outcome<()> {
    loop {
        match election.run(|term| work(term, number, broken)).await? {
            Ended::Resigned => {}
            Ended::Returned(()) => return Err("the work returned by itself".into()),
        }
    }
}

/// Reports the term again and again. In every other election, works on until it is dropped.
async fn work(term: Term, election: usize, broken: Option<CandidateBug>) {
    let end = ReportsEnd { election, token: term.token().to_string() };
    end.report(TermMoment::Began, now());
    if broken == Some(CandidateBug::Outlives) {
        let token = end.token.clone();
        tokio::spawn(async move {
            let outlives = std::mem::ManuallyDrop::new(ReportsEnd { election, token });
            loop {
                outlives.report(TermMoment::Valid { left: 0 }, now());
                sleep(LOOK).await;
            }
        });
    }
    loop {
        // The clock is read before the check: even if the process is stopped in between, a valid term was valid then.
        let at = now();
        let left = u64::try_from(term.valid_until().remaining().as_millis()).unwrap_or(u64::MAX);
        end.report(if term.is_valid() { TermMoment::Valid { left } } else { TermMoment::Invalid }, at);
        tokio::select! {
            () = sleep(LOOK) => {}
            () = term.stopping(), if election.is_multiple_of(2) => return,
        }
    }
}

struct ReportsEnd {
    election: usize,
    token: String,
}

impl ReportsEnd {
    fn report(&self, what: TermMoment, at: i64) {
        let report = TermReport { election: self.election, token: self.token.clone(), at, what };
        // The report fails only if the drill has ended.
        let _ = send_report(&report);
    }
}

impl Drop for ReportsEnd {
    fn drop(&mut self) {
        self.report(TermMoment::Ended, now());
    }
}
