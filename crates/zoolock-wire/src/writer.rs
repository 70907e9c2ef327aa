use bytes::{BufMut, BytesMut};

/// Appends jute fields to a buffer.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut BytesMut,
}

impl<'a> Writer<'a> {
    /// Returns a writer that appends to `out`.
    pub fn new(out: &'a mut BytesMut) -> Self {
        Writer { out }
    }

    /// Appends one frame: its length, then the bytes that `body` writes.
    pub fn frame(out: &mut BytesMut, body: impl FnOnce(&mut Writer<'_>)) {
        let start = out.len();
        out.put_i32(0);
        body(&mut Writer { out });
        let len = length(out.len() - start - 4);
        out[start..start + 4].copy_from_slice(&len.to_be_bytes());
    }

    /// Writes bytes that are encoded already.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Writes a 32-bit integer.
    pub fn int(&mut self, value: i32) {
        self.out.put_i32(value);
    }

    /// Writes a 64-bit integer.
    pub fn long(&mut self, value: i64) {
        self.out.put_i64(value);
    }

    /// Writes a boolean.
    pub fn bool(&mut self, value: bool) {
        self.out.put_u8(u8::from(value));
    }

    /// Writes a buffer, or null.
    pub fn buffer(&mut self, value: Option<&[u8]>) {
        match value {
            None => self.out.put_i32(-1),
            Some(bytes) => {
                self.out.put_i32(length(bytes.len()));
                self.out.put_slice(bytes);
            }
        }
    }

    /// Writes a text.
    pub fn string(&mut self, value: &str) {
        self.buffer(Some(value.as_bytes()));
    }

    /// Writes the length of a vector.
    pub fn count(&mut self, count: usize) {
        self.out.put_i32(length(count));
    }

    /// Writes a vector of texts.
    pub fn strings<S: AsRef<str>>(&mut self, values: &[S]) {
        self.count(values.len());
        for value in values {
            self.string(value.as_ref());
        }
    }
}

fn length(len: usize) -> i32 {
    i32::try_from(len).expect("a frame stays below 2 GiB: a listing is bounded by the tree in memory")
}
