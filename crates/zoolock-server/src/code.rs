use std::fmt;

/// An error code as ZooKeeper puts it into a reply header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are ZooKeeper's own")]
#[non_exhaustive]
pub enum Code {
    SystemError,
    RuntimeInconsistency,
    MarshallingError,
    Unimplemented,
    BadArguments,
    NoNode,
    NoAuth,
    BadVersion,
    NoChildrenForEphemerals,
    NodeExists,
    NotEmpty,
    SessionExpired,
    InvalidAcl,
    AuthFailed,
    NoWatcher,
    ReconfigDisabled,
    SessionClosedRequireAuth,
}

impl Code {
    /// The number on the wire.
    pub fn number(self) -> i32 {
        match self {
            Code::SystemError => -1,
            Code::RuntimeInconsistency => -2,
            Code::MarshallingError => -5,
            Code::Unimplemented => -6,
            Code::BadArguments => -8,
            Code::NoNode => -101,
            Code::NoAuth => -102,
            Code::BadVersion => -103,
            Code::NoChildrenForEphemerals => -108,
            Code::NodeExists => -110,
            Code::NotEmpty => -111,
            Code::SessionExpired => -112,
            Code::InvalidAcl => -114,
            Code::AuthFailed => -115,
            Code::NoWatcher => -121,
            Code::ReconfigDisabled => -123,
            Code::SessionClosedRequireAuth => -124,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?} ({})", self.number())
    }
}
