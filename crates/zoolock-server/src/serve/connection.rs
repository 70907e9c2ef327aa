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

use super::{Fed, HIGH_WATER, MAX_GREETING, Outbox, Shared, door, stopped, words};
use crate::core::ConnId;

/// How long a peer may leave its replies unread.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a closed connection waits for the peer to close too, so that the last reply is not lost to a reset.
const LINGER: Duration = Duration::from_millis(500);

/// The same when the server stops, and has others to wait for.
const SHORT_LINGER: Duration = Duration::from_millis(100);

/// How long a peer may take to read what was answered before the server stopped.
const FAREWELL: Duration = Duration::from_secs(2);

/// How much is read at once from a client that sends much.
const READ_SIZE: usize = 16 << 10;

/// How much is read at once from one that sends little: as much memory as an idle one costs.
const SMALL_READ: usize = 512;

/// From how much on a half-sent request is one too much where there are too many: those of locks are small.
const MUCH: usize = 64 << 10;

/// What a connection is made of: a socket, or TLS over one.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// Serves one connection to its end.
pub(super) async fn run<S: Stream>(
    shared: Arc<Shared>,
    mut socket: S,
    peer: SocketAddr,
    who: Option<Identity>,
    mut stop: watch::Receiver<bool>,
) {
    let waker = Arc::new(Notify::new());
    let conn = shared.open(peer, who, Arc::clone(&waker));
    let open = Open { shared: &shared, conn };
    let (result, patience) = {
        let mut serving = std::pin::pin!(serve(&shared, conn, &mut socket, &waker));
        tokio::select! {
            result = serving.as_mut() => (result, LINGER),
            () = stopped(&mut stop) => {
                if !shared.finish(conn) {
                    return;
                }
                // What was answered is still to be written.
                match timeout(FAREWELL, serving).await {
                    Ok(result) => (result, SHORT_LINGER),
                    Err(_) => return,
                }
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%conn, %peer, %error, "connection ended");
    }
    drop(open);
    let _ = timeout(patience, linger(&mut socket)).await;
}

/// Tells the core that the connection is gone, whichever way the task ends.
struct Open<'a> {
    shared: &'a Shared,
    conn: ConnId,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.shared.closed(self.conn);
    }
}

async fn serve<S: Stream>(
    shared: &Shared,
    conn: ConnId,
    socket: &mut S,
    waker: &Arc<Notify>,
) -> io::Result<()> {
    let mut input = BytesMut::with_capacity(SMALL_READ);
    let first_by = Instant::now() + shared.timing.connect_timeout;
    let first = async {
        while input.len() < 4 {
            if socket.read_buf(&mut input).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
        }
        Ok(())
    };
    match tokio::time::timeout_at(first_by, first).await {
        Ok(result) => result?,
        Err(_) => return Err(io::Error::new(io::ErrorKind::TimedOut, "nothing came")),
    }
    if let Some(what) = door::other_protocol(&input) {
        tracing::info!(%conn, what, "not a ZooKeeper client, closing");
        return Ok(());
    }
    if let Some(answer) = words::answer(shared, conn, &input) {
        let written = tokio::time::timeout_at(first_by, async {
            socket.write_all(answer.as_bytes()).await?;
            socket.flush().await
        });
        let late = |_| Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read its answer"));
        return written.await.unwrap_or_else(late);
    }
    // A stranger is not to make us keep a large frame.
    if input.first_chunk().is_some_and(|len| u32::from_be_bytes(*len) as usize > MAX_GREETING) {
        tracing::debug!(%conn, "no greeting is that long, closing");
        return Ok(());
    }
    converse(shared, conn, socket, waker, input, first_by).await
}

/// What a connection has been sent and cannot yet use, as part of what all have been.
struct HalfSent<'a> {
    all: &'a AtomicUsize,
    mine: usize,
}

