//! Bugs that the simulator's own test plants, to see that each is caught.
//!
//! Invariants:
//! - in a release build nothing of this is left: [`planted`] is `false` for the compiler;
//! - elsewhere nothing is planted but by [`plant`], on the thread that asks, until its guard goes.

macro_rules! bugs {
    ($($(#[doc = $doc:literal])+ $bug:ident,)+) => {
        /// What can be planted. Each says what the code then does wrong.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Bug {
            $($(#[doc = $doc])+ $bug,)+
        }

        impl Bug {
            /// All of them.
            pub const ALL: &[Bug] = &[$(Bug::$bug,)+];

            /// What goes wrong, for people.
            pub fn text(self) -> &'static str {
                match self {
                    $(Bug::$bug => concat!($($doc,)+).trim_ascii(),)+
                }
            }
        }
    };
}

bugs! {
    /// The log is acknowledged before it is flushed.
    LogNotFlushed,
    /// A torn group of the log is taken for a whole one.
    TornGroupAccepted,
    /// What an earlier lap of the log left is taken for its continuation.
    OldLapAccepted,
    /// The log's tail passes blocks whose home writes were not flushed.
    TailBeforeFlush,
    /// Blocks go home before the log that describes them is durable.
    HomeBeforeLog,
    /// The checksum of a metadata block is not looked at.
    ChecksumIgnored,
    /// The address that a metadata block carries is not looked at.
    AddressIgnored,
    /// An owner is set, and the group that is set with it is not.
    GroupKept,
    /// Names of a directory are changed without asking others for their right to them.
    RecallSkipped,
    /// A client answers a recall of names and goes on using them.
    NamesKeptAfterRecall,
    /// A client answers a recall of attributes and goes on using them.
    AttrKeptAfterRecall,
    /// A client answers a recall of data and keeps what it has read.
    DataKeptAfterRecall,
    /// A client gives a writer's right back before the server knows what it wrote.
    RecallWithoutFlush,
    /// A request sent again is executed again: the slot's answer was not kept.
    SlotAnswerLost,
    /// The result of a request is not kept in its transaction.
    ResultNotKept,
    /// The answer to a request that was executed before a restart is not kept for its next resend.
    RepeatedAnswerLost,
    /// A new inode takes the number of an old one.
    InodeNumberReused,
    /// A client takes the rights that an older answer tells for the newest.
    OlderGrantTaken,
    /// A client forgets a recall that came before the grant that it is about.
    EarlyRecallForgotten,
    /// The server takes a return that knows nothing of what it granted or asked for since.
    UnawareReturnTaken,
    /// What a return names is not given up under the sequence that it names.
    ReturnKept,
    /// Rights that are asked back are given to another before their return.
    RightsGivenTwice,
    /// Blocks are granted and stay free.
    DoubleAllocation,
    /// Answered requests are replayed in the wrong order.
    ReplayOutOfOrder,
    /// Answered requests are not replayed.
    ReplaySkipped,
    /// A restarted server serves before its clients have said what they hold.
    GraceSkipped,
    /// Leases are not reclaimed after a restart.
    LeasesNotReclaimed,
    /// Locks are not reclaimed after a restart.
    LocksNotReclaimed,
    /// A lock stays with who has given up waiting for it before the grant came.
    LockKeptByNobody,
    /// Attributes are told without the size that a writer knows.
    GlimpseIgnored,
    /// Data are committed before they are stable.
    CommitBeforeStable,
    /// The flush that a commit needs leaves out what was written in place.
    InPlaceNotFlushed,
    /// An answer that rests on another client's work does not wait until that is durable.
    ReplyGateSkipped,
    /// fsync is answered before the log is durable.
    SyncNotDurable,
    /// A file without a name is freed while it is open.
    OrphanFreedOpen,
    /// Attributes of an older reply replace newer ones.
    AttrVersionIgnored,
    /// What a mapping stored under a lost session is written back in the next one.
    StaleWriteBack,
    /// A client relies on its rights though its lease has run out.
    LeaseIgnored,
    /// What an evicted client could write is free at once, also while a device stands still.
    QuarantineSkipped,
    /// A server logs in the first epoch of its file system.
    EpochKept,
    /// A released lock stays taken.
    UnlockLost,
    /// Locks never conflict.
    LocksIgnored,
    /// Truncation leaves the old bytes behind the new end.
    TailNotZeroed,
    /// Truncation leaves the old bytes behind the new end of content beside the inode.
    ContentNotCut,
    /// A hole that was punched keeps its blocks.
    HoleNotPunched,
    /// An append goes where the file ended when it was opened.
    AppendAtOldEnd,
    /// Listing goes on one entry too late.
    CookieSkips,
    /// A directory may move into itself.
    CircleUnchecked,
    /// The parent of a removed directory keeps its link.
    ParentLinkKept,
    /// A rename between two names of one inode makes the client forget the old one.
    SameFileRename,
    /// A directory that is not empty is removed.
    EmptyUnchecked,
    /// The kernel is not told that names were recalled.
    KernelNamesKept,
    /// The kernel is not told that attributes were recalled.
    KernelAttrKept,
    /// The kernel is not told that data were recalled: it keeps its pages.
    KernelPagesKept,
    /// Only the greeting of a client counts as hearing of it.
    RequestNotHeard,
    /// A recall that went with a broken connection is not sent again on the next one.
    RecallNotRepeated,
    /// Clients that are gone keep the space that others lack.
    HoarderKept,
    /// What an evicted client could write is not frozen.
    FreezeSkipped,
    /// Listing goes on with the entry with which it had ended.
    CookieRepeats,
    /// A server that finds a client in quarantine when it starts takes that for damage.
    QuarantineRefused,
    /// A flush that takes long is taken for one that failed.
    SlowFlushFailed,
    /// Repair takes what it has done in its first round for all that there was to do.
    RepairOnce,
    /// A client that comes while a restarted server waits for others is turned away.
    NewcomerRefused,
    /// A client does not count the sessions that it lost.
    EvictionUntold,
    /// A directory that a rename replaces leaves its link with its parent.
    ReplacedLinkKept,
    /// A page that was filled before a WRITE that it should carry is not dropped.
    LackingPageKept,
    /// Everything is served while a drain waits for a page, and noted.
    DrainServesAll,
}

#[cfg(debug_assertions)]
mod state {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Is this bug planted here?
    pub fn planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// Plants a bug on this thread until the guard is dropped.
    #[must_use = "the bug goes with the guard"]
    pub fn plant(bug: Bug) -> Planted {
        PLANTED.set(Some(bug));
        Planted
    }

    /// A bug is planted as long as this lives.
    #[derive(Debug)]
    pub struct Planted;

    impl Drop for Planted {
        fn drop(&mut self) {
            PLANTED.set(None);
        }
    }
}

#[cfg(debug_assertions)]
pub use state::{Planted, plant, planted};

/// Is this bug planted here? Never, in a build that is to be used.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn planted(_: Bug) -> bool {
    false
}
