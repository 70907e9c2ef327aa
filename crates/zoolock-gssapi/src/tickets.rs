//! Kerberos: who we are where SASL is GSSAPI.

mod cache;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use libgssapi::context::{ClientCtx, CtxFlags};
use libgssapi::credential::{Cred, CredUsage};
use libgssapi::name::Name;
use libgssapi::oid::{GSS_MECH_KRB5, GSS_NT_HOSTBASED_SERVICE, OidSet};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use zookeeper_client as zk;

use crate::error::Error;
use crate::path::ConnectString;
use crate::session::lock;
use crate::zoolock::threads;

/// Who the service is, for those who show it a ticket of Kerberos. Give it to [`Builder::kerberos`](crate::Builder::kerberos).
///
/// Unless said otherwise, it is `zookeeper/HOST`, with each host of the connect string: what its keytab has. Which realm that
/// is in, and whether the host is looked up first, `krb5.conf` says.
///
/// # Examples
/// ```no_run
/// # async fn example() -> Result<(), zoolock::Error> {
/// use zoolock::{Kerberos, Zoolock};
///
/// let zl = Zoolock::builder().kerberos(Kerberos::new()).connect("zk1.example.org:2181").await?;
/// # drop(zl); Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Kerberos {
    service: String,
    host: Option<String>,
}

impl Default for Kerberos {
    fn default() -> Kerberos {
        Kerberos::new()
    }
}

impl Kerberos {
    /// The service `zookeeper` on each host of the connect string.
    pub fn new() -> Kerberos {
        Kerberos { service: "zookeeper".to_owned(), host: None }
    }

    /// Another service: what stands before the slash in its principal.
    pub fn service(mut self, name: impl Into<String>) -> Kerberos {
        self.service = name.into();
        self
    }

    /// What stands behind the slash, for all hosts of the connect string.
    pub fn host(mut self, host: impl Into<String>) -> Kerberos {
        self.host = Some(host.into());
        self
    }

    /// For the command, whose own requests go over the client crate, too. No promise is made about it.
    #[doc(hidden)]
    pub fn options(&self) -> Result<zk::SaslOptions, Error> {
        self.check()?;
        Ok(self.sasl())
    }

    /// The same: whether there are tickets for it.
    #[doc(hidden)]
    pub async fn look(&self, address: &str, patience: Duration) -> Result<(), Error> {
        let connect = ConnectString::parse(address)?;
        let tickets = Arc::new(Tickets::new(self.clone(), &connect)?);
        let (message, refused) = match tokio::time::timeout(patience, tickets.fetch()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(missing)) => (missing.message, missing.is_final),
            Err(_) => (SILENCE.to_owned(), false),
        };
        match refused {
            true => Err(Error::Denied { subject: connect.endpoints(), message }),
            false => Err(Error::unavailable(connect.endpoints(), message)),
        }
    }

    fn check(&self) -> Result<(), Error> {
        for part in [Some(&self.service), self.host.as_ref()].into_iter().flatten() {
            let is_odd = |c: char| matches!(c, '/' | '@') || c.is_whitespace() || c.is_control();
            if part.is_empty() || part.contains(is_odd) {
                let message = "is no part of a principal; a service is SERVICE/HOST, without a realm";
                return Err(Error::invalid(format!("{part:?}"), message));
            }
        }
        Ok(())
    }

    fn sasl(&self) -> zk::SaslOptions {
        let options = zk::SaslOptions::gssapi().with_username(self.service.clone());
        match &self.host {
            Some(host) => options.with_hostname(host.clone()).into(),
            None => options.into(),
        }
    }
}

/// What there is to say as long as nothing was answered.
const SILENCE: &str =
    "the KDC (the server of Kerberos) has not answered; see krb5.conf for where it should be";

/// The tickets for one service, and where its sessions run.
///
/// GSSAPI blocks its caller. It asks the KDC for what is not in the cache, and on every connection for a ticket that the
/// service may have, since the client crate allows it to forward ours. It waits half a minute for a KDC that says nothing. So
/// sessions with Kerberos run on threads of their own, beside the one that watches over leases.
pub(crate) struct Tickets {
    kerberos: Kerberos,
    hosts: Vec<String>,
    known: Mutex<Known>,
    /// One fetches at a time. Who is stuck must not keep more than one thread.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Taken only when dropped.
    runtime: Option<Runtime>,
}

