//! A proxy that removes one session from the answer to `dump`, as if the server behind it had lost
//! that session.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use zoolock_tests::four_letter::send_four_letter_word;

/// A running proxy. Dropping it stops the proxy.
pub(crate) struct DumpProxy {
    pub(crate) address: SocketAddr,
    serving: JoinHandle<()>,
}

impl DumpProxy {
    /// Starts a proxy that hides `session`, in front of the server at `upstream`.
    pub(crate) async fn hiding(upstream: SocketAddr, session: i64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("port bound");
        let address = listener.local_addr().expect("address of the listener");
        let serving = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.expect("client accepted");
                tokio::spawn(serve(client, upstream, session));
            }
        });
        Self { address, serving }
    }
}

impl Drop for DumpProxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(mut client: TcpStream, upstream: SocketAddr, session: i64) {
    let mut first = [0; 4];
    if client.read_exact(&mut first).await.is_err() {
        return;
    }
    if first == *b"dump" {
        let dump = send_four_letter_word(upstream, "dump").await.expect("the server answers");
        let _ = client.write_all(without_session(&dump, session).as_bytes()).await;
        return;
    }
    let mut server = TcpStream::connect(upstream).await.expect("the server listens");
    server.write_all(&first).await.expect("the server reads");
    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
}

/// Removes the session from the list of live sessions. The session id above the paths of its znodes
/// stays.
fn without_session(dump: &str, session: i64) -> String {
    let hidden = format!("\t{session:#x}");
    dump.lines().filter(|line| *line != hidden).map(|line| format!("{line}\n")).collect()
}