impl HalfSent<'_> {
    /// Notes how much it is now, and says how much all have.
    fn set(&mut self, bytes: usize) -> usize {
        // Most frames come whole.
        if bytes == self.mine {
            return self.all.load(Ordering::Relaxed);
        }
        let before = self.all.fetch_add(bytes.wrapping_sub(self.mine), Ordering::Relaxed);
        let now = before.wrapping_add(bytes).wrapping_sub(self.mine);
        self.mine = bytes;
        now
    }
}

impl Drop for HalfSent<'_> {
    fn drop(&mut self) {
        self.set(0);
    }
}

async fn converse<S: Stream>(
    shared: &Shared,
    conn: ConnId,
    socket: &mut S,
    waker: &Arc<Notify>,
    mut input: BytesMut,
    first_by: Instant,
) -> io::Result<()> {
    let (mut reader, mut writer) = tokio::io::split(socket);
    let mut unflushed = false;
    let mut output = Outbox::default();
    let mut fed = Fed { closing: false, more: false, admitted: false };
    let mut read_by = first_by;
    let mut room = SMALL_READ;
    let mut half_sent = HalfSent { all: &shared.half_sent, mine: 0 };
    loop {
        if !fed.admitted && !fed.closing && Instant::now() >= first_by {
            // However busy it keeps us.
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no session in time"));
        }
        // While much waits to be written, or for the disk, nothing is read, and the core keeps what is for us.
        let mut ready = output.len() < HIGH_WATER && !fed.closing && !shared.is_full(waker);
        let was_writable = output.is_writable() || unflushed;
        if ready {
            fed = shared.feed(conn, &mut input, &mut output);
            ready = output.len() < HIGH_WATER && !fed.closing;
        }
        output.release(shared.journal.as_ref(), waker);
        if !was_writable {
            read_by = Instant::now() + WRITE_TIMEOUT;
        }
        // What waits for a log that has failed is never sent.
        let is_over = output.is_empty() || !output.is_writable() && shared.keeps_nothing();
        if fed.closing && is_over && !unflushed {
            return Ok(());
        }
        give_back(&mut input, 4 * room);
        output.give_back(4 * room);
        if !ready && !fed.closing && shared.lock().core.is_cut_off(conn) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read what waits for it"));
        }
        let (all, most) = (half_sent.set(input.len()), shared.timing.max_queued);
        if most != 0 && all > most && input.len() > MUCH {
            tracing::warn!(%conn, waiting = input.len(), all, "too much is half sent, closing");
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, "too much is half sent by all"));
        }
        if ready {
            input.reserve(room);
        }
        tokio::select! {
            biased;
            written = write(&mut writer, &mut output, &mut unflushed), if output.is_writable() || unflushed => {
                written?;
                read_by = Instant::now() + WRITE_TIMEOUT;
            }
            _ = std::future::ready(()), if ready && fed.more => tokio::task::yield_now().await,
            () = waker.notified() => {}
            read = reader.read_buf(&mut input), if ready => {
                let read = read?;
                if read == 0 {
                    return Ok(());
                }
                if input.len() == input.capacity() {
                    room = (2 * room).min(READ_SIZE);
                } else if read < room / 4 {
                    room = (room / 2).max(SMALL_READ);
                }
            }
            () = sleep_until(first_by), if !fed.admitted && !fed.closing => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no session in time"));
            }
            () = sleep_until(read_by), if output.is_writable() || unflushed => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read its replies"));
            }
        }
    }
}

/// Writes some of `output`, and all that the stream itself holds back when that was the last of it. What was written
/// stays written when the future is dropped.
async fn write(
    writer: &mut (impl AsyncWrite + Unpin),
    output: &mut Outbox,
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

/// One large request long ago must not be kept in mind by every connection for ever.
pub(super) fn give_back(buffer: &mut BytesMut, keep: usize) {
    // An empty one does not tell how large it was.
    if buffer.is_empty() && buffer.try_reclaim(keep + 1) {
        *buffer = BytesMut::new();
    }
}

async fn linger(socket: &mut impl Stream) -> io::Result<()> {
    socket.shutdown().await?;
    // Not in the task itself: every connection would carry it from its start.
    let mut rest = vec![0; 4096];
    while socket.read(&mut rest).await? > 0 {}
    Ok(())
}
