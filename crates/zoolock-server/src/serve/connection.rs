use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};
use zoolock_wire::Identity;

use super::input::{InputStatus, MAX_GREETING, NextRequest};
use super::outbox::{OutputBuffer, shrink_if_empty};
use super::turns::Turns;
use super::{HIGH_WATER, SharedServer, wait_until_stopped, words};
use crate::core::ConnId;

/// Maximum time for which a peer may leave its replies unread.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time to wait until the peer closes a connection that the server has closed. Without the wait, a TCP reset
/// could destroy the last reply.
const LINGER: Duration = Duration::from_millis(500);

/// Replaces [`LINGER`] when the server stops, because the stop waits for all connections.
const SHORT_LINGER: Duration = Duration::from_millis(100);

/// Maximum time for a peer to read the replies that are pending when the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of bytes to read at once. The actual number grows if reads fill the buffer, and
/// shrinks if reads are small.
const READ_SIZE: usize = 16 << 10;

/// Minimum number of bytes to read at once. An idle connection keeps a buffer of this size.
const SMALL_READ: usize = 512;

/// Size in bytes of a large incomplete request. If the incomplete requests of all connections
/// together exceed their limit, the server closes connections with a larger incomplete request than
/// this. Requests of lock clients are smaller.
const LARGE_PARTIAL_REQUEST: usize = 64 << 10;

/// The first byte of a TLS connection: the type of a handshake record.
pub(super) const TLS_HANDSHAKE: u8 = 22;

/// A byte stream of a connection: a socket, or TLS over a socket.
pub(super) trait ClientStream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> ClientStream for S {}

/// Serves one connection to its end.
pub(super) async fn serve_connection<S: ClientStream>(
    shared: Arc<SharedServer>,
    mut socket: S,
    peer: SocketAddr,
    identity: Option<Identity>,
    mut stop: watch::Receiver<bool>,
) {
    let waker = Arc::new(Notify::new());
    let turns = Turns::new();
    let conn = shared.add_connection(peer, identity, Arc::clone(&waker));
    let guard = RemoveConnectionOnDrop { shared: &shared, conn };
    let (result, linger_timeout) = {
        let mut serving = std::pin::pin!(serve(&shared, conn, &mut socket, &waker, turns));
        tokio::select! {
            result = serving.as_mut() => (result, LINGER),
            () = wait_until_stopped(&mut stop) => {
                if !shared.stop_input(conn) {
                    return;
                }
                // Pending replies are still written.
                match timeout(DRAIN_TIMEOUT, serving).await {
                    Ok(result) => (result, SHORT_LINGER),
                    Err(_) => return,
                }
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%conn, %peer, %error, "connection ended");
    }
    drop(guard);
    let _ = timeout(linger_timeout, wait_for_peer_close(&mut socket)).await;
}

/// A guard that reports the end of the connection to the core, even if the task panics.
struct RemoveConnectionOnDrop<'a> {
    shared: &'a SharedServer,
    conn: ConnId,
}

impl Drop for RemoveConnectionOnDrop<'_> {
    fn drop(&mut self) {
        self.shared.remove_connection(self.conn);
    }
}

async fn serve<S: ClientStream>(
    shared: &SharedServer,
    conn: ConnId,
    socket: &mut S,
    waker: &Arc<Notify>,
    turns: Turns,
) -> io::Result<()> {
    let mut input = BytesMut::with_capacity(SMALL_READ);
    let admit_deadline = Instant::now() + shared.timing.connect_timeout;
    let first = async {
        while input.len() < 4 {
            if socket.read_buf(&mut input).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
        }
        Ok(())
    };
    match tokio::time::timeout_at(admit_deadline, first).await {
        Ok(result) => result?,
        Err(_) => return Err(io::Error::new(io::ErrorKind::TimedOut, "no data in time")),
    }
    if let Some(what) = detect_other_protocol(&input) {
        tracing::info!(%conn, what, "not a ZooKeeper client; closing the connection");
        return Ok(());
    }
    if let Some(answer) = words::answer(shared, conn, &input) {
        let written = tokio::time::timeout_at(admit_deadline, async {
            socket.write_all(answer.as_bytes()).await?;
            socket.flush().await
        });
        let late = |_| Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its output"));
        return written.await.unwrap_or_else(late);
    }
    // A client that is not admitted must not make the server buffer a large frame.
    if input.first_chunk().is_some_and(|len| u32::from_be_bytes(*len) as usize > MAX_GREETING) {
        tracing::debug!(%conn, "first frame too long; closing the connection");
        return Ok(());
    }
    serve_requests(shared, conn, socket, waker, input, admit_deadline, turns).await
}

