//! Frames: each message on a connection starts with its length, in four bytes.

use bytes::{Buf, Bytes, BytesMut};
use thiserror::Error;

/// The largest frame that ZooKeeper accepts, in bytes: the default of its setting `jute.maxbuffer`.
pub const MAX_FRAME: usize = 0xfffff;

/// A frame length that the receiver does not accept.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[error("the peer announces a frame of {len} bytes, and at most {limit} are accepted")]
pub struct FrameError {
    /// The length that the peer announced, which may be negative.
    pub len: i32,
    /// The largest accepted length.
    pub limit: usize,
}

/// Removes the first frame from `input` and returns its body.
///
/// Returns `None` if the frame is not complete yet. Allocates nothing for the missing part.
///
/// # Errors
/// The announced length is negative or above `limit`. Then no later frame can be found either.
pub fn split_frame(input: &mut BytesMut, limit: usize) -> Result<Option<Bytes>, FrameError> {
    let Some(len) = input.first_chunk().map(|len| i32::from_be_bytes(*len)) else { return Ok(None) };
    let body = usize::try_from(len).ok().filter(|body| *body <= limit).ok_or(FrameError { len, limit })?;
    if input.len() - 4 < body {
        return Ok(None);
    }
    input.advance(4);
    Ok(Some(input.split_to(body).freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_split_at_their_lengths() {
        let mut input = BytesMut::from(&[0, 0, 0, 2, b'a', b'b', 0, 0, 0, 0, 0, 0][..]);
        assert_eq!(split_frame(&mut input, 2), Ok(Some(Bytes::from_static(b"ab"))));
        assert_eq!(split_frame(&mut input, 2), Ok(Some(Bytes::new())));
        assert_eq!(split_frame(&mut input, 2), Ok(None));
        assert_eq!(input.len(), 2);
    }

    #[test]
    fn unacceptable_length_is_refused_before_the_body() {
        let mut input = BytesMut::from(&[0, 0, 0, 3][..]);
        assert_eq!(split_frame(&mut input, 2), Err(FrameError { len: 3, limit: 2 }));
        let mut input = BytesMut::from(&[0xff, 0xff, 0xff, 0xff][..]);
        assert_eq!(split_frame(&mut input, usize::MAX), Err(FrameError { len: -1, limit: usize::MAX }));
    }
}
