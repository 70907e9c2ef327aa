//! Kerberos tickets: fetches them for a new session, and reports why there are none.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use libgssapi::context::{ClientCtx, CtxFlags};
use libgssapi::credential::{Cred, CredUsage};
use libgssapi::error::Error as GssError;
use libgssapi::name::Name;
use libgssapi::oid::{GSS_MECH_KRB5, GSS_NT_HOSTBASED_SERVICE, OidSet};
use tokio::sync::oneshot;
use zoolock::sasl::{Authenticator, BoxFuture, MissingCredentials};
use zoolock_client::sasl::{SaslClient, SaslExchange};

use crate::exchange::{ThreadedExchange, Threads};
use crate::{Kerberos, cache};

/// The message while the KDC has not answered.
const SILENCE: &str = "the Kerberos server (KDC) has not answered; check its address in krb5.conf";

/// Age up to which tickets are not fetched again. A client that reaches no server would otherwise ask the KDC at every
/// attempt.
const FRESH: Duration = Duration::from_secs(5);

/// The tickets of one client.
pub(crate) struct Tickets {
    kerberos: Kerberos,
    hosts: Vec<String>,
    last_fetch: Arc<Mutex<LastFetch>>,
    /// Held while a fetch runs, so that fetches that hang block at most one thread.
    turn: Arc<tokio::sync::Mutex<()>>,
    threads: Threads,
}

/// The result of the last fetch.
#[derive(Default)]
struct LastFetch {
    problem: Option<String>,
    /// The time of the fetch, if it succeeded.
    fetched_at: Option<Instant>,
}

impl Tickets {
    pub(crate) fn new(kerberos: Kerberos, hosts: Vec<String>) -> Tickets {
        Tickets {
            kerberos,
            hosts,
            last_fetch: Arc::default(),
            turn: Arc::default(),
            threads: Threads::default(),
        }
    }

    fn last_fetch(&self) -> MutexGuard<'_, LastFetch> {
        self.last_fetch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fetch_tickets(&self) -> Result<(), MissingCredentials> {
        let turn = self.turn.clone().lock_owned().await;
        self.last_fetch().problem.get_or_insert_with(|| SILENCE.to_owned());
        let (service, hosts) = (self.kerberos.service.clone(), self.hosts.clone());
        let (sender, fetched) = oneshot::channel();
        self.threads.try_run(move || {
            let _ = sender.send(fetch_any(&service, &hosts));
            drop(turn);
        });
        let no_thread =
            || MissingCredentials { message: "no thread for Kerberos".to_owned(), is_final: false };
        let fetched = fetched.await.unwrap_or_else(|_| Err(no_thread()));
        let problem = fetched.as_ref().err().map(|missing| missing.message.clone());
        *self.last_fetch() = LastFetch { fetched_at: fetched.is_ok().then(Instant::now), problem };
        fetched
    }
}

impl SaslClient for Tickets {
    fn start_exchange(&self, host: &str) -> Box<dyn SaslExchange> {
        let host = self.kerberos.host.clone().unwrap_or_else(|| host.to_owned());
        let service = self.kerberos.service.clone();
        let last_fetch = self.last_fetch.clone();
        Box::new(ThreadedExchange::start(&self.threads, move || {
            let begun = create_context_and_token(&service, &host);
            let problem = begun.as_ref().err().map(|missing| missing.message.clone());
            last_fetch.lock().unwrap_or_else(PoisonError::into_inner).problem = problem;
            begun.ok()
        }))
    }
}

impl Authenticator for Tickets {
    fn mechanism(self: Arc<Self>) -> Arc<dyn SaslClient> {
        self
    }