/// Returns the name of another protocol, if `input` starts like that protocol. Such a start cannot
/// be the length of a first frame, because it would be a length above [`MAX_GREETING`].
fn detect_other_protocol(input: &[u8]) -> Option<&'static str> {
    match input.first_chunk::<4>()? {
        [TLS_HANDSHAKE, 3, ..] => Some("TLS"),
        b"GET " | b"HEAD" | b"POST" | b"PUT " | b"DELE" | b"OPTI" | b"CONN" | b"PATC" | b"PRI " => {
            Some("HTTP")
        }
        b"SSH-" => Some("SSH"),
        _ => None,
    }
}

/// The number of unhandled input bytes of a connection, and the total of all connections.
struct UnhandledInput<'a> {
    total: &'a AtomicUsize,
    own: usize,
}

impl UnhandledInput<'_> {
    /// Sets the number of unhandled bytes of this connection. Returns the total of all connections.
    fn set(&mut self, bytes: usize) -> usize {
        // Most frames arrive complete, so the number is usually unchanged.
        if bytes == self.own {
            return self.total.load(Ordering::Relaxed);
        }
        let before = self.total.fetch_add(bytes.wrapping_sub(self.own), Ordering::Relaxed);
        let now = before.wrapping_add(bytes).wrapping_sub(self.own);
        self.own = bytes;
        now
    }
}

impl Drop for UnhandledInput<'_> {
    fn drop(&mut self) {
        self.set(0);
    }
}

async fn serve_requests<S: ClientStream>(
    shared: &SharedServer,
    conn: ConnId,
    socket: &mut S,
    waker: &Arc<Notify>,
    mut input: BytesMut,
    admit_deadline: Instant,
    mut turns: Turns,
) -> io::Result<()> {
    let (mut reader, mut writer) = tokio::io::split(socket);
    let mut unflushed = false;
    let mut output = OutputBuffer::default();
    let mut status = InputStatus::default();
    let mut write_deadline = admit_deadline;
    let mut read_size = SMALL_READ;
    let mut unhandled = UnhandledInput { total: &shared.unhandled_bytes, own: 0 };
    loop {
        if !status.admitted && !status.closing && Instant::now() >= admit_deadline {
            // The deadline is checked here too, because the timer below is not polled while the
            // connection is busy.
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no session in time"));
        }
        // Nothing is read while the output or the journal's queue is full. Meanwhile the core keeps the output of this
        // connection.
        let mut ready = output.len() < HIGH_WATER && !status.closing;
        let was_writable = output.is_writable() || unflushed;
        let next = NextRequest::of(&input, shared.timing.max_frame);
        let mut permit = match ready {
            true => turns.wait_for_turn(shared, conn, next, status.has_long_request).await,
            false => None,
        };
        if ready && shared.register_if_full(waker) {
            permit = None;
            shared.lock().core.begin_wait(conn);
            ready = false;
        }
        if ready {
            status = shared.handle_input(conn, &status, permit.is_some(), &mut input, &mut output);
            if status.must_write
                && let Some(journal) = &shared.journal
            {
                // Long work of others continues during the write. This worker may have to begin it.
                if permit.take().is_some() {
                    tokio::task::yield_now().await;
                }
                journal.write_here();
            }
            turns.end_turn(&status, permit).await;
            ready = output.len() < HIGH_WATER && !status.closing;
        }
        output.release_synced(shared.journal.as_ref(), waker);
        if !was_writable {
            write_deadline = Instant::now() + WRITE_TIMEOUT;
        }
        // Output that waits for a failed log is never sent. So the connection does not wait until
        // that output is sent.
        let is_over = output.is_empty() || !output.is_writable() && shared.log_has_failed();
        if status.closing && is_over && !unflushed {
            return Ok(());
        }
        shrink_if_empty(&mut input, 4 * read_size);
        output.shrink_if_empty(4 * read_size);
        if !ready && shared.lock().core.is_cut_off(conn) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its output"));
        }
        let (total, limit) = (unhandled.set(input.len()), shared.timing.max_queued);
        if limit != 0 && total > limit && input.len() > LARGE_PARTIAL_REQUEST {
            tracing::warn!(
                %conn,
                waiting = input.len(),
                total,
                "incomplete requests exceed the limit; closing the connection"
            );
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, "incomplete requests exceed the limit"));
        }
        // With requests in the input, this would copy them after each turn.
        let may_read = ready && !status.holds_frame;
        if may_read {
            input.reserve(read_size);
        }
        let mut waited = false;
        tokio::select! {
            biased;
            written = write(&mut writer, &mut output, &mut unflushed), if output.is_writable() || unflushed => {
                written?;
                write_deadline = Instant::now() + WRITE_TIMEOUT;
            }
            _ = std::future::ready(()), if ready && status.more => {}
            () = waker.notified() => {}
            read = reader.read_buf(&mut input), if may_read => {
                let read = read?;
                if read == 0 {
                    return Ok(());
                }
                if input.len() == input.capacity() {
                    read_size = (2 * read_size).min(READ_SIZE);
                } else if read < read_size / 4 {
                    read_size = (read_size / 2).max(SMALL_READ);
                }
            }
            () = sleep_until(admit_deadline), if !status.admitted && !status.closing => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no session in time"));
            }
            () = sleep_until(write_deadline), if output.is_writable() || unflushed => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its output"));
            }
            // Polled last, and only if the task now waits.
            () = std::future::poll_fn(|_| { waited = true; std::task::Poll::Pending }) => {}
        }
        turns.let_others_run(status.more, waited).await;
    }
}

