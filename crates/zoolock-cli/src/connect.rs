//! Getting to the server that keeps the locks.

use std::time::Duration;

use zookeeper_client::{Client, SaslOptions};
use zoolock::{Tls, Zoolock, sasl};

use crate::credentials::{Auth, user_and_password};
use crate::exit::{Exit, Failure};
use crate::local::{self, State, StateDir};
use crate::plan::{Access, Endpoint, Service};
use crate::talk::Talk;

/// A local server may leave just as we arrive; then the next one is started.
const LOCAL_ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(50);
/// How long a goodbye may take.
const CLOSE_BOUND: Duration = Duration::from_secs(5);
/// And how long where the server was not there just now.
const FAREWELL_BOUND: Duration = Duration::from_millis(500);

/// Connects, and in local mode starts the server if it is not running.
pub(crate) async fn connect(service: &Service, talk: &Talk) -> Result<Zoolock, Failure> {
    match &service.endpoint {
        Endpoint::Remote { hosts, auth, tls, access } => {
            let mut builder = builder(service)?;
            if let Some(tls) = tls {
                builder = builder.tls(tls.clone());
            }
            if let Some(auth) = auth {
                builder = present(builder, auth)?;
            }
            builder = match access {
                Access::Everybody => builder.world_writable(),
                Access::Readers(readers) => {
                    readers.iter().fold(builder, |builder, (scheme, id)| builder.reader(scheme, id))
                }
            };
            Ok(builder.connect(hosts).await?)
        }
        Endpoint::Local => connect_locally(service, talk).await,
    }
}

async fn connect_locally(service: &Service, talk: &Talk) -> Result<Zoolock, Failure> {
    let mut attempt = 1;
    loop {
        let server = local::running(service.connect_timeout).await?;
        if attempt == 1 {
            talk.detail(format_args!("using this user's server at {}", server.address));
        }
        of_ours(&server)?;
        // A secret that is made anew must not lock us out of what the server has kept; it serves nobody else anyway.
        let builder = builder(service)?
            .tls(server.tls.clone())
            .auth("digest", server.credentials().to_vec())
            .world_writable();
        let connected = builder.connect(&server.address.to_string()).await;
        match connected {
            Ok(zoolock) => return Ok(zoolock),
            Err(zoolock::Error::Unavailable { .. }) if attempt < LOCAL_ATTEMPTS => {
                attempt += 1;
                tokio::time::sleep(PAUSE).await;
            }
            Err(error @ zoolock::Error::Denied { .. }) => {
                return Err(Failure::new(
                    Exit::DENIED,
                    format!(
                        "{error}; this user's server does not accept the secret in {}; if the file was \
                         changed, run: zoolock serve --stop",
                        server.secret_file.display()
                    ),
                ));
            }
            Err(error @ zoolock::Error::Unavailable { .. }) => return Err(changed(error)),
            Err(error) => return Err(error.into()),
        }
    }
}

/// This user's server, which may have come back elsewhere. It is not started: whoever only looks needs none.
pub(crate) async fn found_again(service: &Service, talk: &Talk) -> Option<Zoolock> {
    let Endpoint::Local = service.endpoint else { return None };
    if !listens_locally() {
        return None;
    }
    connect(service, talk).await.ok()
}

fn listens_locally() -> bool {
    let listens = |dir: StateDir| matches!(local::look(&dir), Ok(State::Listening(_)));
    StateDir::open().is_ok_and(listens)
}

/// What this user's server is known by; nothing that was said on the command line can be wrong with that.
fn of_ours(server: &local::Running) -> Result<(), Failure> {
    server.tls.options(&server.address.to_string()).map(drop).map_err(changed)
}

fn changed(error: impl std::fmt::Display) -> Failure {
    Failure::unavailable(format!(
        "{error}; if this user's server was started by another version, or its files were changed, run: zoolock serve --stop"
    ))
}