    /// Fetches a service ticket into the cache, as each connection does. Unlike a connection,
    /// reports why a fetch fails.
    fn fetch(&self) -> BoxFuture<'_, Result<(), MissingCredentials>> {
        Box::pin(async move {
            let fetched_at = self.last_fetch().fetched_at;
            match fetched_at {
                Some(fetched_at) if fetched_at.elapsed() < FRESH => Ok(()),
                _ => self.fetch_tickets().await,
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

/// The error codes of libkrb5 (`krb5_err`) for which the message names a specific remedy.
mod code {
    pub(super) const SERVICE_UNKNOWN: u32 = 0x96c7_3a07;
    pub(super) const CLOCKS_DIFFER: u32 = 0x96c7_3a25;
    pub(super) const REALM_UNKNOWN: u32 = 0x96c7_3a9a;
    pub(super) const KDC_UNREACHABLE: u32 = 0x96c7_3a9c;
    pub(super) const NO_CACHE: u32 = 0x96c7_3ac3;
    pub(super) const REALM_UNRESOLVED: u32 = 0x96c7_3adc;
}

/// Tries to fetch a ticket for each host. Succeeds if the cache then has a ticket for at least one
/// host.
fn fetch_any(service: &str, hosts: &[String]) -> Result<(), MissingCredentials> {
    let (mut has_ticket, mut refused) = (false, None);
    for host in hosts {
        match create_context_and_token(service, host) {
            Ok(_) => has_ticket = true,
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

/// Creates the GSSAPI context of a connection with this host, and the first token. Fetches the
/// ticket for the host if the cache has none.
fn create_context_and_token(service: &str, host: &str) -> Result<(ClientCtx, Bytes), MissingCredentials> {
    let mut context = create_context(service, host)?;
    let token = context.step(None, None).map_err(|error| no_service_ticket(service, host, &error))?;
    let token = token.map_or(Bytes::new(), |token| Bytes::copy_from_slice(&token));
    Ok((context, token))
}

const KINIT: &str = "run kinit, or name a client keytab in KRB5_CLIENT_KTNAME";

/// Creates the GSSAPI context of a connection with this host.
fn create_context(service: &str, host: &str) -> Result<ClientCtx, MissingCredentials> {
    const NO_TICKET: &str = "no Kerberos ticket";
    let no_ticket = |error| missing_credentials(NO_TICKET, &error, KINIT, true);
    cache::check_ticket_cache()
        .map_err(|why| MissingCredentials { message: format!("{NO_TICKET}: {why}"), is_final: true })?;
    let mut mechanisms = OidSet::new().map_err(no_ticket)?;
    mechanisms.add(&GSS_MECH_KRB5).map_err(no_ticket)?;
    let client = Cred::acquire(None, None, CredUsage::Initiate, Some(&mechanisms)).map_err(no_ticket)?;
    let target = format!("{service}@{host}");
    let target = Name::new(target.as_bytes(), Some(&GSS_NT_HOSTBASED_SERVICE))
        .map_err(|error| no_service_ticket(service, host, &error))?;
    // `GSS_C_DELEG_FLAG` is not set, because the server needs no forwarded ticket.
    let flags = CtxFlags::GSS_C_MUTUAL_FLAG | CtxFlags::GSS_C_INTEG_FLAG;
    Ok(ClientCtx::new(Some(client), target, flags, Some(&GSS_MECH_KRB5)))
}

fn no_service_ticket(service: &str, host: &str, error: &GssError) -> MissingCredentials {
    let (remedy, is_final) = match error.minor {
        // A client with a keytab has no cache until the KDC has answered.
        code::KDC_UNREACHABLE | code::NO_CACHE => ("check that the KDC in krb5.conf runs", false),
        // The realm may be listed in DNS, and DNS may answer the next attempt.
        code::REALM_UNKNOWN | code::REALM_UNRESOLVED => {
            ("check that krb5.conf or DNS names the KDC of the realm", false)
        }
        code::CLOCKS_DIFFER => ("set the clock of this machine", true),
        code::SERVICE_UNKNOWN => {
            ("name the service as in ZooKeeper's keytab, and its realm in krb5.conf", true)
        }
        _ => (KINIT, true),
    };
    missing_credentials(&format!("no Kerberos ticket for {service}/{host}"), error, remedy, is_final)
}

fn missing_credentials(what: &str, error: &GssError, remedy: &str, is_final: bool) -> MissingCredentials {
    MissingCredentials { message: format!("{what}: {}; {remedy}", mechanism_error_text(error)), is_final }
}

/// Returns the mechanism's text of an error, without the general text of GSSAPI. Must be called on the thread on which
/// the error occurred.
fn mechanism_error_text(error: &GssError) -> String {
    let text = error.to_string();
    let inner = text.split_once(" (").and_then(|(_, inner)| inner.strip_suffix(')'));
    inner.unwrap_or(&text).to_owned()
}
