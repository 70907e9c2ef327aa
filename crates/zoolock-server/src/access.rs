//! Access control: the secret, accounts and required authentication.

use std::collections::HashSet;
use std::fmt;

use zoolock_wire::Identity;

use crate::acl;
use crate::secret::{Secret, is_digest};

/// The settings of access control.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// The secret that every connection must present before its requests are executed.
    pub secret: Option<Secret>,
    /// The digest identity that has all permissions, as `user:base64(sha1(user:password))`.
    pub super_digest: Option<Secret>,
    /// Set if requests before authentication are refused, like ZooKeeper's `enforce.auth.enabled`.
    pub required: bool,
    /// The accounts of scheme `digest`. `None` accepts any user name and password, as ZooKeeper does.
    pub users: Option<Users>,
}

/// Accounts, as `user:base64(sha1(user:password))`.
#[derive(Clone, Default)]
pub struct Users(HashSet<String>);

impl Users {
    /// Parses accounts, one per line. Empty lines and lines that start with `#` are skipped.
    ///
    /// # Errors
    /// Returns the number of the first line that is not an account. The text of the line is not
    /// returned, because it may be a password.
    pub fn parse(text: &str) -> Result<Self, usize> {
        let mut users = HashSet::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if !is_digest(line) {
                return Err(index + 1);
            }
            users.insert(line.to_owned());
        }
        Ok(Users(users))
    }

    /// Returns the number of accounts.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no accounts.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn contains(&self, identity: &Identity) -> bool {
        self.0.contains(&identity.id)
    }
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").field("count", &self.0.len()).finish_non_exhaustive()
    }
}

impl Access {
    /// Returns whether a connection with these identities is admitted without further authentication.
    pub(crate) fn admits_without_auth(&self, identities: &[Identity]) -> bool {
        if self.secret.is_some() {
            return false;
        }
        // Without accounts any password is accepted, so a digest proves nothing.
        let proven = |identity: &Identity| match identity.scheme.as_str() {
            "x509" | "super" => true,
            "digest" => self.users.is_some(),
            _ => false,
        };
        !self.required || identities.iter().any(proven)
    }

    /// Returns the identities that `credentials` of scheme `digest` prove, or `None` if the
    /// credentials are wrong.
    pub(crate) fn verify_digest(&self, credentials: &[u8]) -> Option<Vec<Identity>> {
        let identity = acl::digest_identity(credentials);
        if self.super_digest.as_ref().is_some_and(|digest| digest.matches(&identity.id)) {
            return Some(vec![Identity::new("super", ""), identity]);
        }
        match &self.users {
            Some(users) if !users.contains(&identity) => None,
            _ => Some(vec![identity]),
        }
    }

    /// Returns whether the credentials are `zoolock:<secret>`.
    pub(crate) fn is_secret(&self, credentials: &[u8]) -> bool {
        self.secret.as_ref().is_some_and(|secret| secret.matches_credentials(credentials))
    }

    /// Returns whether clients must present credentials before their requests are executed.
    pub(crate) fn requires_credentials(&self) -> bool {
        self.secret.is_some() || self.required
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_parsed_line_by_line() {
        let users = Users::parse("# ours\n\nsuper:D/InIHSb7yEEbrWz8b9l71RjZJU=\r\n").expect("one account");
        assert!(
            users.contains(&acl::digest_identity(b"super:test"))
                && !users.contains(&acl::digest_identity(b"super:tset"))
        );
        for bad in ["me:password", "nonsense", ":D/InIHSb7yEEbrWz8b9l71RjZJU=", "me:"] {
            assert_eq!(Users::parse(&format!("\n{bad}")).err(), Some(2), "{bad}");
        }
        assert!(!format!("{users:?}").contains("super"));
    }

    #[test]
    fn required_auth_admits_only_proven_identities() {
        let digest = [acl::digest_identity(b"me:pw")];
        let x509 = [Identity::new("x509", "CN=a")];
        let open = Access::default();
        assert!(open.admits_without_auth(&[]));
        let required = Access { required: true, ..Access::default() };
        assert!(
            required.admits_without_auth(&x509)
                && !required.admits_without_auth(&digest)
                && !required.admits_without_auth(&[])
        );
        let users = Users::parse(&digest[0].id).expect("an account");
        let required = Access { users: Some(users), ..required };
        assert!(required.admits_without_auth(&digest) && required.verify_digest(b"me:pw").is_some());
        assert!(required.verify_digest(b"me:wp").is_none());
    }
}
