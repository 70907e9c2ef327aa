//! Entry points for fuzzers. The entry points reach all code that parses the bytes of unknown
//! clients, without a socket.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::DuplexStream;
use tokio::sync::watch;
use zoolock_wire::MAX_FRAME;

use super::{MAX_OUTPUT, ReportedSettings, SharedServer, Timing, connection, http};
use crate::access::Access;
use crate::core::{Core, CoreConfig, ServerStats};
use crate::word::FourLetterWord;
use crate::x500;

/// Words of ZooKeeper that the server knows and does not support.
pub const UNSUPPORTED_WORDS: [&[u8; 4]; 10] = super::words::UNSUPPORTED;

const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

/// A server without listeners, which answers all four-letter words.
#[derive(Debug)]
pub struct FuzzServer {
    shared: Arc<SharedServer>,
    stop: watch::Sender<bool>,
}

impl FuzzServer {
    /// Starts an empty server. Must be called within a runtime.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn new(access: Access) -> io::Result<Self> {
        FuzzServer::with_config(CoreConfig { access, max_output: MAX_OUTPUT, ..CoreConfig::default() })
    }

    /// Starts an empty server with this configuration of its core.
    pub(super) fn with_config(core: CoreConfig) -> io::Result<Self> {
        let conf = ReportedSettings {
            addr: Some(PEER),
            tls_addr: None,
            metrics_addr: None,
            data_dir: None,
            max_connections_per_address: 0,
            max_http_connections: 0,
            min_timeout_ms: core.min_timeout_ms,
            max_timeout_ms: core.max_timeout_ms,
        };
        let timing = Timing {
            tick: Duration::from_secs(2),
            container_check: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(10),
            max_frame: MAX_FRAME,
            max_queued: 0,
            may_block: false,
            words: FourLetterWord::ALL.to_vec(),
            conf,
        };
        let shared = Arc::new(SharedServer::new(Core::new(core, 1), timing, None, None)?);
        Ok(FuzzServer { shared, stop: watch::channel(false).0 })
    }

    #[cfg(test)]
    pub(super) fn shared(&self) -> &Arc<SharedServer> {
        &self.shared
    }

    /// Serves a connection to its end.
    pub fn serve(&self, stream: DuplexStream) -> impl Future<Output = ()> + Send + use<> {
        connection::serve_connection(Arc::clone(&self.shared), stream, PEER, None, self.stop.subscribe())
    }

    /// Answers HTTP on a connection.
    pub fn answer_http(
        &self,
        stream: DuplexStream,
    ) -> impl Future<Output = Result<(), String>> + Send + use<> {
        http::HttpService::new(Arc::clone(&self.shared), self.stop.subscribe()).answer_request(stream)
    }

    /// Returns the counts of the server.
    pub fn stats(&self) -> ServerStats {
        self.shared.lock().core.stats()
    }
}

/// Returns the subject of a certificate, if the bytes are a certificate.
pub fn subject(certificate: &[u8]) -> Option<String> {
    x500::subject(certificate)
}

/// Returns whether an access list may contain this subject.
pub fn is_subject(text: &str) -> bool {
    x500::is_name(text)
}
