//! `zoolock ui`: shows the locks in a browser.
//!
//! One process serves everything, and pages load nothing from other hosts. Pages are complete
//! without a script. With the script, an open page updates itself. No request changes a lock, so
//! viewers need no login. Pages show the commands that change a lock instead.

mod clock;
mod http;
mod live;
mod lock_poller;
mod metrics;
mod news;
mod overview;
mod pages;
mod request_checks;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;
use zoolock::Zoolock;
use zoolock::internals::LockPath;
use zoolock_server::http::ConnectionLimits;

use self::lock_poller::LockPollers;
use self::overview::OverviewReader;
use crate::args::UiArgs;
use crate::base::exit::{Exit, Failure};
use crate::base::reporter::{Reporter, escape_unprintable};
use crate::base::signals::{Signals, signal_name};
use crate::local::ServerKeeper;
use crate::local::limits::{raise_file_limit, spare_files};
use crate::plan::{ConnectionSettings, Context};
use crate::render::text::print;
use crate::service::connect::{close, connect, learn_server_clock};

/// State shared by all requests.
type Site = Arc<SiteState>;

struct SiteState {
    zoolock: Zoolock,
    service: ConnectionSettings,
    /// The servers and the root, for the head of each page.
    ensemble: String,
    hosts: Vec<String>,
    overview: OverviewReader,
    lock_pollers: LockPollers,
    streams: Arc<ConnectionLimits>,
    stop: watch::Receiver<bool>,
}

impl SiteState {
    /// Returns the path of a lock, given its name below the root or its path.
    fn path(&self, name: &str) -> Result<String, zoolock::Error> {
        Ok(LockPath::parse(name, &self.service.root)?.to_string())
    }
}

impl UiArgs {
    /// Runs `zoolock ui`.
    pub(crate) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        context.refuse_json("ui")?;
        let service = context.connection()?;
        ui(self, service, &context.reporter).await
    }
}

/// Serves pages until a signal arrives.
async fn ui(args: UiArgs, service: ConnectionSettings, reporter: &Arc<Reporter>) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    signals.stay_at_hup_without_terminal(reporter);
    let failed = |error: std::io::Error| {
        Failure::cannot_listen(
            &error,
            format!("--listen {}: {error}; choose another port, or 0 for a free one", args.listen),
        )
    };
    let listener = TcpListener::bind(args.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let zoolock = connect(&service, reporter).await?;
    learn_server_clock(&zoolock).await;
    let _keeper = ServerKeeper::start_for(&service, reporter);
    warn_if_exposed(address, reporter);
    let (stopping, stop) = watch::channel(false);
    let (pages, streams) = http::page_and_stream_limits(spare_files(raise_file_limit()));
    let site = site(args.host, service, zoolock.clone(), streams, stop.clone());
    // `print` succeeds even if the reader of standard output has closed the pipe.
    print(&format!("http://{address}/\n"))?;
    let serving = http::serve(routes(site.clone()), listener, pages, stop);
    let stopped = async {
        let signal = signals.next_end_signal().await;
        reporter.note(format_args!("{} received; stopping", signal_name(signal)));
        let _ = stopping.send(true);
        signals.next_end_signal().await;
    };
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        () = &mut serving => {}
        // A second signal ends `ui` without waiting for open requests.
        _ = stopped => {}
    }
    site.lock_pollers.stop();
    drop(site);
    close(zoolock).await;
    Ok(Exit::OK)
}

/// Completes when `stop` is set.
async fn wait_until_stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Prints a warning if the pages are served on the network, where they are unencrypted. This is
/// allowed, because a reverse proxy on another host may need it.
fn warn_if_exposed(address: SocketAddr, reporter: &Reporter) {
    if address.ip().is_loopback() {
        return;
    }
    reporter.note("anyone who can connect to this address sees every lock, unencrypted; restrict access with a firewall or a proxy");
}

fn site(
    hosts: Vec<String>,
    service: ConnectionSettings,
    zoolock: Zoolock,
    streams: Arc<ConnectionLimits>,
    stop: watch::Receiver<bool>,
) -> Site {
    let ConnectionSettings { endpoint, root, .. } = &service;
    let ensemble = escape_unprintable(&format!("{} · {root}", endpoint.address()));
    Arc::new(SiteState {
        ensemble,
        zoolock: zoolock.clone(),
        overview: OverviewReader::start(zoolock.clone()),
        lock_pollers: LockPollers::new(zoolock),
        service,
        hosts,
        streams,
        stop,
    })
}

fn routes(site: Site) -> Router {
    Router::new()
        .route("/", get(pages::locks::locks))
        .route("/lock", get(pages::lock::lock))
        .route("/deadlocks", get(pages::deadlocks::deadlocks))
        .route("/events", get(live::events))
        .route("/metrics", get(metrics::metrics))
        .route("/style.css", get(|| asset("text/css; charset=utf-8", include_str!("style.css"))))
        .route("/script.js", get(|| asset("text/javascript; charset=utf-8", include_str!("script.js"))))
        .route("/icon.svg", get(|| asset("image/svg+xml", include_str!("icon.svg"))))
        .fallback(pages::not_found)
        .layer(from_fn_with_state(site.clone(), request_checks::check_request))
        .with_state(site)
}

async fn asset(kind: &'static str, text: &'static str) -> Response {
    let headers = [(header::CONTENT_TYPE, HeaderValue::from_static(kind))];
    (StatusCode::OK, headers, text).into_response()
}
