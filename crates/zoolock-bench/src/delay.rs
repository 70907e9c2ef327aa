//! A proxy that simulates a network: it delays each byte by half a round trip.
//!
//! Each piece is delayed from its own arrival, so pipelined requests stay pipelined. The proxy of `zoolock-tests`
//! cannot be used here: it delays in steps of a whole millisecond (tokio's timers), and parses ZooKeeper's frames,
//! which etcd and Redis do not have.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use zoolock_tests::lock;

use crate::Outcome;

/// The proxy. Dropping it ends its connections.
pub(crate) struct DelayingProxy {
    /// The address on which it listens.
    pub(crate) addr: SocketAddr,
    shared: Arc<DelayState>,
    acceptor: Option<JoinHandle<()>>,
}

struct DelayState {
    upstream: SocketAddr,
    half: Duration,
    ended: AtomicBool,
    sockets: Mutex<Vec<TcpStream>>,
    pumps: Mutex<Vec<JoinHandle<()>>>,
}

impl DelayingProxy {
    /// Starts a proxy for the server at `upstream`.
    pub(crate) fn start(upstream: SocketAddr, round_trip: Duration) -> Outcome<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(DelayState {
            upstream,
            half: round_trip / 2,
            ended: AtomicBool::new(false),
            sockets: Mutex::default(),
            pumps: Mutex::default(),
        });
        let acceptor = thread::spawn({
            let shared = shared.clone();
            move || {
                for client in listener.incoming().flatten() {
                    if shared.ended.load(Ordering::SeqCst) {
                        return;
                    }
                    // If there is no server, the client's connection is closed.
                    let _ = shared.connect(client);
                }
            }
        });
        Ok(Self { addr, shared, acceptor: Some(acceptor) })
    }
}

impl DelayState {
    fn connect(self: &Arc<Self>, client: TcpStream) -> std::io::Result<()> {
        let server = TcpStream::connect(self.upstream)?;
        for socket in [&client, &server] {
            socket.set_nodelay(true)?;
            lock(&self.sockets).push(socket.try_clone()?);
        }
        self.pump(client.try_clone()?, server.try_clone()?);
        self.pump(server, client);
        Ok(())
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream) {
        let half = self.half;
        let (sender, receiver) = mpsc::sync_channel::<(Instant, Vec<u8>)>(1024);
        let reader = thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(read @ 1..) = from.read(&mut buffer) {
                if sender.send((Instant::now(), buffer[..read].to_vec())).is_err() {
                    return;
                }
            }
        });
        let writer = thread::spawn(move || {
            // With the default timer slack, the kernel may wake the thread 50 µs late.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            for (arrived, piece) in receiver {
                thread::sleep((arrived + half).saturating_duration_since(Instant::now()));
                if to.write_all(&piece).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        });
        lock(&self.pumps).extend([reader, writer]);
    }
}

impl Drop for DelayingProxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // Wakes the acceptor, which waits for a connection.
        let _ = TcpStream::connect(self.addr);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        for socket in lock(&self.shared.sockets).drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        for pump in lock(&self.shared.pumps).drain(..) {
            let _ = pump.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_millis(200);

    /// Starts a server that echoes each byte.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let addr = listener.local_addr().expect("listener has an address");
        thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("proxy connects");
            let mut byte = [0];
            while let Ok(1) = socket.read(&mut byte) {
                socket.write_all(&byte).expect("echo is written");
            }
        });
        addr
    }

    #[test]
    fn pipelined_bytes_share_one_delay() {
        let delay = DelayingProxy::start(echo(), ROUND_TRIP).expect("a port is free");
        let mut socket = TcpStream::connect(delay.addr).expect("proxy listens");
        socket.set_nodelay(true).expect("socket is open");
        let begun = Instant::now();
        for byte in 0..50 {
            socket.write_all(&[byte]).expect("socket is open");
            // The pause makes each byte a piece of its own.
            thread::sleep(Duration::from_millis(1));
        }
        let mut answer = [0; 50];
        socket.read_exact(&mut answer).expect("all bytes are echoed");
        let took = begun.elapsed();
        assert_eq!(answer.to_vec(), (0..50).collect::<Vec<u8>>());
        assert!(took >= ROUND_TRIP, "it took {took:?}, less than the delay");
        assert!(took < 10 * ROUND_TRIP, "it took {took:?}: one delay for each piece");
    }
}
