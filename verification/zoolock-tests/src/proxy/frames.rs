//! Splits a byte stream into ZooKeeper's frames: a length in four bytes, then the content.

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

/// Maximum length of a frame. Read as a length, the first four bytes of a four-letter word or of a
/// TLS record give a larger number. So such a stream is not split into frames.
const LONGEST: u32 = 64 << 20;

/// Minimum free space in the buffer before a read.
const READ: usize = 16 << 10;

/// A piece of the stream: a frame, or bytes of another protocol.
#[derive(Debug)]
pub(super) struct StreamPiece {
    pub(super) bytes: BytesMut,
    pub(super) arrived: Instant,
    /// True if this is a whole frame.
    pub(super) is_frame: bool,
}

impl StreamPiece {
    /// Returns the big-endian number at offset `at` of the content, or `None` if the content is shorter.
    pub(super) fn number(&self, at: usize) -> Option<i32> {
        let bytes = self.bytes.get(4 + at..8 + at)?;
        Some(i32::from_be_bytes(bytes.try_into().ok()?))
    }
}

/// A reader that splits a stream into pieces.
#[derive(Debug)]
pub(super) struct Frames<R> {
    stream: R,
    buffer: BytesMut,
    /// True if the stream is not in ZooKeeper's protocol, or has ended. The bytes are then not split into frames, because
    /// the length of a frame would be that of something else.
    raw: bool,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    /// Creates a reader. With `raw`, it does not split the stream into frames.
    pub(super) fn new(stream: R, raw: bool) -> Self {
        Self { stream, buffer: BytesMut::new(), raw }
    }

    /// Returns the next piece, or `None` at the end of the stream. For an incomplete last frame, `is_frame` is false.
    pub(super) async fn next(&mut self) -> std::io::Result<Option<StreamPiece>> {
        loop {
            if let Some(piece) = self.next_buffered_piece() {
                return Ok(Some(piece));
            }
            self.buffer.reserve(READ);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                self.raw = true;
                return Ok(self.next_buffered_piece());
            }
        }
    }

    fn next_buffered_piece(&mut self) -> Option<StreamPiece> {
        if !self.raw {
            let length = u32::from_be_bytes(self.buffer.get(..4)?.try_into().ok()?);
            if length <= LONGEST {
                let whole = 4 + length as usize;
                if self.buffer.len() < whole {
                    return None;
                }
                let bytes = self.buffer.split_to(whole);
                return Some(StreamPiece { bytes, arrived: Instant::now(), is_frame: true });
            }
            self.raw = true;
        }
        if self.buffer.is_empty() {
            return None;
        }
        let bytes = self.buffer.split();
        Some(StreamPiece { bytes, arrived: Instant::now(), is_frame: false })
    }
}