/// What came of the last look.
#[derive(Default)]
struct Known {
    /// What keeps us from having tickets, if anything does.
    trouble: Option<String>,
    /// When we had them.
    had: Option<Instant>,
}

/// While no server can be reached the KDC is not asked in every round.
const FRESH: Duration = Duration::from_secs(5);

/// Why there is no ticket.
#[derive(Debug)]
pub(crate) struct Missing {
    message: String,
    /// It does not come by waiting.
    is_final: bool,
}

impl Tickets {
    pub(crate) fn new(kerberos: Kerberos, connect: &ConnectString) -> Result<Tickets, Error> {
        kerberos.check()?;
        let hosts = match &kerberos.host {
            Some(host) => vec![host.clone()],
            None => connect.hosts().iter().map(|(host, _)| host.clone()).collect(),
        };
        // Two: while one session asks, others renew their leases.
        let runtime = threads("zoolock-kerberos", 2, 1)?;
        Ok(Tickets { kerberos, hosts, known: Mutex::default(), turn: Arc::default(), runtime: Some(runtime) })
    }

    /// Opens a session, on the threads for it.
    pub(crate) async fn connect<F>(&self, open: F) -> Result<zk::Client, zk::Error>
    where
        F: Future<Output = Result<zk::Client, zk::Error>> + Send + 'static,
    {
        let Some(runtime) = &self.runtime else { return Err(zk::Error::ClientClosed) };
        // Whoever gives up ends it.
        let mut opening = JoinSet::new();
        opening.spawn_on(open, runtime.handle());
        match opening.join_next().await {
            Some(Ok(opened)) => opened,
            Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            _ => Err(zk::Error::ClientClosed),
        }
    }

    pub(crate) fn sasl(&self) -> zk::SaslOptions {
        self.kerberos.sasl()
    }

    /// Does what the client crate is about to do, so that what is wrong can be said: the crate tries again until the
    /// deadline, and keeps the reason to itself.
    pub(crate) async fn fetch(&self) -> Result<(), Missing> {
        match lock(&self.known).had {
            Some(had) if had.elapsed() < FRESH => return Ok(()),
            _ => {}
        }
        self.look(CtxFlags::all()).await
    }

    /// Gets into the cache what a session will need on its next connection, unless somebody does so already.
    pub(crate) async fn refresh(&self) {
        if self.turn.try_lock().is_ok() {
            let _ = self.look(CtxFlags::GSS_C_MUTUAL_FLAG).await;
        }
    }

    async fn look(&self, flags: CtxFlags) -> Result<(), Missing> {
        let Some(runtime) = &self.runtime else { return Ok(()) };
        let turn = self.turn.clone().lock_owned().await;
        lock(&self.known).trouble.get_or_insert_with(|| SILENCE.to_owned());
        let (kerberos, hosts) = (self.kerberos.clone(), self.hosts.clone());
        let looked = runtime.spawn_blocking(move || {
            let found = look(&kerberos, &hosts, flags);
            drop(turn);
            found
        });
        // Else the runtime is going down.
        let Ok(found) = looked.await else { return Ok(()) };
        let trouble = found.as_ref().err().map(|missing| missing.message.clone());
        *lock(&self.known) = Known { had: found.is_ok().then(Instant::now), trouble };
        found
    }

    /// What is wrong, as far as we know.
    pub(crate) fn trouble(&self) -> Option<String> {
        lock(&self.known).trouble.clone()
    }

    /// Whoever the service does not know although there is a ticket.
    pub(crate) fn unknown(&self) -> String {
        let service = &self.kerberos.service;
        format!(
            "the service does not know us by Kerberos; check that it speaks GSSAPI, which `zoolock serve` does not, and that \
             its keytab is for {service}/{}",
            self.hosts.join(&format!(" or {service}/"))
        )
    }
}

