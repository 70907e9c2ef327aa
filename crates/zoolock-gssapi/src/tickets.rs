//! Tickets: fetches them before the client crate needs them, and says why there are none.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libgssapi::context::{ClientCtx, CtxFlags};
use libgssapi::credential::{Cred, CredUsage};
use libgssapi::error::Error as GssError;
use libgssapi::name::Name;
use libgssapi::oid::{GSS_MECH_KRB5, GSS_NT_HOSTBASED_SERVICE, OidSet};
use tokio::runtime::{Builder, Handle, Runtime};
use zookeeper_client::SaslOptions;
use zoolock::Error;
use zoolock::sasl::{Authenticator, BoxFuture, Missing};

use crate::{Kerberos, cache};

/// The message while the KDC has not answered.
const SILENCE: &str = "the Kerberos server (KDC) has not answered; check its address in krb5.conf";

/// Age up to which tickets are not fetched again, so that a client without a server does not ask the KDC in every round.
const FRESH: Duration = Duration::from_secs(5);

/// Name of the threads.
const THREADS: &str = "zoolock-kerberos";

/// The tickets for one service, and the threads of its sessions.
///
/// GSSAPI blocks its caller. It asks the KDC for tickets that are not in the cache. It also asks for a ticket to forward on
/// every connection, because the client crate allows that. It waits half a minute for a KDC that does not answer. Therefore
/// sessions with Kerberos run on threads of their own, apart from the thread that watches over leases.
pub(crate) struct Tickets {
    kerberos: Kerberos,
    hosts: Vec<String>,
    last_fetch: Mutex<LastFetch>,
    /// Held while a fetch runs: fetches that hang block at most one thread.
    turn: Arc<tokio::sync::Mutex<()>>,
    handle: Handle,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
}

/// The result of the last fetch.
#[derive(Default)]
struct LastFetch {
    problem: Option<String>,
    /// The time of the fetch, if it succeeded.
    fetched_at: Option<Instant>,
}

impl Tickets {
    pub(crate) fn new(kerberos: Kerberos, hosts: Vec<String>) -> Result<Tickets, Error> {
        // Two: while one session waits for the KDC, another can renew its lease.
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(1)
            .thread_name(THREADS)
            .enable_all()
            .build()
            .map_err(|error| Error::Unavailable {
                address: "this process".to_owned(),
                message: format!("cannot start the threads {THREADS}: {error}"),
                source: Some(Arc::new(error)),
            })?;
        Ok(Tickets {
            kerberos,
            hosts,
            last_fetch: Mutex::default(),
            turn: Arc::default(),
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }

    fn last_fetch(&self) -> MutexGuard<'_, LastFetch> {
        self.last_fetch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fetch_with(&self, flags: CtxFlags) -> Result<(), Missing> {
        let turn = self.turn.clone().lock_owned().await;
        self.last_fetch().problem.get_or_insert_with(|| SILENCE.to_owned());
        let (service, hosts) = (self.kerberos.service.clone(), self.hosts.clone());
        let fetching = self.handle.spawn_blocking(move || {
            let fetched = fetch_any(&service, &hosts, flags);
            drop(turn);
            fetched
        });
        // Fails only while the runtime shuts down.
        let Ok(fetched) = fetching.await else { return Ok(()) };
        let problem = fetched.as_ref().err().map(|missing| missing.message.clone());
        *self.last_fetch() = LastFetch { fetched_at: fetched.is_ok().then(Instant::now), problem };
        fetched
    }
}

impl Authenticator for Tickets {
    fn options(&self) -> SaslOptions {
        self.kerberos.options()
    }

    fn runtime(&self) -> Handle {
        self.handle.clone()
    }

    /// Does what the client crate is about to do. The client crate itself keeps the reason of a failure to itself, and tries
    /// again until the deadline.
    fn fetch(&self) -> BoxFuture<'_, Result<(), Missing>> {
        Box::pin(async move {
            let fetched_at = self.last_fetch().fetched_at;
            match fetched_at {
                Some(fetched_at) if fetched_at.elapsed() < FRESH => Ok(()),
                _ => self.fetch_with(CtxFlags::all()).await,
            }
        })
    }

    /// Fetches the service ticket into the cache, unless a fetch is running already.
    fn refresh(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if self.turn.try_lock().is_ok() {
                let _ = self.fetch_with(CtxFlags::GSS_C_MUTUAL_FLAG).await;
            }
        })
    }

    fn problem(&self) -> Option<String> {
        self.last_fetch().problem.clone()
    }

    fn refusal(&self) -> String {
        let service = &self.kerberos.service;
        format!(
            "the server does not accept the Kerberos ticket; check that it speaks GSSAPI (`zoolock serve` does not), and that \
             its keytab is for {service}/{}",
            self.hosts.join(&format!(" or {service}/"))
        )
    }
}

