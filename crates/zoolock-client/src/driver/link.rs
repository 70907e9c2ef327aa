//! The stream of a connection, and the bytes that the stream has not accepted yet.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::ReadBuf;

use crate::host::Endpoint;
use crate::platform::Stream;
use crate::session::{ConnectionId, Session};

/// The network side of a connection. The driver and the callers write to it, and the driver reads.
pub(super) struct SocketLink {
    pub(super) id: ConnectionId,
    pub(super) endpoint: Endpoint,
    stream: Box<dyn Stream>,
    /// Bytes that the stream has not accepted yet.
    output: Bytes,
    /// Set if the stream may hold bytes that it has not sent yet, as a TLS stream does.
    is_unflushed: bool,
    /// Set if a write has failed. The link stays open for reads, because the server may have sent replies before.
    is_broken: bool,
}

impl SocketLink {
    pub(super) fn new(id: ConnectionId, endpoint: Endpoint, stream: Box<dyn Stream>) -> SocketLink {
        SocketLink { id, endpoint, stream, output: Bytes::new(), is_unflushed: false, is_broken: false }
    }

    /// Writes and flushes the session's pending bytes. Returns `Pending` while the stream accepts
    /// no more bytes.
    pub(super) fn poll_write(&mut self, session: &mut Session, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.output.is_empty() {
                match session.take_bytes() {
                    // Bytes of another connection are never written.
                    Some((id, bytes)) if id == self.id => self.output = bytes,
                    _ => break,
                }
            }
            if self.is_broken {
                self.output.clear();
                continue;
            }
            match Pin::new(&mut *self.stream).poll_write(cx, &self.output) {
                Poll::Ready(Ok(0) | Err(_)) => self.is_broken = true,
                Poll::Ready(Ok(bytes)) => {
                    self.output.advance(bytes);
                    self.is_unflushed = true;
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        if self.is_unflushed && !self.is_broken {
            match Pin::new(&mut *self.stream).poll_flush(cx) {
                Poll::Ready(Ok(())) => self.is_unflushed = false,
                Poll::Ready(Err(_)) => self.is_broken = true,
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }

    /// Reads into `input`. Returns the number of bytes, which is 0 at the end of the stream.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, input: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(input);
        let read = Pin::new(&mut *self.stream).poll_read(cx, &mut buffer);
        read.map_ok(|()| buffer.filled().len())
    }
}