impl Drop for Tickets {
    fn drop(&mut self) {
        // Somebody may wait for a KDC on it, and this may be an executor's thread.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Missing {
    pub(crate) fn is_final(&self) -> bool {
        self.is_final
    }

    fn new(what: &str, error: &libgssapi::error::Error, next: &str, is_final: bool) -> Missing {
        Missing { message: format!("{what}: {}; {next}", said(error)), is_final }
    }
}

/// The errors of libkrb5 that tell us what to do (its `krb5_err`).
mod code {
    pub(super) const SERVICE_UNKNOWN: u32 = 0x96c7_3a07;
    pub(super) const CLOCKS_DIFFER: u32 = 0x96c7_3a25;
    pub(super) const REALM_UNKNOWN: u32 = 0x96c7_3a9a;
    pub(super) const KDC_UNREACHABLE: u32 = 0x96c7_3a9c;
    pub(super) const NO_CACHE: u32 = 0x96c7_3ac3;
    pub(super) const REALM_UNRESOLVED: u32 = 0x96c7_3adc;
}

/// One host that we have a ticket for is enough; those of the others are fetched meanwhile.
fn look(kerberos: &Kerberos, hosts: &[String], flags: CtxFlags) -> Result<(), Missing> {
    let (mut any, mut refused) = (false, None);
    for host in hosts {
        match ticket(&kerberos.service, host, flags) {
            Ok(()) => any = true,
            Err(missing) if missing.is_final => refused = refused.or(Some(missing)),
            // It would not answer for the next one either.
            Err(missing) => return if any { Ok(()) } else { Err(missing) },
        }
    }
    match refused {
        Some(missing) if !any => Err(missing),
        _ => Ok(()),
    }
}

/// Has it put into the cache.
fn ticket(service: &str, host: &str, flags: CtxFlags) -> Result<(), Missing> {
    const KINIT: &str = "run kinit, or name a keytab of ours in KRB5_CLIENT_KTNAME";
    const NONE: &str = "we have no ticket of Kerberos";
    let missing = |error| Missing::new(NONE, &error, KINIT, true);
    cache::check().map_err(|why| Missing { message: format!("{NONE}: {why}"), is_final: true })?;
    let mut mechanisms = OidSet::new().map_err(missing)?;
    mechanisms.add(&GSS_MECH_KRB5).map_err(missing)?;
    let ours = Cred::acquire(None, None, CredUsage::Initiate, Some(&mechanisms)).map_err(missing)?;
    let what = format!("no ticket of Kerberos for {service}/{host}");
    let refused = |error: libgssapi::error::Error| match error.minor {
        // With a keytab of ours, and none who answers, there is no cache yet.
        code::KDC_UNREACHABLE | code::NO_CACHE => {
            Missing::new(&what, &error, "check that the KDC in krb5.conf runs", false)
        }
        // It may be in DNS, which may be back soon.
        code::REALM_UNKNOWN | code::REALM_UNRESOLVED => Missing::new(
            &what,
            &error,
            "check that krb5.conf, or DNS, says where the KDC of the realm is",
            false,
        ),
        code::CLOCKS_DIFFER => Missing::new(&what, &error, "set the clock of this machine", true),
        code::SERVICE_UNKNOWN => {
            let next = "name the service as the keytab of ZooKeeper does, and its realm in krb5.conf";
            Missing::new(&what, &error, next, true)
        }
        _ => Missing::new(&what, &error, KINIT, true),
    };
    let target = format!("{service}@{host}");
    let target = Name::new(target.as_bytes(), Some(&GSS_NT_HOSTBASED_SERVICE)).map_err(refused)?;
    ClientCtx::new(Some(ours), target, flags, Some(&GSS_MECH_KRB5)).step(None, None).map_err(refused)?;
    Ok(())
}

/// Without what GSSAPI says of every error of a mechanism. To be asked on the thread that it happened on.
fn said(error: &libgssapi::error::Error) -> String {
    let text = error.to_string();
    let inner = text.split_once(" (").and_then(|(_, inner)| inner.strip_suffix(')'));
    inner.unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_part_of_a_principal_is_refused() {
        for wrong in ["", "a/b", "a@REALM", "a\0", " ", "a ", "a\n"] {
            assert!(Kerberos::new().service(wrong).check().is_err(), "{wrong:?}");
            let error = Kerberos::new().host(wrong).check().expect_err(wrong).to_string();
            assert!(error.contains("SERVICE/HOST"), "{error}");
        }
        Kerberos::new().service("zk").host("zk1.example.org").check().expect("these are");
    }
}
