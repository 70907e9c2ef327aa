//! The identities of a client, and the size of the reply to its current request.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;

use zoolock_wire::{Code, Identity, perms};

use crate::acl::{AclList, identity_key};
use crate::caps::{MAX_REPLY_BYTES, REPLY_ITEM_BYTES};

/// Maximum number of verdicts that a client keeps. At this number all of them are dropped.
const MAX_VERDICTS: usize = 256;

/// A client, as access lists and the cap on replies see it.
#[derive(Debug)]
pub struct Client {
    identities: Vec<Identity>,
    /// Keys of the identities (see [`identity_key`]).
    keys: Vec<u128>,
    /// Addresses of the identities of scheme `ip`.
    addresses: Vec<IpAddr>,
    is_super: bool,
    /// Permissions that lists give to this client, by the numbers of the lists.
    verdicts: RefCell<HashMap<u64, i32>>,
    /// Number of bytes that the current request has charged.
    bytes: Cell<usize>,
}

impl Client {
    /// Creates a client with these identities.
    pub fn new(identities: Vec<Identity>) -> Self {
        let mut client = Client {
            identities: Vec::with_capacity(identities.len()),
            keys: Vec::new(),
            addresses: Vec::new(),
            is_super: false,
            verdicts: RefCell::default(),
            bytes: Cell::new(0),
        };
        identities.into_iter().for_each(|identity| client.add_identity(identity));
        client
    }

    /// Returns the identities.
    pub fn identities(&self) -> &[Identity] {
        &self.identities
    }

    /// Adds an identity, unless the client has it already.
    pub fn add_identity(&mut self, identity: Identity) {
        if self.identities.contains(&identity) {
            return;
        }
        self.is_super |= identity.scheme == "super";
        self.keys.push(identity_key(&identity));
        if identity.scheme == "ip" {
            self.addresses.extend(identity.id.parse::<IpAddr>().ok());
        }
        self.identities.push(identity);
        self.verdicts.get_mut().clear();
    }

    /// Checks that `list` gives this client at least one of the permissions in `perm`. An empty list gives every client
    /// all permissions.
    ///
    /// # Errors
    /// [`Code::NoAuth`] if the client has none of these permissions.
    pub fn check_permission(&self, list: &AclList, perm: i32) -> Result<(), Code> {
        if self.permissions(list) & perm != 0 { Ok(()) } else { Err(Code::NoAuth) }
    }

    fn permissions(&self, list: &AclList) -> i32 {
        if self.is_super {
            return perms::ALL;
        }
        let mut verdicts = self.verdicts.borrow_mut();
        if let Some(known) = verdicts.get(&list.number()) {
            return *known;
        }
        if verdicts.len() >= MAX_VERDICTS {
            verdicts.clear();
        }
        let granted = list.granted(&self.keys, &self.addresses);
        verdicts.insert(list.number(), granted);
        granted
    }

    /// Begins the count of a request.
    pub(crate) fn begin_request(&self) {
        self.bytes.set(0);
    }

    /// Charges the current request for a piece of data, a name or a path of this length in its reply.
    ///
    /// # Errors
    /// [`Code::QuotaExceeded`] above 6 MiB in all.
    pub(crate) fn charge_bytes(&self, len: usize) -> Result<(), Code> {
        self.bytes.set(self.bytes.get() + len + REPLY_ITEM_BYTES);
        if self.bytes.get() <= MAX_REPLY_BYTES { Ok(()) } else { Err(Code::QuotaExceeded) }
    }
}
