//! `zoolock bench`: what this service can do, in twenty seconds, and nothing left of it.

mod ground;
mod report;
mod works;

use std::sync::Arc;
use std::time::Duration;

use zoolock::Zoolock;

use self::ground::Ground;
use self::report::Report;
use self::works::Taken;
use crate::acquire::interrupted;
use crate::args::{ColorWhen, Work};
use crate::connect::{close, connect};
use crate::duration::humane;
use crate::exit::{Exit, Failure};
use crate::list::{Look, print};
use crate::plan::{Bench, Endpoint, Service};
use crate::signals::Signals;
use crate::talk::Talk;

/// As long as any name of ours, to be tried on the root.
pub(crate) const LONGEST_NAME: &str = "bench-0123456789abcdef/acquire-release";

/// How many locks are taken at once: so many fit on one session, as long as the root has not more than fifty letters.
const LOCKS: usize = 500;
/// In so many parts the time of a work is cut, where none is shorter than a slice.
const ROUNDS: u32 = 6;
const SLICE: Duration = Duration::from_millis(500);
/// A work that has not ended by so much after its time is stuck.
const STUCK: Duration = Duration::from_secs(30);
/// How long it may take to clean up.
const SWEEP: Duration = Duration::from_secs(15);

/// Measures the works in rounds, prints what they took, and removes what was made, however it ended.
pub(crate) async fn bench(plan: Bench, color: ColorWhen, talk: &Arc<Talk>) -> Result<Exit, Failure> {
    let mut signals = Signals::listen().map_err(|error| Failure::unavailable(error.to_string()))?;
    let service = below(&plan.service)?;
    let (clients, ground) = tokio::select! {
        biased;
        signal = signals.end() => return Err(interrupted(signal, "connecting; nothing was begun")),
        opened = open(&service, talk) => opened?,
    };
    let (named, shown) = match &service.endpoint {
        Endpoint::Remote { hosts, .. } => (hosts.as_str(), hosts.as_str()),
        Endpoint::Local => ("local", "this user's server"),
    };
    talk.note(format_args!(
        "this loads {shown} for about {}{}, all below {}",
        humane(plan.time * u32::try_from(plan.works.len()).unwrap_or(u32::MAX)),
        if plan.works.contains(&Work::Many) {
            format!(": up to {LOCKS} locks at once")
        } else {
            String::new()
        },
        service.root,
    ));
    let (taken, ended) = measure(&plan, &clients, &ground, &mut signals, talk).await;
    talk.clear_status();
    sweep(clients, ground, &service, &mut signals, talk).await;
    if taken.is_empty() {
        return ended.map(|()| Exit::OK);
    }
    let report = Report::new(named, &service.root, &plan, &taken, ended.is_ok());
    let printed = match plan.json {
        true => print(&report.json()),
        false => print(&report.table(&Look::of_stdout(color))),
    };
    talk.note("measured from this machine: the way to the server and back is in every figure");
    if ended.is_err() {
        talk.note("it ended early: the figures are of a part of the time");
    }
    match report.unsteady() {
        Some(times) => talk.note(format_args!(
            "one create + delete in a hundred took {times} times the median: something else is at work, there or here; \
             do not rely on a RATIO"
        )),
        // Programs do not read it.
        None if plan.json => {}
        None if plan.works.contains(&Work::CreateDelete) => talk
            .note("RATIO: the median beside the one of create-delete, the least that two awaited writes cost"),
        None => talk.note("there is no RATIO without --only create-delete"),
    }
    ended?;
    printed
}

/// Gives each work a part of its time in every round. One whole after the other they could not be compared: what else
/// the disk and the network do changes by the second, and a server that was idle gets faster.
async fn measure(
    plan: &Bench,
    clients: &[Zoolock; 2],
    ground: &Arc<Ground>,
    signals: &mut Signals,
    talk: &Talk,
) -> (Vec<(Work, Taken)>, Result<(), Failure>) {
    let rounds =
        u32::try_from(plan.time.as_millis() / SLICE.as_millis()).unwrap_or(u32::MAX).clamp(1, ROUNDS);
    let mut taken: Vec<(Work, Taken)> = Vec::new();
    for round in 1..=rounds {
        for (index, work) in plan.works.iter().copied().enumerate() {
            talk.status(&format!("{} (round {round} of {rounds})", report::name(work)));
            match one(work, plan.time / rounds, plan.tasks, clients, ground, signals).await {
                Err(failure) => return (taken, Err(failure)),
                Ok(more) => match taken.get_mut(index) {
                    Some((_, taken)) => taken.add(more),
                    None => taken.push((work, more)),
                },
            }
        }
    }
    (taken, Ok(()))
}

