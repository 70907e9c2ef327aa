use std::fmt;

/// Bytes that must not be shown: a session password or credentials. `Debug` prints none of them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Hidden(pub Vec<u8>);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(..)")
    }
}
