//! The measurements of the embedded server and Apache ZooKeeper.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use zoolock_wire::Request;

use crate::Outcome;
use crate::blocking_client::{BlockingClient, create_request};
use crate::process::{processor_time, resident};
use crate::servers::{RunningServer, ServerKind};

const SESSIONS: usize = 8;
/// Number of requests that a session has in flight.
const WINDOW: usize = 500;
const WINDOWS: usize = 60;
const AWAITED: usize = 1_000;
/// Number of windows of requests before the measurement, so that Java has compiled the code.
const WARM_UP: usize = 40;

/// The settings of a measurement.
pub(crate) struct MeasurementSettings {
    pub(crate) rounds: usize,
    pub(crate) znodes: usize,
    pub(crate) dir: PathBuf,
    pub(crate) zoolock: PathBuf,
}

/// The samples of both servers: one for each round.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ServerFigures {
    pub(crate) znodes: usize,
    pub(crate) ours: Samples,
    pub(crate) apache: Samples,
}

/// The samples of one server.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Samples {
    pub(crate) start_ms: Vec<f64>,
    pub(crate) idle_mib: Vec<f64>,
    pub(crate) awaited_p50_us: Vec<f64>,
    pub(crate) awaited_p99_us: Vec<f64>,
    pub(crate) creates: Piped,
    pub(crate) reads: Piped,
    pub(crate) deletes: Piped,
    pub(crate) full_mib: Vec<f64>,
}

/// The samples of pipelined requests of one kind.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Piped {
    pub(crate) per_second: Vec<f64>,
    pub(crate) cpu_us: Vec<f64>,
}

/// Measures both servers alternately.
pub(crate) fn run(settings: &MeasurementSettings) -> Outcome<ServerFigures> {
    let mut figures = ServerFigures { znodes: settings.znodes, ..ServerFigures::default() };
    for round in 1..=settings.rounds {
        for kind in ServerKind::ZOOKEEPER {
            eprintln!("round {round} of {}: {kind:?}", settings.rounds);
            let samples = if kind == ServerKind::Ours { &mut figures.ours } else { &mut figures.apache };
            measure(kind, settings, samples)?;
        }
    }
    Ok(figures)
}

fn measure(kind: ServerKind, settings: &MeasurementSettings, samples: &mut Samples) -> Outcome<()> {
    let server = RunningServer::start(kind, &settings.zoolock, &settings.dir)?;
    samples.start_ms.push(server.start.as_secs_f64() * 1e3);
    thread::sleep(Duration::from_secs(2));
    samples.idle_mib.push(memory_mib(&server)?);

    let mut clients =
        (0..SESSIONS).map(|_| BlockingClient::connect(server.addr)).collect::<Outcome<Vec<_>>>()?;
    clients[0].exchange(["/bench", "/full"].map(|path| create_request(path.to_owned())).into_iter())?;
    for (at, what) in [create_request, read_request, delete_request].into_iter().enumerate() {
        measure_pipelined(&server, &mut clients, WARM_UP, what)
            .map_err(|error| format!("warm-up {at}: {error}"))?;
    }

    let mut latencies = (0..AWAITED)
        .map(|i| {
            let begun = Instant::now();
            clients[0].exchange(std::iter::once(create_request(format!("/bench/awaited-{i}"))))?;
            Ok(begun.elapsed().as_secs_f64() * 1e6)
        })
        .collect::<Outcome<Vec<f64>>>()?;
    latencies.sort_by(f64::total_cmp);
    samples.awaited_p50_us.push(latencies[AWAITED / 2]);
    samples.awaited_p99_us.push(latencies[AWAITED * 99 / 100]);

    for (piped_samples, what) in [
        (&mut samples.creates, create_request as fn(String) -> Request),
        (&mut samples.reads, read_request),
        (&mut samples.deletes, delete_request),
    ] {
        let (per_second, cpu_us) = measure_pipelined(&server, &mut clients, WINDOWS, what)?;
        piped_samples.per_second.push(per_second);
        piped_samples.cpu_us.push(cpu_us);
    }

    let filler = &mut clients[0];
    for first in (0..settings.znodes).step_by(WINDOW) {
        let last = (first + WINDOW).min(settings.znodes);
        filler.exchange((first..last).map(|i| create_request(format!("/full/n{i:010}"))))?;
    }
    thread::sleep(Duration::from_secs(3));
    samples.full_mib.push(memory_mib(&server)?);
    Ok(())
}

/// Sends pipelined requests on all sessions at once. Returns the requests per second, and the microseconds of the
/// server's processor time per request.
fn measure_pipelined(
    server: &RunningServer,
    clients: &mut [BlockingClient],
    windows: usize,
    what: fn(String) -> Request,
) -> Outcome<(f64, f64)> {
    let (cpu_before, begun) = (processor_time(server.pid())?, Instant::now());
    thread::scope(|scope| {
        let workers: Vec<_> = clients
            .iter_mut()
            .enumerate()
            .map(|(at, client)| {
                scope.spawn(move || {
                    (0..windows).try_for_each(|window| {
                        client.exchange((0..WINDOW).map(|i| what(format!("/bench/{at}-{window}-{i}"))))
                    })
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a worker panicked")?)
    })?;
    let (took, used) = (begun.elapsed(), processor_time(server.pid())?.saturating_sub(cpu_before));
    let count = (clients.len() * windows * WINDOW) as f64;
    Ok((count / took.as_secs_f64(), used.as_secs_f64() * 1e6 / count))
}

fn read_request(path: String) -> Request {
    Request::GetData { path, watch: false }
}

fn delete_request(path: String) -> Request {
    Request::Delete { path, version: -1 }
}

fn memory_mib(server: &RunningServer) -> Outcome<f64> {
    Ok(resident(server.pid())? as f64 / f64::from(1 << 20))
}
