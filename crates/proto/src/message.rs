//! The messages of a session, whatever its server does: greeting, requests, replies, pushes.
//!
//! A [`Peer`] says which operations, results and pushes they carry. The metadata server's are in
//! [`crate::mds`].
//!
//! Invariants:
//! - the fields of [`Hello`] and [`Refused`] are in this order in every version, and new ones come
//!   last: so each side can refuse a peer of any other version with a text that it can read;
//! - a request begins with its slot and its sequence in every version.

use std::fmt::Debug;

use types::{ClientId, Epoch, Fault, ServerId, Timestamp, Transno, Uuid};

use crate::content::Content;
use crate::wire::{Appended, Bytes, ThenZero, Wire};
use crate::{wire_enum, wire_struct};

/// What a message may carry.
pub trait Part: Wire + Clone + Eq + Debug + 'static {}

impl<T: Wire + Clone + Eq + Debug + 'static> Part for T {}

/// A kind of server, and what a session needs to know of its operations.
pub trait Peer: Copy + Eq + Debug + 'static {
    /// What it is called in log lines, after "the".
    const NAME: &'static str;
    /// Its role, as in [`Welcome::role`].
    const ROLE: u8;
    /// The versions of the protocol that this code speaks.
    const VERSIONS: Versions;
    /// The optional abilities that this code has, a bit each.
    const FEATURES: u64;

    /// An operation.
    type Op: Part;
    /// The result of an operation.
    type OpReply: Part;
    /// What the server sends unasked.
    type Push: Part;
    /// The client's answer to such a push.
    type PushReply: Part;
    /// What the server offers beside the session.
    type Offer: Part;

    /// The operation that renews the lease; the server answers it at once.
    fn renew() -> Self::Op;
    /// The operation that is answered when every earlier one of the session is durable.
    fn sync() -> Self::Op;
    /// The operation that ends the session.
    fn goodbye() -> Self::Op;
    /// The operation that ends a recovery.
    fn recovered() -> Self::Op;
    /// May the operation be executed again in a later session, in which nothing is held any more?
    fn outlives_session(op: &Self::Op) -> bool;
    /// May the operation change something, so that its client keeps it until it is durable?
    fn may_change(op: &Self::Op) -> bool;
    /// Bytes of an operation whose size its caller decides.
    fn carried_bytes(op: &Self::Op) -> usize;
    /// The largest content that goes behind a message, in bytes; 0: none does.
    const BEHIND_MAX: usize = 0;
    /// The content of an operation that carries the checksums of its bytes.
    fn content(_op: &Self::Op) -> Option<&Content> {
        None
    }
    /// The same of a result.
    fn content_of_reply(_reply: &Self::OpReply) -> Option<&Content> {
        None
    }
    /// What a push means to the session.
    fn notice(push: Self::Push) -> Notice<Self>;
}

/// What a push means to the session that receives it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice<P: Peer> {
    /// Everything up to this number is durable.
    Committed(Transno),
    /// The session is over.
    Evicted(String),
    /// The session's user decides.
    Other(P::Push),
}

/// A range of versions, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Versions {
    /// The lowest.
    pub min: u32,
    /// The highest.
    pub max: u32,
}

impl Versions {
    /// One version.
    pub const fn only(version: u32) -> Versions {
        Versions { min: version, max: version }
    }

    /// The highest version in both ranges.
    pub fn agree(self, other: Versions) -> Option<u32> {
        let highest = self.max.min(other.max);
        (highest >= self.min.max(other.min)).then_some(highest)
    }

    /// Is `version` one of them?
    pub fn contains(self, version: u32) -> bool {
        (self.min..=self.max).contains(&version)
    }
}

impl std::fmt::Display for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.min == self.max {
            true => write!(f, "version {}", self.min),
            false => write!(f, "versions {} to {}", self.min, self.max),
        }
    }
}

/// [`Hello::role`]: a client.
pub const CLIENT: u8 = 0;
/// [`Hello::role`]: an administrator's tool (status and similar; no leases).
pub const ADMINISTRATOR: u8 = 1;
/// [`Welcome::role`]: a metadata server.
pub const METADATA_SERVER: u8 = 2;
/// [`Welcome::role`]: an object storage target.
pub const OBJECT_TARGET: u8 = 3;

/// First byte of [`Hello::auth`]: no authentication; no data follows.
pub const AUTH_NONE: u8 = 0;

wire_struct! {
    /// The server that a client expects to meet; older clients do not say.
    pub struct Expected {
        /// Its number; [`ServerId::ANY`] if the client does not know.
        pub server: ServerId,
        /// Its role.
        pub role: u8,
        /// UUID of its file system; zero if the client has not met it yet.
        pub fs_uuid: Uuid,
        /// Version of the cluster map that the client knows; 0: none.
        pub map: u64,
    }

    /// The first frame of a connection.
    pub struct Hello {
        /// Lowest version spoken.
        pub version_min: u32,
        /// Highest version spoken.
        pub version_max: u32,
        /// Optional abilities that the client has and wants, a bit each.
        pub features: u64,
        /// Name of the file system wanted.
        pub fs_name: String,
        /// [`CLIENT`] or [`ADMINISTRATOR`].
        pub role: u8,
        /// The client's number, 0 at its first hello.
        pub client: ClientId,
        /// Random number of this run of the client. The server binds the client's number to it, so
        /// that a restarted process cannot take the place of a living one.
        pub nonce: u64,
        /// Highest transaction number of any reply that the client has.
        pub seen: Transno,
        /// For log lines: "host, pid, mount point".
        pub description: String,
        /// Authentication method ([`AUTH_NONE`]) and its data; empty is none, too.
        pub auth: Bytes,
        /// Requested lease in milliseconds; 0: the server's default.
        pub lease_ms: u32,
        /// The server that the client expects.
        pub expected: Appended<Expected>,
    }
}

