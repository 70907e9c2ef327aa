use thiserror::Error;

/// Reads jute fields from a frame.
///
/// Before the reader allocates, it compares each length with the bytes that are left. So a frame of
/// n bytes makes the reader allocate at most a small multiple of n.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

/// A fault in a frame, with the name of the field.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// The frame ends inside this field.
    #[error("the frame ends inside the field `{field}`")]
    Truncated {
        /// The field.
        field: &'static str,
    },
    /// The field has a length below -1.
    #[error("the field `{field}` has the negative length {len}")]
    NegativeLength {
        /// The field.
        field: &'static str,
        /// The length that was sent.
        len: i32,
    },
    /// The field is null, but must have a value.
    #[error("the field `{field}` is missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// The text of the field is not UTF-8.
    #[error("the field `{field}` is not UTF-8")]
    NotUtf8 {
        /// The field.
        field: &'static str,
    },
    /// The field has a value that the protocol does not define.
    #[error("the field `{field}` has the undefined value {value}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// The value that was sent.
        value: i32,
    },
    /// Bytes follow the last field.
    #[error("{left} bytes follow the last field")]
    Trailing {
        /// The number of bytes after the last field.
        left: usize,
    },
}

impl<'a> Reader<'a> {
    /// Returns a reader at the first byte of a frame.
    pub fn new(frame: &'a [u8]) -> Self {
        Reader { rest: frame }
    }

    /// Reads a 32-bit integer.
    ///
    /// # Errors
    /// The frame ends inside the field.
    pub fn int(&mut self, field: &'static str) -> Result<i32, WireError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(WireError::Truncated { field })?;
        self.rest = rest;
        Ok(i32::from_be_bytes(*head))
    }

    /// Reads a 64-bit integer.
    ///
    /// # Errors
    /// The frame ends inside the field.
    pub fn long(&mut self, field: &'static str) -> Result<i64, WireError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(WireError::Truncated { field })?;
        self.rest = rest;
        Ok(i64::from_be_bytes(*head))
    }

    /// Reads a boolean. Every byte except zero is true, as in Java.
    ///
    /// # Errors
    /// The frame ends inside the field.
    pub fn bool(&mut self, field: &'static str) -> Result<bool, WireError> {
        let (&head, rest) = self.rest.split_first().ok_or(WireError::Truncated { field })?;
        self.rest = rest;
        Ok(head != 0)
    }

    /// Reads a buffer. Length -1 is null.
    ///
    /// # Errors
    /// The frame ends inside the field, or the length is below -1.
    pub fn buffer(&mut self, field: &'static str) -> Result<Option<&'a [u8]>, WireError> {
        let Some(len) = self.len(field)? else { return Ok(None) };
        let (head, rest) = self.rest.split_at_checked(len).ok_or(WireError::Truncated { field })?;
        self.rest = rest;
        Ok(Some(head))
    }

    /// Reads a text that may be null.
    ///
    /// # Errors
    /// The frame ends inside the field, the length is below -1, or the bytes are not UTF-8.
    pub fn opt_string(&mut self, field: &'static str) -> Result<Option<String>, WireError> {
        match self.buffer(field)? {
            None => Ok(None),
            Some(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Some(text.to_owned())),
                Err(_) => Err(WireError::NotUtf8 { field }),
            },
        }
    }

    /// Reads a text.
    ///
    /// # Errors
    /// The errors of [`Reader::opt_string`], or the field is null.
    pub fn string(&mut self, field: &'static str) -> Result<String, WireError> {
        self.opt_string(field)?.ok_or(WireError::Missing { field })
    }

    /// Reads the length of a vector. Null counts as empty.
    ///
    /// # Errors
    /// The frame ends inside the field, the length is below -1, or the rest of the frame is too
    /// short for this many elements. An element has at least `least` bytes.
    pub fn count(&mut self, field: &'static str, least: usize) -> Result<usize, WireError> {
        let count = self.len(field)?.unwrap_or(0);
        if count.saturating_mul(least) > self.rest.len() {
            return Err(WireError::Truncated { field });
        }
        Ok(count)
    }

    /// Reads a vector of texts.
    ///
    /// # Errors
    /// The errors of [`Reader::count`] and [`Reader::string`].
    pub fn strings(&mut self, field: &'static str) -> Result<Vec<String>, WireError> {
        let count = self.count(field, 4)?;
        (0..count).map(|_| self.string(field)).collect()
    }

    /// Returns whether all bytes were read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Checks that all bytes were read.
    ///
    /// # Errors
    /// Bytes are left.
    pub fn check_end(&self) -> Result<(), WireError> {
        if self.rest.is_empty() { Ok(()) } else { Err(WireError::Trailing { left: self.rest.len() }) }
    }

    fn len(&mut self, field: &'static str) -> Result<Option<usize>, WireError> {
        match self.int(field)? {
            -1 => Ok(None),
            len => usize::try_from(len).map(Some).map_err(|_| WireError::NegativeLength { field, len }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_the_truncated_field() {
        let mut reader = Reader::new(&[0, 0, 0, 9, b'a']);
        assert_eq!(reader.string("path"), Err(WireError::Truncated { field: "path" }));
    }

    #[test]
    fn vector_beyond_the_frame_is_refused() {
        let mut reader = Reader::new(&[0x7f, 0xff, 0xff, 0xff, 0, 0]);
        assert_eq!(reader.strings("paths"), Err(WireError::Truncated { field: "paths" }));
    }

    #[test]
    fn negative_length_and_trailing_bytes_are_refused() {
        let mut reader = Reader::new(&[0xff, 0xff, 0xff, 0xfe]);
        assert_eq!(reader.buffer("data"), Err(WireError::NegativeLength { field: "data", len: -2 }));
        assert_eq!(Reader::new(&[1]).check_end(), Err(WireError::Trailing { left: 1 }));
    }
}