/// Writes a part of `output`, and flushes the stream when nothing more is writable. If the future is dropped, `output`
/// still has all bytes that were not written.
async fn write(
    writer: &mut (impl AsyncWrite + Unpin),
    output: &mut OutputBuffer,
    unflushed: &mut bool,
) -> io::Result<()> {
    if output.is_writable() {
        *unflushed = true;
        match writer.write(output.writable()).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => output.advance(written),
        }
    }
    if !output.is_writable() {
        writer.flush().await?;
        *unflushed = false;
    }
    Ok(())
}

async fn wait_for_peer_close(socket: &mut impl ClientStream) -> io::Result<()> {
    socket.shutdown().await?;
    // The buffer is on the heap, because an array would enlarge the task of every connection.
    let mut rest = vec![0; 4096];
    while socket.read(&mut rest).await? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::future::poll_fn;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll};

    use tokio::io::{DuplexStream, ReadBuf, duplex};
    use zoolock_wire::{ConnectRequest, Request, RequestHeader, Writer};

    use super::*;
    use crate::access::Access;
    use crate::serve::fuzzing::FuzzServer;

    /// Maximum number of requests between two times at which others can run: short turns, and a full one.
    const TURN: u64 = 7 + 128;
    const REQUESTS: usize = 2000;

    /// A client that has sent all its requests already, and that reads all output at once.
    struct Flood {
        input: VecDeque<u8>,
        /// Maximum number of bytes of one read.
        chunk: usize,
    }

    impl Flood {
        /// Creates a client that opens a session and sends the same request [`REQUESTS`] times.
        fn new(request: &Request, chunk: usize) -> Self {
            let mut input = BytesMut::new();
            Writer::frame(&mut input, |writer| ConnectRequest::new_session(4000).encode(writer));
            (0..REQUESTS).for_each(|_| input.extend_from_slice(&frame(request)));
            Flood { input: input.to_vec().into(), chunk }
        }
    }

    impl AsyncRead for Flood {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let len = self.chunk.min(buf.remaining()).min(self.input.len());
            buf.put_slice(&self.input.drain(..len).collect::<Vec<u8>>());
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Flood {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(buf.len()))
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn frame(request: &Request) -> BytesMut {
        let mut frame = BytesMut::new();
        Writer::frame(&mut frame, |writer| {
            RequestHeader { xid: 1, op: request.op() }.encode(writer);
            request.encode(writer);
        });
        frame
    }

    fn serve_stream<S: ClientStream>(server: &FuzzServer, stream: S) -> impl Future<Output = ()> + use<S> {
        let (stop, stopped) = watch::channel(false);
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let serving = serve_connection(Arc::clone(server.shared()), stream, peer, None, stopped);
        async move {
            serving.await;
            drop(stop);
        }
    }

    /// Polls a future to its end. Returns the largest number of requests that the server handled in one poll.
    async fn most_requests_in_one_poll(server: &FuzzServer, serving: impl Future<Output = ()>) -> u64 {
        let mut serving = pin!(serving);
        let mut most = 0;
        poll_fn(|context| {
            let before = server.stats().received;
            let polled = serving.as_mut().poll(context);
            most = most.max(server.stats().received - before);
            polled
        })
        .await;
        most
    }

    #[tokio::test]
    async fn one_poll_handles_one_turn() {
        let read = Request::Exists { path: "/".into(), watch: false };
        let write = Request::SetData { path: "/".into(), data: None, version: -1 };
        for (request, chunk, others, limit) in [
            (&read, usize::MAX, 0, TURN),
            // Each read of the socket returns one request, a part of a request, or several requests.
            (&read, frame(&read).len(), 0, 8),
            (&read, 10, 0, 8),
            (&read, 1000, 0, TURN),
            (&write, usize::MAX, 0, TURN),
            (&Request::Ping, usize::MAX, 0, TURN),
            // Many connections shorten the turns of each.
            (&read, usize::MAX, 31, 7 + 64),
            (&read, usize::MAX, 300, 7 + 8),
        ] {
            let server = FuzzServer::new(Access::default()).expect("a thread");
            let peer = SocketAddr::from(([127, 0, 0, 1], 1));
            for _ in 0..others {
                server.shared().add_connection(peer, None, Arc::default());
            }
            let serving = serve_stream(&server, Flood::new(request, chunk));
            let most = most_requests_in_one_poll(&server, serving).await;
            assert_eq!(server.stats().received, REQUESTS as u64 + 1, "{request:?}");
            assert!(
                most <= limit + 1,
                "{most} requests in one poll: {request:?}, {chunk} bytes a read, {others}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_reads_no_word_answer_is_disconnected() {
        let server = FuzzServer::new(Access::default()).expect("a thread");
        // The answer is longer than the buffer of the stream.
        let (mut client, stream) = duplex(16);
        client.write_all(b"srvr").await.expect("the server reads");
        timeout(Duration::from_secs(60), server.serve(stream)).await.expect("the server gives up");
        assert_eq!(server.stats().connections, 0);
    }

    /// Sends a ping, and waits for its reply.
    async fn ping(client: &mut DuplexStream) {
        client.write_all(&frame(&Request::Ping)).await.expect("the server reads");
        let len = client.read_u32().await.expect("a reply");
        client.read_exact(&mut vec![0; len as usize]).await.expect("the rest of the reply");
    }

    /// Opens a session.
    async fn connect(client: &mut DuplexStream) {
        let mut connect = BytesMut::new();
        Writer::frame(&mut connect, |writer| ConnectRequest::new_session(4000).encode(writer));
        client.write_all(&connect).await.expect("the server reads");
        let len = client.read_u32().await.expect("a reply");
        client.read_exact(&mut vec![0; len as usize]).await.expect("the rest of the reply");
    }

    #[tokio::test]
    async fn request_of_a_client_that_awaits_replies_takes_one_poll() {
        const REQUESTS: usize = 20;
        let server = FuzzServer::new(Access::default()).expect("a thread");
        let (mut client, stream) = duplex(1 << 16);
        let polls = Arc::new(AtomicUsize::new(0));
        let mut serving = Box::pin(server.serve(stream));
        let serving = tokio::spawn({
            let polls = Arc::clone(&polls);
            poll_fn(move |context| {
                polls.fetch_add(1, Ordering::Relaxed);
                serving.as_mut().poll(context)
            })
        });
        connect(&mut client).await;
        let before = polls.load(Ordering::Relaxed);
        for _ in 0..REQUESTS {
            ping(&mut client).await;
        }
        // A poll more may end the opening of the session, or a request may take long on a busy machine.
        assert!(polls.load(Ordering::Relaxed) - before <= REQUESTS + 5);
        drop(client);
        serving.await.expect("no panic");
    }

    #[tokio::test]
    async fn others_are_served_between_turns() {
        let server = FuzzServer::new(Access::default()).expect("a thread");
        let (mut client, stream) = duplex(1 << 16);
        let other = tokio::spawn(server.serve(stream));
        connect(&mut client).await;
        let before = server.stats().received;
        let flood = Flood::new(&Request::Exists { path: "/".into(), watch: false }, usize::MAX);
        let flood = tokio::spawn(serve_stream(&server, flood));
        ping(&mut client).await;
        let handled = server.stats().received - before;
        assert!(handled <= 2 * TURN, "{handled} requests of another client were handled first");
        drop(client);
        flood.await.expect("no panic");
        other.await.expect("no panic");
    }
}
