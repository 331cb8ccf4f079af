//! Bugs that the simulator's own test plants, to check that the simulator catches each.
//!
//! Invariants:
//! - a release build contains none of them: [`planted`] is the constant `false` there;
//! - in other builds only [`plant`] plants a bug, on the calling thread, while its guard lives.

macro_rules! bugs {
    ($($(#[doc = $doc:literal])+ $bug:ident,)+) => {
        /// The bugs that can be planted. Each text says what the code then does wrong.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Bug {
            $($(#[doc = $doc])+ $bug,)+
        }

        impl Bug {
            /// All of them.
            pub const ALL: &[Bug] = &[$(Bug::$bug,)+];

            /// A description of the bug.
            pub fn text(self) -> &'static str {
                match self {
                    $(Bug::$bug => concat!($($doc,)+).trim_ascii(),)+
                }
            }
        }
    };
}

bugs! {
    /// A server that stands by takes over though the fence has not cut the owner's host off.
    FenceBelieved,
    /// An owner of the metadata whose term is over goes on to write.
    TermIgnored,
    /// The log is acknowledged before it is flushed.
    LogNotFlushed,
    /// Recovery takes a torn group of the log for a complete one.
    TornGroupAccepted,
    /// Recovery takes records of an earlier lap of the log for its continuation.
    OldLapAccepted,
    /// The log's tail passes blocks whose home writes were not flushed.
    TailBeforeFlush,
    /// The store writes blocks home before the log that describes them is durable.
    HomeBeforeLog,
    /// The store does not check the checksum of a metadata block.
    ChecksumIgnored,
    /// The store does not check the address that a metadata block carries.
    AddressIgnored,
    /// A change of owner and group sets the owner only.
    GroupKept,
    /// A client that a data device has failed a flush takes all data devices for failed.
    ErrorSpreads,
    /// Blocks that files give up are counted in the first data zone, whichever they lie in.
    WrongZoneCounted,
    /// A client that moves blocks commits their new places before the content is stable there.
    MoveNotFlushed,
    /// The status of a data zone counts blocks as free that files have given up.
    FreedCalledFree,
    /// A request that changes a data zone's state only from certain ones changes it from any.
    ZoneStateForced,
    /// The server changes names of a directory without recalling other clients' rights to them.
    RecallSkipped,
    /// A client answers a recall of names and goes on using them.
    NamesKeptAfterRecall,
    /// A client answers a recall of attributes and goes on using them.
    AttrKeptAfterRecall,
    /// A client answers a recall of data and keeps the data in its cache.
    DataKeptAfterRecall,
    /// A client returns a writer's right before it has committed what it wrote.
    RecallWithoutFlush,
    /// The server executes a resent request again: it did not keep the slot's answer.
    SlotAnswerLost,
    /// The transaction of a request does not record its result.
    ResultNotKept,
    /// A restarted server does not keep a repeated answer for the next resend.
    RepeatedAnswerLost,
    /// A new inode takes the number of an old one.
    InodeNumberReused,
    /// A client takes the rights in an older answer for the newest.
    OlderGrantTaken,
    /// A client forgets a recall that arrives before the grant that it recalls.
    EarlyRecallForgotten,
    /// The server accepts a return that is older than its last grant or recall.
    UnawareReturnTaken,
    /// A client does not give up the rights of a return under the sequence that the return names.
    ReturnKept,
    /// The server grants rights to another client before their holder has returned them.
    RightsGivenTwice,
    /// Blocks are granted and stay free.
    DoubleAllocation,
    /// A client replays answered requests in the wrong order.
    ReplayOutOfOrder,
    /// A client does not replay answered requests.
    ReplaySkipped,
    /// A client does not repeat to a restarted object target what that one had lost.
    TargetReplaySkipped,
    /// The log of an object target does not wait until the content that it describes is stable.
    ContentNotAwaited,
    /// An object target answers that it has destroyed objects, and keeps them.
    ObjectsKept,
    /// An object target goes on after its device has failed to flush content.
    FailedFlushIgnored,
    /// An object target whose store has failed answers that before it ends.
    FailedTargetAnswers,
    /// An object target promises a client the free blocks that it keeps for other clients.
    RoomPromisedTwice,
    /// A move between blocks and objects goes on with a copy though the file has changed since.
    StaleCopyExchanged,
    /// A restarted server serves before its clients have reclaimed what they hold.
    GraceSkipped,
    /// Leases are not reclaimed after a restart.
    LeasesNotReclaimed,
    /// Locks are not reclaimed after a restart.
    LocksNotReclaimed,
    /// A lock granted after its caller stopped waiting stays held.
    LockKeptByNobody,
    /// The server answers with attributes that lack the size known to a writer.
    GlimpseIgnored,
    /// A client commits data before they are stable.
    CommitBeforeStable,
    /// The flush before a commit leaves out what was written in place.
    InPlaceNotFlushed,
    /// An answer does not wait until the changes of another client that it depends on are durable.
    ReplyGateSkipped,
    /// The server answers fsync before the log is durable.
    SyncNotDurable,
    /// An orphan is freed while it is open.
    OrphanFreedOpen,
    /// Attributes of an older reply replace newer ones.
    AttrVersionIgnored,
    /// A page dirtied through a mapping under a lost session is written back in the next one.
    StaleWriteBack,
    /// A client relies on its rights although its lease has expired.
    LeaseIgnored,
    /// Blocks that an evicted client may write are free at once, even while a device is stalled.
    QuarantineSkipped,
    /// A restarted server keeps logging in the first epoch of its file system.
    EpochKept,
    /// A released lock stays held.
    UnlockLost,
    /// Locks never conflict.
    LocksIgnored,
    /// Truncation leaves the old bytes behind the new end.
    TailNotZeroed,
    /// Truncation of inline data leaves the old bytes behind the new end.
    ContentNotCut,
    /// A punched hole keeps its blocks.
    HoleNotPunched,
    /// An append goes where the file ended when it was opened.
    AppendAtOldEnd,
    /// A continued listing skips an entry.
    CookieSkips,
    /// A rename may move a directory into itself.
    CircleUnchecked,
    /// The parent of a removed directory keeps its link.
    ParentLinkKept,
    /// A rename between two names of one inode makes the client forget the old one.
    SameFileRename,
    /// A directory that is not empty is removed.
    EmptyUnchecked,
    /// A client does not invalidate the kernel's names when they are recalled.
    KernelNamesKept,
    /// A client does not invalidate the kernel's attributes when they are recalled.
    KernelAttrKept,
    /// A client does not invalidate the kernel's pages when their data are recalled.
    KernelPagesKept,
    /// Only the hello of a client renews its lease; its requests do not.
    RequestNotHeard,
    /// A client takes a server for dead when a request is over its time, and asks nothing.
    ProbeSkipped,
    /// A recall lost with a broken connection is not repeated on the next one.
    RecallNotRepeated,
    /// Clients that are gone keep the space that other clients need.
    HoarderKept,
    /// Files that an evicted client may write are not frozen.
    FreezeSkipped,
    /// A continued listing repeats its last entry.
    CookieRepeats,
    /// A starting server that finds a client in quarantine takes that for damage.
    QuarantineRefused,
    /// A slow flush is taken for a failed one.
    SlowFlushFailed,
    /// Repair stops after its first round, even if more is to be repaired.
    RepairOnce,
    /// A restarted server refuses new clients while it waits for known ones.
    NewcomerRefused,
    /// A client does not count the sessions that it lost.
    EvictionUntold,
    /// When a rename replaces a directory, its parent keeps the link.
    ReplacedLinkKept,
    /// A page that was filled before a WRITE, and so lacks it, is not dropped.
    LackingPageKept,
    /// A WRITE of a part of a page waits as one that fills a page does, while an invalidation waits
    /// for the page.
    PartWaits,
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
    #[must_use = "dropping the guard removes the bug"]
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

/// Is this bug planted here? Never in a release build.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn planted(_: Bug) -> bool {
    false
}
