//! Cuts a byte stream into ZooKeeper's frames: four bytes of length, then that many bytes.

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

/// Longer than any frame; four-letter words and TLS records read as lengths beyond it.
const LONGEST: u32 = 64 << 20;

/// Bytes asked for at a time, at least.
const READ: usize = 16 << 10;

/// A piece of the stream, with all its bytes.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) bytes: BytesMut,
    pub(super) arrived: Instant,
    /// A whole frame, not part of something that is none.
    pub(super) is_frame: bool,
}

impl Piece {
    /// The big-endian number at `at` behind the length, where the frame reaches that far.
    pub(super) fn number(&self, at: usize) -> Option<i32> {
        let bytes = self.bytes.get(4 + at..8 + at)?;
        Some(i32::from_be_bytes(bytes.try_into().ok()?))
    }
}

/// Reads pieces.
#[derive(Debug)]
pub(super) struct Frames<R> {
    stream: R,
    buffer: BytesMut,
    /// Not ZooKeeper's protocol, so passed on as it comes.
    raw: bool,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    pub(super) fn new(stream: R) -> Self {
        Self { stream, buffer: BytesMut::new(), raw: false }
    }

    /// The next piece; `None` at the end. What is left of a torn frame comes as a last raw piece.
    pub(super) async fn next(&mut self) -> std::io::Result<Option<Piece>> {
        loop {
            if let Some(piece) = self.cut() {
                return Ok(Some(piece));
            }
            self.buffer.reserve(READ);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                self.raw = true;
                return Ok(self.cut());
            }
        }
    }

    fn cut(&mut self) -> Option<Piece> {
        if !self.raw {
            let length = u32::from_be_bytes(self.buffer.get(..4)?.try_into().ok()?);
            if length <= LONGEST {
                let whole = 4 + length as usize;
                if self.buffer.len() < whole {
                    return None;
                }
                let bytes = self.buffer.split_to(whole);
                return Some(Piece { bytes, arrived: Instant::now(), is_frame: true });
            }
            self.raw = true;
        }
        if self.buffer.is_empty() {
            return None;
        }
        let bytes = self.buffer.split();
        Some(Piece { bytes, arrived: Instant::now(), is_frame: false })
    }
}

#[cfg(test)]
mod tests {
    use super::Frames;

    async fn pieces(stream: &[u8]) -> Vec<(Vec<u8>, bool)> {
        let mut frames = Frames::new(stream);
        let mut found = Vec::new();
        while let Some(piece) = frames.next().await.expect("memory does not fail") {
            found.push((piece.bytes.to_vec(), piece.is_frame));
        }
        found
    }

    #[tokio::test]
    async fn frames_are_cut_at_their_lengths() {
        let stream = [0, 0, 0, 2, 7, 8, 0, 0, 0, 0, 0, 0, 0, 1, 9];
        let expected = [(vec![0, 0, 0, 2, 7, 8], true), (vec![0; 4], true), (vec![0, 0, 0, 1, 9], true)];
        assert_eq!(pieces(&stream).await, expected);
    }

    #[tokio::test]
    async fn what_is_no_frame_passes_as_it_is() {
        assert_eq!(pieces(b"ruok").await, [(b"ruok".to_vec(), false)]);
        assert_eq!(pieces(&[0, 0, 0, 9, 1]).await, [(vec![0, 0, 0, 9, 1], false)]);
        assert_eq!(pieces(b"").await, []);
    }
}
