//! A server as it would be if it had forgotten a session: in front of a real one, it leaves that one out of `dump`.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use zoolock_tests::four_letter::four_letter;

pub(crate) struct Front {
    pub(crate) address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Front {
    /// Hides this session of the server at `behind`.
    pub(crate) async fn hiding(behind: SocketAddr, session: i64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let serving = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.expect("a client");
                tokio::spawn(serve(client, behind, session));
            }
        });
        Self { address, serving }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(mut client: TcpStream, behind: SocketAddr, session: i64) {
    let mut first = [0; 4];
    if client.read_exact(&mut first).await.is_err() {
        return;
    }
    if first == *b"dump" {
        let told = four_letter(behind, "dump").await.expect("it answers");
        let _ = client.write_all(without(&told, session).as_bytes()).await;
        return;
    }
    let mut server = TcpStream::connect(behind).await.expect("it listens");
    server.write_all(&first).await.expect("it reads");
    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
}

/// Its line among those who live, not the one over its nodes.
fn without(told: &str, session: i64) -> String {
    let line = format!("\t{session:#x}");
    told.lines().filter(|told| *told != line).map(|line| format!("{line}\n")).collect()
}