/// A plain session with the same service, for requests that are no lock's: without the chroot, which is the caller's to
/// apply. The service was reached just now, and is not started.
pub(crate) async fn connect_plainly(service: &Service) -> Result<Client, Failure> {
    match &service.endpoint {
        Endpoint::Remote { hosts, auth, tls, .. } => {
            let hosts = hosts.split('/').next().unwrap_or_default();
            connect_as(hosts, auth.as_ref(), tls.as_ref(), service).await
        }
        Endpoint::Local => {
            if !listens_locally() {
                return Err(Failure::unavailable(
                    "this user's server has left; run the command again to start it".to_owned(),
                ));
            }
            let server = local::running(service.connect_timeout).await?;
            of_ours(&server)?;
            let auth = Auth::Digest(server.credentials());
            let connected =
                connect_as(&server.address.to_string(), Some(&auth), Some(&server.tls), service).await;
            connected.map_err(|failure| match failure.exit {
                Exit::UNAVAILABLE => changed(failure),
                _ => failure,
            })
        }
    }
}

/// The same with these credentials, or none.
pub(crate) async fn connect_as(
    hosts: &str,
    auth: Option<&Auth>,
    tls: Option<&Tls>,
    service: &Service,
) -> Result<Client, Failure> {
    let mut connector = Client::connector().with_session_timeout(service.session_timeout).with_fail_eagerly();
    if let Some(auth) = auth {
        connector = match auth {
            Auth::Digest(secret) => connector.with_auth("digest", secret),
            Auth::Sasl(secret) => {
                let (user, password) = user_and_password(secret)?;
                connector.with_sasl(SaslOptions::digest_md5(user.to_owned(), password.to_owned()))
            }
            Auth::Kerberos(kerberos) => {
                connector.with_sasl(sasl::options(kerberos, hosts, service.connect_timeout).await?)
            }
        };
    }
    if let Some(tls) = tls {
        connector = connector.with_tls(tls.options(hosts)?);
    }
    let connect = async {
        match tls {
            None => connector.connect(hosts).await,
            Some(_) => connector.secure_connect(hosts).await,
        }
    };
    match tokio::time::timeout(service.connect_timeout, connect).await {
        Ok(Ok(client)) => Ok(client),
        Ok(Err(error @ zookeeper_client::Error::AuthFailed)) => {
            Err(Failure::new(Exit::DENIED, format!("{hosts}: {error}; check the credentials of --auth")))
        }
        outcome => Err(match (tls, outcome) {
            // The crate says nothing of handshakes.
            (Some(tls), _) => tls.diagnose(hosts, service.connect_timeout).await.into(),
            (None, Ok(Err(error))) => Failure::unavailable(format!(
                "{hosts}: no session: {error}; check the address and that the service runs"
            )),
            (None, _) => Failure::unavailable(format!(
                "{hosts}: no session in time; check the address and that the service runs"
            )),
        }),
    }
}

fn present(builder: zoolock::Builder, auth: &Auth) -> Result<zoolock::Builder, Failure> {
    Ok(match auth {
        Auth::Digest(secret) => builder.auth("digest", secret.to_vec()),
        Auth::Sasl(secret) => {
            let (user, password) = user_and_password(secret)?;
            builder.sasl_digest_md5(user, password)
        }
        Auth::Kerberos(kerberos) => builder.sasl_mechanism(kerberos.clone()),
    })
}

fn builder(service: &Service) -> Result<zoolock::Builder, Failure> {
    let mut builder = Zoolock::builder()
        .session_timeout(service.session_timeout)
        .connect_timeout(service.connect_timeout)
        .root(&service.root)
        .token_epoch(service.token_epoch)
        .naming(service.naming);
    if service.kazoo_pattern {
        builder = builder.kazoo_pattern();
    }
    if service.strict_renewal {
        builder = builder.strict_renewal();
    }
    if service.metrics_by_lock {
        builder = builder.metrics_by_lock();
    }
    if let Some(grace) = service.grace {
        builder = builder.grace(grace);
    }
    if let Some(note) = &service.note {
        builder = builder.note(note);
    }
    if let Some(program) = &service.program {
        builder = builder.program(program);
    }
    if let Some(owner) = &service.owner {
        builder = builder.owner_id(owner)?;
    }
    Ok(builder)
}

/// Ends the session, so that nothing of ours is left on the server; it would end by itself in time.
pub(crate) async fn close(zoolock: Zoolock) {
    let _ = tokio::time::timeout(CLOSE_BOUND, zoolock.close()).await;
}

/// As [`close`], after a lock was lost: most likely there is nobody to answer.
pub(crate) async fn abandon(zoolock: Zoolock) {
    let _ = tokio::time::timeout(FAREWELL_BOUND, zoolock.close()).await;
}
