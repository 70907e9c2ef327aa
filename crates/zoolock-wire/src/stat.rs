use crate::{Reader, WireError, Writer};

/// The metadata of a znode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the wire record, under the names they have there")]
pub struct Stat {
    pub czxid: i64,
    pub mzxid: i64,
    pub ctime: i64,
    pub mtime: i64,
    pub version: i32,
    pub cversion: i32,
    pub aversion: i32,
    pub ephemeral_owner: i64,
    pub data_length: i32,
    pub num_children: i32,
    pub pzxid: i64,
}

impl Stat {
    /// Returns how many children the znode has ever had: the number of the next sequential child.
    /// `cversion` counts the creates and the deletes of children. So `cversion` plus the number of
    /// children is twice the result. `cversion` and this sum may wrap, but the result is right up
    /// to the last sequence number.
    pub fn created_children(&self) -> u32 {
        (self.cversion as u32).wrapping_add(self.num_children as u32) / 2
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// The frame ends inside the record.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Stat {
            czxid: reader.long("czxid")?,
            mzxid: reader.long("mzxid")?,
            ctime: reader.long("ctime")?,
            mtime: reader.long("mtime")?,
            version: reader.int("version")?,
            cversion: reader.int("cversion")?,
            aversion: reader.int("aversion")?,
            ephemeral_owner: reader.long("ephemeralOwner")?,
            data_length: reader.int("dataLength")?,
            num_children: reader.int("numChildren")?,
            pzxid: reader.long("pzxid")?,
        })
    }

    /// Encodes the record.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        writer.long(self.czxid);
        writer.long(self.mzxid);
        writer.long(self.ctime);
        writer.long(self.mtime);
        writer.int(self.version);
        writer.int(self.cversion);
        writer.int(self.aversion);
        writer.long(self.ephemeral_owner);
        writer.int(self.data_length);
        writer.int(self.num_children);
        writer.long(self.pzxid);
    }
}
