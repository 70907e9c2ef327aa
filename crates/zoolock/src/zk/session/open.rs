//! Opens sessions.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use zoolock_client::{Client, End, RequestSession, SessionConfig, SessionKey};
use zoolock_core::SessionId;
use zoolock_core::acquisition::SessionEnd;
use zoolock_wire::{Code, Hidden, Reply, Request};

use super::connection_log::ConnectionLog;
use super::inbox::Inbox;
use super::join::Deferral;
use super::requests::acls;
use super::{ConnectionState, Opened, SessionOpenError, SessionParameters, ZkSession};

/// Opens a session. Tries the servers until the deadline. Logs the outages of the session in `log`.
pub(crate) async fn open(
    parameters: &SessionParameters,
    log: &Arc<ConnectionLog>,
    deadline: Instant,
) -> Result<Opened, SessionOpenError> {
    fetch_credentials(parameters, deadline).await?;
    let (connection_states, mut connection_state) = watch::channel(ConnectionState::Down);
    let inbox = Inbox::new(connection_states, log.clone());
    let dropped = inbox.dropped.clone();
    let servers = parameters.transport.servers(&parameters.hosts);
    let client = Client::start(config(parameters), servers, inbox, parameters.tasks.platform());
    let opened =
        timeout_at(deadline, connection_state.wait_for(|state| *state != ConnectionState::Down)).await;
    match opened.map(|state| state.map(|state| *state)) {
        Ok(Ok(ConnectionState::Up)) => {}
        Ok(Ok(ConnectionState::Ended(SessionEnd::AuthFailed))) => return Err(SessionOpenError::Denied),
        _ => {
            let errors = client.dial_errors();
            return Err(if errors.is_empty() {
                SessionOpenError::NotInTime
            } else {
                SessionOpenError::Unreachable(errors)
            });
        }
    }
    let (session, requested) = client.with(|session, inbox, _| (session.id(), inbox.attached));
    let zk = ZkSession {
        client,
        session: SessionId(session),
        acls: acls(&parameters.access),
        deferral: Deferral::default(),
        dropped,
        tasks: parameters.tasks.clone(),
    };
    if parameters.transport.has_sasl() {
        let known = timeout_at(deadline, zk.who_am_i()).await.map_err(|_| SessionOpenError::NotInTime)?;
        check_sasl_identity(known.ok_or(SessionOpenError::NotInTime)?.map_err(Some))?;
    }
    Ok(Opened { zk: Arc::new(zk), connection_state, requested })
}

/// Opens a session for single requests, without locks. Tries each server once.
pub(crate) async fn open_requests(
    parameters: &SessionParameters,
    deadline: Instant,
) -> Result<RequestSession, SessionOpenError> {
    fetch_credentials(parameters, deadline).await?;
    let servers = parameters.transport.servers(&parameters.hosts);
    let opened = RequestSession::open(config(parameters), servers, parameters.tasks.platform());
    let requests =
        timeout_at(deadline, opened).await.map_err(|_| SessionOpenError::NotInTime)?.map_err(|error| {
            match error {
                zoolock_client::OpenError::Denied => SessionOpenError::Denied,
                zoolock_client::OpenError::Unreachable(errors) => SessionOpenError::Unreachable(errors),
                _ => SessionOpenError::NotInTime,
            }
        })?;
    if parameters.transport.has_sasl() {
        let known = timeout_at(deadline, requests.call(&Request::WhoAmI)).await;
        let reply = known.map_err(|_| SessionOpenError::NotInTime)?.map_err(|error| error.code());
        check_sasl_identity(reply)?;
    }
    Ok(requests)
}

/// Ends the session of another process. Tries the servers without end, so the caller must limit the time.
pub(crate) async fn end_session(parameters: &SessionParameters, key: SessionKey) -> End {
    if !parameters.transport.fetch_credentials().await {
        return End::AuthFailed;
    }
    let servers = parameters.transport.servers(&parameters.hosts);
    zoolock_client::end_session(key, config(parameters), servers, parameters.tasks.platform()).await
}

/// Fetches the credentials. They may have been renewed since the last session was opened.
async fn fetch_credentials(
    parameters: &SessionParameters,
    deadline: Instant,
) -> Result<(), SessionOpenError> {
    match timeout_at(deadline, parameters.transport.fetch_credentials()).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(SessionOpenError::Denied),
        Err(_) => Err(SessionOpenError::NotInTime),
    }
}

fn config(parameters: &SessionParameters) -> SessionConfig {
    let mut config = SessionConfig::new(parameters.timeout);
    config.credentials =
        parameters.auth.iter().map(|(scheme, secret)| (scheme.clone(), Hidden(secret.to_vec()))).collect();
    config
}

/// Checks that the server knows a SASL identity of the session. A server that does not require SASL
/// may accept a session without one.
fn check_sasl_identity(reply: Result<Reply, Option<Code>>) -> Result<(), SessionOpenError> {
    match reply {
        Ok(Reply::Identities(known)) if known.iter().any(|(scheme, _)| scheme == "sasl") => Ok(()),
        Ok(_) => Err(SessionOpenError::Denied),
        // Servers before ZooKeeper 3.7 do not support this request.
        Err(Some(Code::Unimplemented)) => Ok(()),
        Err(_) => Err(SessionOpenError::NotInTime),
    }
}
