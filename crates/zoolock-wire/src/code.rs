use std::fmt;

/// An error code in a reply header or in the results of a multi.
///
/// The list is that of ZooKeeper's `KeeperException.Code`, without the codes that only ZooKeeper's client library uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are ZooKeeper's own")]
#[non_exhaustive]
pub enum Code {
    SystemError,
    RuntimeInconsistency,
    DataInconsistency,
    MarshallingError,
    Unimplemented,
    BadArguments,
    UnknownSession,
    NewConfigNoQuorum,
    ReconfigInProgress,
    NoNode,
    NoAuth,
    BadVersion,
    NoChildrenForEphemerals,
    NodeExists,
    NotEmpty,
    SessionExpired,
    InvalidAcl,
    AuthFailed,
    SessionMoved,
    NotReadOnly,
    EphemeralOnLocalSession,
    NoWatcher,
    RequestTimeout,
    ReconfigDisabled,
    SessionClosedRequireAuth,
    QuotaExceeded,
    Throttled,
}

impl Code {
    const ALL: [(Code, i32); 27] = [
        (Code::SystemError, -1),
        (Code::RuntimeInconsistency, -2),
        (Code::DataInconsistency, -3),
        (Code::MarshallingError, -5),
        (Code::Unimplemented, -6),
        (Code::BadArguments, -8),
        (Code::UnknownSession, -12),
        (Code::NewConfigNoQuorum, -13),
        (Code::ReconfigInProgress, -14),
        (Code::NoNode, -101),
        (Code::NoAuth, -102),
        (Code::BadVersion, -103),
        (Code::NoChildrenForEphemerals, -108),
        (Code::NodeExists, -110),
        (Code::NotEmpty, -111),
        (Code::SessionExpired, -112),
        (Code::InvalidAcl, -114),
        (Code::AuthFailed, -115),
        (Code::SessionMoved, -118),
        (Code::NotReadOnly, -119),
        (Code::EphemeralOnLocalSession, -120),
        (Code::NoWatcher, -121),
        (Code::RequestTimeout, -122),
        (Code::ReconfigDisabled, -123),
        (Code::SessionClosedRequireAuth, -124),
        (Code::QuotaExceeded, -125),
        (Code::Throttled, -127),
    ];

    /// Returns the number on the wire.
    pub fn number(self) -> i32 {
        Self::ALL[self as usize].1
    }

    /// Returns the code with this number on the wire, or `None` for a number that ZooKeeper does not define.
    pub fn from_number(number: i32) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == number).map(|(code, _)| *code)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?} ({})", self.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_the_order_of_the_codes() {
        for (at, (code, number)) in Code::ALL.into_iter().enumerate() {
            assert_eq!((code as usize, code.number(), Code::from_number(number)), (at, number, Some(code)));
        }
        assert_eq!(Code::from_number(0), None);
        assert_eq!(Code::NoNode.to_string(), "NoNode (-101)");
    }
}
