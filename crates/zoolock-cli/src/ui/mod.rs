//! `zoolock ui`: the locks in a browser. One process, no network but its own; pages are whole without a script, and change
//! under the reader's eyes with one.

mod board;
mod clock;
mod deeds;
mod eye;
mod history;
mod http;
mod live;
mod login;
mod metrics;
mod owners;
mod pages;
pub(crate) mod plan;
mod shield;

use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::sync::watch;
use zoolock::{LockPath, Zoolock};

use self::board::Boards;
use self::eye::Eyes;
use self::history::History;
use self::login::{Door, Viewer};
use self::plan::Ui;
use crate::connect::{close, connect};
use crate::exit::{Exit, Failure};
use crate::list::print;
use crate::local::Keeper;
use crate::plan::Service;
use crate::pokes::Pokes;
use crate::signals::{Signals, name as signal_name};
use crate::talk::Talk;

/// More than any form of ours has.
const FORM_LIMIT: usize = 16 * 1024;
/// A goodbye to the service.
const FAREWELL: Duration = Duration::from_secs(2);

/// What every request needs.
#[derive(Clone)]
struct Site(Arc<Inner>);

struct Inner {
    zoolock: Zoolock,
    service: Service,
    hosts: Vec<String>,
    boards: Boards,
    history: Arc<Mutex<History>>,
    eyes: Eyes,
    door: Door,
    places: Arc<AtomicUsize>,
    stop: watch::Receiver<bool>,
    talk: Arc<Talk>,
}

impl std::ops::Deref for Site {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Inner {
    /// The lock that is meant by a name or a path.
    fn path(&self, name: &str) -> Result<String, zoolock::Error> {
        Ok(LockPath::parse(name, &self.service.root)?.to_string())
    }

    fn viewer(&self, headers: &HeaderMap) -> Viewer {
        self.door.viewer(headers)
    }
}

/// Serves pages until told to stop.
pub(crate) async fn ui(plan: Ui, talk: &Arc<Talk>) -> Result<Exit, Failure> {
    let mut signals = Signals::listen().map_err(|error| Failure::unavailable(error.to_string()))?;
    let failed = |error: std::io::Error| {
        let exit = match error.kind() {
            std::io::ErrorKind::PermissionDenied => Exit::DENIED,
            _ => Exit::UNAVAILABLE,
        };
        Failure::new(
            exit,
            format!("--listen {}: {error}; choose another port, or 0 for a free one", plan.listen),
        )
    };
    let listener = TcpListener::bind(plan.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let zoolock = connect(&plan.service, talk).await?;
    let _keeper = Keeper::of(&plan.service, talk);
    warn(&plan, address, talk);
    let (stopping, stop) = watch::channel(false);
    let site = site(plan, zoolock.clone(), stop.clone(), talk);
    // Whoever closed it has seen enough.
    print(&format!("http://{address}/\n"))?;
    let serving = http::answer(routes(site.clone()), listener, stop);
    let stopped = async {
        let signal = signals.end().await;
        talk.detail(format_args!("{} received", signal_name(signal)));
        let _ = stopping.send(true);
        signals.end().await;
    };
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        () = &mut serving => {}
        // The second one is an order.
        _ = stopped => {}
    }
    let _ = tokio::time::timeout(FAREWELL, site.eyes.close()).await;
    drop(site);
    close(zoolock).await;
    Ok(Exit::OK)
}

/// Resolves when we stop.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// A page without TLS on the network is somebody's decision, since reverse proxies live on other hosts, too. It is to be
/// one that was noticed.
fn warn(plan: &Ui, address: SocketAddr, talk: &Talk) {
    if address.ip().is_loopback() {
        return;
    }
    talk.note("whoever reaches this address sees every lock, unencrypted; let a firewall or a proxy choose who does");
    if plan.token.is_some() {
        talk.note("the token to log in with crosses the network unencrypted, unless a proxy speaks TLS");
    }
}

fn site(plan: Ui, zoolock: Zoolock, stop: watch::Receiver<bool>, talk: &Arc<Talk>) -> Site {
    let history = Arc::<Mutex<History>>::default();
    let pokes = Pokes::new(plan.service.clone());
    Site(Arc::new(Inner {
        zoolock: zoolock.clone(),
        boards: Boards::start(zoolock.clone(), Arc::clone(&history)),
        eyes: Eyes::new(zoolock, Arc::clone(&history), pokes),
        door: Door::new(plan.token),
        service: plan.service,
        hosts: plan.hosts,
        history,
        places: Arc::default(),
        stop,
        talk: Arc::clone(talk),
    }))
}

fn routes(site: Site) -> Router {
    Router::new()
        .route("/", get(pages::locks::locks))
        .route("/lock", get(pages::lock::lock))
        .route("/graph", get(pages::graph::graph))
        .route("/sessions", get(pages::sessions::sessions))
        .route("/login", get(pages::login::form).post(pages::login::enter))
        .route("/logout", post(pages::login::leave))
        .route("/ask", get(deeds::ask))
        .route("/deed", post(deeds::deed))
        .route("/events", get(live::events))
        .route("/metrics", get(metrics::metrics))
        .route("/style.css", get(|| asset("text/css; charset=utf-8", include_str!("style.css"))))
        .route("/script.js", get(|| asset("text/javascript; charset=utf-8", include_str!("script.js"))))
        .route("/icon.svg", get(|| asset("image/svg+xml", include_str!("icon.svg"))))
        .fallback(pages::missing)
        .layer(DefaultBodyLimit::max(FORM_LIMIT))
        .layer(from_fn_with_state(site.clone(), shield::shield))
        .with_state(site)
}

async fn asset(kind: &'static str, text: &'static str) -> Response {
    let headers = [(header::CONTENT_TYPE, HeaderValue::from_static(kind))];
    (StatusCode::OK, headers, text).into_response()
}