impl Hello {
    /// The greeting of a `role` that speaks what this code speaks. It has no number yet, and takes
    /// any server of its kind.
    pub fn new<P: Peer>(role: u8, fs_name: &str, description: &str) -> Hello {
        Hello {
            version_min: P::VERSIONS.min,
            version_max: P::VERSIONS.max,
            features: P::FEATURES,
            fs_name: fs_name.to_owned(),
            role,
            client: ClientId(0),
            nonce: 0,
            seen: Transno::ZERO,
            description: description.to_owned(),
            auth: Bytes::default(),
            lease_ms: 0,
            expected: Appended(Some(Expected {
                server: ServerId::ANY,
                role: P::ROLE,
                fs_uuid: Uuid::default(),
                map: 0,
            })),
        }
    }

    /// The versions that the client speaks.
    pub fn versions(&self) -> Versions {
        Versions { min: self.version_min, max: self.version_max }
    }
}

wire_struct! {
    /// The server accepts the client: the session exists.
    pub struct Welcome<P: Peer> {
        /// Version agreed: the highest that both speak.
        pub version: u32,
        /// Abilities agreed: those that both have.
        pub features: u64,
        /// The server's number.
        pub server: ServerId,
        /// Its role: [`METADATA_SERVER`] or [`OBJECT_TARGET`].
        pub role: u8,
        /// Version of the cluster map that the server has; 0: none.
        pub map: u64,
        /// The file system.
        pub fs_uuid: Uuid,
        /// The client's number.
        pub client: ClientId,
        /// The server's epoch.
        pub epoch: Epoch,
        /// [`NEW`], [`RESUMED`] or [`RECOVERED`].
        pub state: u8,
        /// With `state` [`RECOVERED`]: operations of the client up to this number are durable and
        /// done; later ones must be replayed. With [`NEW`], for a client that was evicted: later
        /// ones that an earlier server had answered are lost.
        pub survived: Transno,
        /// Lease in milliseconds.
        pub lease_ms: u32,
        /// Ordinary slots.
        pub slots: u16,
        /// What the server offers beside the session.
        pub offer: P::Offer,
        /// The server's clock.
        pub time: Timestamp,
    }

    /// No session; the text names the cause and the remedy.
    pub struct Refused {
        /// Why, as a fault (`Evicted`, `Unsupported`, `NotFound` for a wrong name, `Overloaded` …).
        pub fault: Fault,
        /// The same as text.
        pub text: String,
    }

    /// The user on whose behalf an operation runs. The kernel has checked permissions.
    pub struct Principal {
        /// User.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Supplementary groups, where the operation needs them.
        pub groups: Vec<u32>,
    }

    /// A compound request.
    pub struct Request<P: Peer> {
        /// Slot; below [`Welcome::slots`] ordinary, above reserved for requests that complete a
        /// recall.
        pub slot: u16,
        /// One more than the slot's last; an equal number marks a resend.
        pub seq: u32,
        /// The user on whose behalf it runs.
        pub principal: Principal,
        /// The server replies only when it is durable.
        pub sync: bool as ThenZero,
        /// After a restart of the server: the transaction number and the results of the first
        /// execution. The server repeats them or refuses.
        pub replay: Option<Replay<P>>,
        /// The operations, at most `COMPOUND_OPS_MAX`.
        pub ops: Vec<P::Op>,
    }

    /// The reply that a replayed request got.
    pub struct Replay<P: Peer> {
        /// Its number.
        pub transno: Transno,
        /// Its results.
        pub results: Vec<Result<P::OpReply, Fault>>,
    }

    /// The answer to a request.
    pub struct Reply<P: Peer> {
        /// As in the request.
        pub slot: u16,
        /// As in the request.
        pub seq: u32,
        /// Number of the last transaction of the compound, zero if it changed nothing.
        pub transno: Transno,
        /// Everything at or below it is durable.
        pub last_committed: Transno,
        /// Microseconds for which the request waited for other clients: for rights that they gave
        /// back, in gates, for locks, for space, and during grace.
        pub waited: u32,
        /// Requests that the server had to work on when it answered, without those that waited for
        /// other clients.
        pub load: u16,
        /// One for each operation that ran; the last may be a fault.
        pub results: Vec<Result<P::OpReply, Fault>>,
    }
}

/// [`Welcome::state`]: a new session; the client holds nothing.
pub const NEW: u8 = 0;
/// [`Welcome::state`]: the same run of the server still has the session; the client resends
/// unanswered requests, and the server repeats its recalls.
pub const RESUMED: u8 = 1;
/// [`Welcome::state`]: the server restarted: reclaim, replay, [`Peer::recovered`], then resend
/// unanswered requests.
pub const RECOVERED: u8 = 2;

wire_enum! {
    /// A frame's payload.
    pub enum Message<P: Peer> {
        /// Client, first.
        Hello = 1 { hello: Hello, },
        /// Server, first.
        Welcome = 2 { welcome: Welcome<P>, },
        /// Server, first and last.
        Refused = 3 { refused: Refused, },
        /// Client.
        Request = 4 { request: Request<P>, },
        /// Server.
        Reply = 5 { reply: Reply<P>, },
        /// Server.
        Push = 6 { push: P::Push, },
        /// Client.
        PushReply = 7 { reply: P::PushReply, },
    }
}