impl Drop for Tickets {
    fn drop(&mut self) {
        // Does not wait: a thread may be blocked by a silent KDC, and the caller may be an executor.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The error codes of libkrb5 (`krb5_err`) that have a remedy of their own.
mod code {
    pub(super) const SERVICE_UNKNOWN: u32 = 0x96c7_3a07;
    pub(super) const CLOCKS_DIFFER: u32 = 0x96c7_3a25;
    pub(super) const REALM_UNKNOWN: u32 = 0x96c7_3a9a;
    pub(super) const KDC_UNREACHABLE: u32 = 0x96c7_3a9c;
    pub(super) const NO_CACHE: u32 = 0x96c7_3ac3;
    pub(super) const REALM_UNRESOLVED: u32 = 0x96c7_3adc;
}

/// Fetches a ticket for each host. One ticket is enough.
fn fetch_any(service: &str, hosts: &[String], flags: CtxFlags) -> Result<(), Missing> {
    let (mut has_ticket, mut refused) = (false, None);
    for host in hosts {
        match fetch(service, host, flags) {
            Ok(()) => has_ticket = true,
            Err(missing) if missing.is_final => refused = refused.or(Some(missing)),
            // The KDC would not answer for the next host either.
            Err(missing) => return if has_ticket { Ok(()) } else { Err(missing) },
        }
    }
    match refused {
        Some(missing) if !has_ticket => Err(missing),
        _ => Ok(()),
    }
}

/// Fetches the ticket for one host into the cache.
fn fetch(service: &str, host: &str, flags: CtxFlags) -> Result<(), Missing> {
    const KINIT: &str = "run kinit, or name a client keytab in KRB5_CLIENT_KTNAME";
    const NO_TICKET: &str = "no Kerberos ticket";
    let no_ticket = |error| missing(NO_TICKET, &error, KINIT, true);
    cache::check().map_err(|why| Missing { message: format!("{NO_TICKET}: {why}"), is_final: true })?;
    let mut mechanisms = OidSet::new().map_err(no_ticket)?;
    mechanisms.add(&GSS_MECH_KRB5).map_err(no_ticket)?;
    let client = Cred::acquire(None, None, CredUsage::Initiate, Some(&mechanisms)).map_err(no_ticket)?;
    let what = format!("no Kerberos ticket for {service}/{host}");
    let no_service_ticket = |error: GssError| {
        let (remedy, is_final) = match error.minor {
            // With a client keytab and a silent KDC, there is no cache yet.
            code::KDC_UNREACHABLE | code::NO_CACHE => ("check that the KDC in krb5.conf runs", false),
            // The realm may be in DNS, which may answer soon.
            code::REALM_UNKNOWN | code::REALM_UNRESOLVED => {
                ("check that krb5.conf or DNS names the KDC of the realm", false)
            }
            code::CLOCKS_DIFFER => ("set the clock of this machine", true),
            code::SERVICE_UNKNOWN => {
                ("name the service as in ZooKeeper's keytab, and its realm in krb5.conf", true)
            }
            _ => (KINIT, true),
        };
        missing(&what, &error, remedy, is_final)
    };
    let target = format!("{service}@{host}");
    let target = Name::new(target.as_bytes(), Some(&GSS_NT_HOSTBASED_SERVICE)).map_err(no_service_ticket)?;
    ClientCtx::new(Some(client), target, flags, Some(&GSS_MECH_KRB5))
        .step(None, None)
        .map_err(no_service_ticket)?;
    Ok(())
}

fn missing(what: &str, error: &GssError, remedy: &str, is_final: bool) -> Missing {
    Missing { message: format!("{what}: {}; {remedy}", text(error)), is_final }
}

/// Returns the mechanism's text of an error, without the general text of GSSAPI. Works only on the thread of the error.
fn text(error: &GssError) -> String {
    let text = error.to_string();
    let inner = text.split_once(" (").and_then(|(_, inner)| inner.strip_suffix(')'));
    inner.unwrap_or(&text).to_owned()
}
