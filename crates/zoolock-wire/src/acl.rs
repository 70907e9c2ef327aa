//! The records of access lists. The server decides which clients match an entry.

use crate::{Reader, WireError, Writer};

/// The permissions of an access list entry.
pub mod perms {
    /// Read the data and list the children.
    pub const READ: i32 = 1;
    /// Write the data.
    pub const WRITE: i32 = 2;
    /// Create children.
    pub const CREATE: i32 = 4;
    /// Delete children.
    pub const DELETE: i32 = 8;
    /// Write the access list.
    pub const ADMIN: i32 = 16;
    /// All permissions.
    pub const ALL: i32 = 31;
}

/// The identity of a client: an id in a scheme.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The scheme: `world`, `auth`, `digest`, `ip`, `sasl`, `x509` or `super`.
    pub scheme: String,
    /// The id in that scheme.
    pub id: String,
}

/// An entry of an access list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Acl {
    /// A sum of [`perms`].
    pub perms: i32,
    /// The identity that has these permissions.
    pub identity: Identity,
}

impl Identity {
    /// Returns the identity with this scheme and id.
    pub fn new(scheme: &str, id: impl Into<String>) -> Self {
        Identity { scheme: scheme.to_owned(), id: id.into() }
    }

    /// Returns the part that may be shown: a digest's user without the hash, or the whole id.
    pub fn shown_id(&self) -> &str {
        match self.scheme.as_str() {
            "digest" => self.id.split(':').next().unwrap_or_default(),
            _ => &self.id,
        }
    }
}

impl Acl {
    /// Returns the entry that gives these permissions to every client.
    pub fn anyone(perms: i32) -> Self {
        Acl { perms, identity: Identity::new("world", "anyone") }
    }

    /// Decodes a vector of entries.
    ///
    /// # Errors
    /// The frame ends inside the vector, a length is below -1, or a text is not UTF-8.
    pub fn decode_list(reader: &mut Reader<'_>) -> Result<Vec<Acl>, WireError> {
        let count = reader.count("acl", 12)?;
        let entry = |_| {
            let perms = reader.int("acl perms")?;
            let scheme = reader.opt_string("acl scheme")?.unwrap_or_default();
            let id = reader.opt_string("acl id")?.unwrap_or_default();
            Ok(Acl { perms, identity: Identity { scheme, id } })
        };
        (0..count).map(entry).collect()
    }

    /// Encodes a vector of entries.
    pub fn encode_list(list: &[Acl], writer: &mut Writer<'_>) {
        writer.count(list.len());
        for acl in list {
            writer.int(acl.perms);
            writer.string(&acl.identity.scheme);
            writer.string(&acl.identity.id);
        }
    }
}
