use std::fmt;

/// A confidential text: the secret that clients must present, or the digest of the super user.
/// `Debug` hides the text.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// The user name for the secret. The credentials are `zoolock:<secret>`, with the scheme
    /// `digest`.
    pub const USER: &'static str = "zoolock";

    /// Wraps a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Secret(secret.into())
    }

    /// Returns whether this text is the secret.
    pub(crate) fn matches(&self, text: &str) -> bool {
        equal_in_constant_time(self.0.as_bytes(), text.as_bytes())
    }

    pub(crate) fn is_digest(&self) -> bool {
        is_digest(&self.0)
    }

    pub(crate) fn matches_credentials(&self, credentials: &[u8]) -> bool {
        equal_in_constant_time(format!("{}:{}", Self::USER, self.0).as_bytes(), credentials)
    }
}

/// Returns whether a text has the form `user:base64(sha1(user:password))`.
pub(crate) fn is_digest(text: &str) -> bool {
    use base64::Engine as _;
    text.split_once(':').is_some_and(|(user, hash)| {
        let decoded = base64::engine::general_purpose::STANDARD.decode(hash);
        !user.is_empty() && decoded.is_ok_and(|bytes| bytes.len() == 20)
    })
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Compares byte strings in a time that depends only on their lengths.
pub(crate) fn equal_in_constant_time(ours: &[u8], theirs: &[u8]) -> bool {
    let differing = ours.iter().zip(theirs).fold(0, |acc, (a, b)| std::hint::black_box(acc | (a ^ b)));
    ours.len() == theirs.len() && differing == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admits_only_the_whole_credentials_and_stays_hidden() {
        let secret = Secret::new("s3cret");
        assert!(secret.matches_credentials(b"zoolock:s3cret"));
        for wrong in [&b"zoolock:s3cre"[..], b"zoolock:s3crets", b"zoolock:", b"", b"other:s3cret"] {
            assert!(!secret.matches_credentials(wrong));
        }
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }
}
