//! How a test wants its server.

use std::sync::Arc;
use std::time::Duration;

use crate::Authority;

/// What a test may choose about a server of either arm.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Tick time of the server. Session timeouts are rounded up to it, and the shortest is two ticks.
    pub tick: Duration,
    /// The shortest session timeout granted; two ticks where `None`.
    pub min_session_timeout: Option<Duration>,
    /// The longest session timeout granted.
    pub max_session_timeout: Duration,
    /// How often empty containers are looked for.
    pub container_check: Duration,
    /// The identity that may do anything, as `user:base64(sha1(user:password))`.
    pub super_digest: Option<String>,
    /// The heap of the Java virtual machine (Apache only).
    pub heap: String,
    /// Whether it is taken whole at the start, so that what the process has does not follow what it has used so far
    /// (Apache only).
    pub whole_heap: bool,
    /// Whether writes reach the disk before they are answered (Apache only).
    pub fsync: bool,
    /// Who signs the certificates of a port for TLS beside the plain one; none where `None`.
    pub tls: Option<Arc<Authority>>,
    /// Further Java system properties, as `key=value` (Apache only).
    pub properties: Vec<String>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(200),
            min_session_timeout: None,
            max_session_timeout: Duration::from_secs(60),
            container_check: Duration::from_secs(60),
            super_digest: None,
            heap: "256m".to_owned(),
            whole_heap: false,
            fsync: true,
            tls: None,
            properties: Vec::new(),
        }
    }
}
