//! What a check of the engine's structures finds.

use std::borrow::Cow;

use types::{ClientId, MetaBlock, ShardId};

use crate::btree::RootLocation;
use crate::error::OwnerMismatch;
use crate::format::blob::BlobOwner;
use crate::format::reply::REPLY_KEY;

/// A finding about a structure of the engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// The label is damaged, and what is wrong with it.
    DamagedLabel(String),
    /// Header or label of the journal is damaged, and what is wrong.
    DamagedJournal(String),
    /// A block is not what it should be: which, and what is wrong with it.
    Damaged(MetaBlock, Cow<'static, str>),
    /// Something cannot be read, and nothing says which block is damaged.
    Unreadable,
    /// Blocks from this one on lie outside the device, and what they should be.
    Outside(MetaBlock, String),
    /// Blocks that something else has, too: which, at least one, and what they should be.
    Shared(Vec<MetaBlock>, String),
    /// A tree leads to a node that it cannot have: see [`Finding::Outside`] and
    /// [`Finding::Shared`].
    BrokenTree(RootLocation),
    /// A node of a tree cannot be read: see [`Finding::Damaged`].
    LostNode {
        /// The tree.
        tree: RootLocation,
        /// The keys of the node are not below this; `None`: no bound.
        low: Option<Vec<u8>>,
        /// They are below this.
        high: Option<Vec<u8>>,
    },
    /// A block of the bitmap cannot be read: its index.
    LostBitmap(u64),
    /// The blob that begins where that of this owner should is of another owner, by this block.
    WrongBlob(BlobOwner, MetaBlock, OwnerMismatch),
    /// A client with a number of another shard than this one, which is that of the store.
    ForeignClient(ClientId, ShardId),
    /// A client with a number that was not issued.
    UnissuedClient(ClientId),
    /// The description of a client cannot be read, or is too long.
    BadDescription(ClientId),
    /// A client has no description that could be used: it is bad, or another blob.
    LostDescription(ClientId),
    /// A reply that is kept for an unknown client: its key.
    StrayReply([u8; REPLY_KEY]),
    /// The block of replies of this key belongs to something else: see [`Finding::Shared`].
    LostReply([u8; REPLY_KEY]),
    /// A block of replies makes no sense.
    BadReplies(MetaBlock),
    /// A block of replies cannot be read, or makes no sense.
    LostReplies(MetaBlock),
    /// A setting makes no sense.
    BadSetting(u32),
}