/// The same service, with a directory of our own for the root, so that whatever the clients make is in there.
fn below(service: &Service) -> Result<Service, Failure> {
    let number = getrandom::u64()
        .map_err(|error| Failure::unavailable(format!("no random number from the system: {error}")))?;
    let root = format!("{}/bench-{number:016x}", service.root.trim_end_matches('/'));
    Ok(Service { root, note: Some("zoolock bench".to_owned()), ..service.clone() })
}

/// Opens two sessions for locks and one for what is no lock; makes nothing yet.
async fn open(service: &Service, talk: &Talk) -> Result<([Zoolock; 2], Arc<Ground>), Failure> {
    let first = connect(service, talk).await?;
    let second = match connect(service, talk).await {
        Ok(second) => second,
        Err(failure) => {
            close(first).await;
            return Err(failure);
        }
    };
    match Ground::look(service).await {
        Ok(ground) => Ok(([first, second], Arc::new(ground))),
        Err(failure) => {
            tokio::join!(close(first), close(second));
            Err(failure)
        }
    }
}

/// One work, in a task of its own: the fast ones seldom wait, and signals must be heard meanwhile.
async fn one(
    work: Work,
    time: Duration,
    tasks: usize,
    clients: &[Zoolock; 2],
    ground: &Arc<Ground>,
    signals: &mut Signals,
) -> Result<Taken, Failure> {
    let (clients, ground) = (clients.clone(), Arc::clone(ground));
    let mut task = tokio::spawn(async move {
        match work {
            Work::CreateDelete => works::create_delete(&ground, time).await,
            Work::AcquireRelease => works::acquire_release(&clients[0], time).await,
            Work::Loop => works::take_and_drop(&clients[0], time).await,
            Work::HandOver => works::hand_over(&clients, tasks, time).await,
            Work::Many => works::many(&clients[0], LOCKS, time).await,
            Work::ReAcquire => works::re_acquire(&clients[0], time).await,
        }
    });
    let name = report::name(work);
    let failure = tokio::select! {
        biased;
        signal = signals.end() => interrupted(signal, &format!("measuring {name}")),
        ended = &mut task => return match ended {
            Ok(taken) => taken.map_err(|failure| Failure::new(failure.exit, format!("{name}: {failure}"))),
            Err(panic) => Err(Failure::unavailable(format!("{name}: {panic}"))),
        },
        () = tokio::time::sleep(time + STUCK) => Failure::unavailable(format!(
            "{name}: the service answers too slowly, or not at all; no figure after {}", humane(time + STUCK)
        )),
    };
    task.abort();
    // What it held is let go of before the sessions are closed.
    let _ = task.await;
    Err(failure)
}

/// Removes everything. One more signal, or a service that does not answer, leaves it to the service: contenders end with
/// their sessions, empty directories are containers.
async fn sweep(
    clients: [Zoolock; 2],
    ground: Arc<Ground>,
    service: &Service,
    signals: &mut Signals,
    talk: &Talk,
) {
    let swept = async {
        let [first, second] = clients;
        // With them go the znodes that they may still be about to make.
        tokio::join!(close(first), close(second));
        ground.clear(service).await?;
        if let Some(ground) = Arc::into_inner(ground) {
            ground.close().await;
        }
        Ok::<(), Failure>(())
    };
    let failure = tokio::select! {
        swept = tokio::time::timeout(SWEEP, swept) => match swept {
            Ok(Ok(())) => {
                talk.note(format_args!("{} is removed", service.root));
                return;
            }
            Ok(Err(failure)) => failure.to_string(),
            Err(_) => "the service does not answer".to_owned(),
        },
        _ = signals.end() => "a signal ended it".to_owned(),
    };
    talk.note(format_args!(
        "{} could not be removed: {failure}; what is in it goes with our sessions, and the service then removes it by \
         itself, unless it is older than ZooKeeper 3.5.3",
        service.root
    ));
}
