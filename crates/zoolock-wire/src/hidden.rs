use std::fmt;

use zeroize::Zeroize;

/// Bytes that must not be shown: a session password or credentials. `Debug` prints none of them,
/// and dropping them wipes their memory.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Hidden(pub Vec<u8>);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(..)")
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}
