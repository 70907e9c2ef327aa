//! The named values in snapshots.

use zoolock_core::names;

use crate::base::text_enum::text_enum;

text_enum! {
    /// The naming scheme of a contender's znode.
    #[derive(Default)]
    Family {
        /// zoolock, and .NET's mutex.
        Native = "native",
        /// .NET DistributedLock's other locks.
        DotNet = "dotnet",
        /// Curator, go-zookeeper, the Rust crate `zookeeper-client`.
        Curator = "curator",
        /// kazoo.
        Kazoo = "kazoo",
        /// Java's WriteLock and C's `zoo_lock`.
        WriteLock = "write-lock",
        /// zk-ruby.
        Ruby = "zk-ruby",
        /// aiozk.
        Aiozk = "aiozk",
        /// The format of the name is not known.
        #[default]
        Unknown = "unknown",
    }
}

impl From<names::Family> for Family {
    fn from(family: names::Family) -> Family {
        match family {
            names::Family::Native => Family::Native,
            names::Family::DotNet => Family::DotNet,
            names::Family::Curator => Family::Curator,
            names::Family::Kazoo => Family::Kazoo,
            names::Family::WriteLock => Family::WriteLock,
            names::Family::Ruby => Family::Ruby,
            names::Family::Aiozk => Family::Aiozk,
            names::Family::Unknown => Family::Unknown,
        }
    }
}

text_enum! {
    /// The share of a lock that a contender asks for.
    #[derive(Default)]
    Role {
        /// The lock alone.
        #[default]
        Exclusive = "exclusive",
        /// The lock together with other readers.
        Shared = "shared",
        /// The lock together with other readers, and perhaps alone later.
        Upgradable = "upgradable",
        /// Permits of a semaphore.
        Permit = "permit",
    }
}

impl From<names::Role> for Role {
    fn from(role: names::Role) -> Role {
        match role {
            names::Role::Exclusive => Role::Exclusive,
            names::Role::Shared => Role::Shared,
            names::Role::Upgradable => Role::Upgradable,
            names::Role::Permit => Role::Permit,
        }
    }
}

impl From<Role> for names::Role {
    fn from(role: Role) -> names::Role {
        match role {
            Role::Exclusive => names::Role::Exclusive,
            Role::Shared => names::Role::Shared,
            Role::Upgradable => names::Role::Upgradable,
            Role::Permit => names::Role::Permit,
        }
    }
}

text_enum! {
    /// The origin of [`Entry::owner`](crate::admin::Entry::owner).
    #[derive(Default)]
    OwnerKind {
        /// The program named it, see [`Owner`](crate::Owner) and [`Builder::owner_id`](crate::Builder::owner_id).
        Owner = "owner",
        /// The tokio task that acquired, or the thread outside of a task. This is wrong if several futures of one task
        /// acquire, or if a guard moves to another task. A [shared hold](crate::SharedHold) is an owner of its own. Its lock
        /// passes from task to task without a request to the server, so deadlocks through such a lock are not seen.
        Task = "task",
        /// A session of another client library, whose threads cannot be told apart. The text is a pseudonym of the session.
        /// Each process that reads the lock makes its own pseudonyms.
        Session = "session",
        /// The owner could not be read.
        #[default]
        Unknown = "unknown",
    }
}

text_enum! {
    /// The way in which a former holder left.
    #[derive(Default)]
    PreviousEnd {
        /// It released the lock.
        Clean = "clean",
        /// It released the lock while its thread unwound from a panic.
        Panicked = "panicked",
        /// It ended without a release.
        Crashed = "crashed",
        /// An operator deleted its znode.
        Broken = "broken",
        /// It is not known.
        #[default]
        Unknown = "unknown",
    }
}

text_enum! {
    /// The end of a [`WaitChain`](crate::admin::WaitChain).
    ChainEnd {
        /// The lock has no holder.
        Free = "free",
        /// No contender that can be read holds the lock, and a part of the lock cannot be read.
        Unread = "unread",
        /// The lock is a semaphore of another client library, whose holders are only counted.
        Foreign = "foreign",
        /// The last owner waits for nothing that this client sees.
        Working = "working",
        /// The last owner is in the chain already, so the wait lasts for ever.
        Circle = "circle",
        /// The last owner asks for more permits than there are.
        Permits = "permits",
        /// A semaphore in the chain does not record its size, so it is not known whether the wait can end.
        Unsure = "unsure",
        /// The last owner could not be read.
        Unknown = "unknown",
    }
}
