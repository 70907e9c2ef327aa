//! Options of the server of a test.

use std::sync::Arc;
use std::time::Duration;

use crate::Authority;

/// Options of a test server of either kind.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Tick time of the server. Sessions expire at multiples of the tick time.
    pub tick: Duration,
    /// The shortest session timeout granted. `None` means two ticks.
    pub min_session_timeout: Option<Duration>,
    /// The longest session timeout granted.
    pub max_session_timeout: Duration,
    /// The maximum number of connections per client address. Zero means no limit.
    pub max_client_connections: usize,
    /// Time between two checks for empty containers.
    pub container_check: Duration,
    /// The digest of the superuser, as `user:base64(sha1(user:password))`. `None` means no superuser.
    pub super_digest: Option<String>,
    /// The maximum heap of the Java virtual machine (Apache ZooKeeper only).
    pub heap: String,
    /// If true, the whole heap is allocated at the start (Apache ZooKeeper only). The memory of the process then does
    /// not depend on the heap used so far.
    pub whole_heap: bool,
    /// If true, writes are fsynced before they are acknowledged (Apache ZooKeeper only).
    pub fsync: bool,
    /// The certificate authority of the TLS port. With an authority, the server has a TLS port in
    /// addition to its plain port. `None` means no TLS port.
    pub tls: Option<Arc<Authority>>,
    /// The whitelist of four-letter words (Apache ZooKeeper only). The start of the server needs `conf` and `ruok`.
    pub words: String,
    /// If true, the server starts fast, and its code is optimised less (Apache ZooKeeper only).
    pub fast_start: bool,
    /// Further Java system properties, as `key=value` (Apache ZooKeeper only).
    pub properties: Vec<String>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(200),
            min_session_timeout: None,
            max_session_timeout: Duration::from_secs(60),
            max_client_connections: 0,
            container_check: Duration::from_secs(60),
            super_digest: None,
            heap: "256m".to_owned(),
            whole_heap: false,
            fsync: true,
            tls: None,
            words: "*".to_owned(),
            fast_start: true,
            properties: Vec::new(),
        }
    }
}
