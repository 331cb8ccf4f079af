//! The metadata server as the peer of a session.

use crate::mds::{
    COMMITTED_PUSHES, METADATA_SERVER, Mds, NAMED_CALLERS, Op, OpReply, PagInfo, Push, PushReply,
    SHARDS, VERSION, VERSION_MIN, ZONE_PUSHES,
};
use crate::message::{Notice, Peer, Versions};
use crate::operation::Repeat;

impl Peer for Mds {
    const NAME: &'static str = "metadata server";
    const ROLE: u8 = METADATA_SERVER;
    const VERSIONS: Versions = Versions { min: VERSION_MIN, max: VERSION };
    const FEATURES: u64 = COMMITTED_PUSHES | NAMED_CALLERS | ZONE_PUSHES | SHARDS;

    type Op = Op;
    type OpReply = OpReply;
    type Push = Push;
    type PushReply = PushReply;
    type Offer = Vec<PagInfo>;

    fn renew() -> Op {
        Op::Renew {}
    }

    fn sync() -> Op {
        Op::Sync {}
    }

    fn goodbye() -> Op {
        Op::Goodbye {}
    }

    fn recovered() -> Op {
        Op::ReclaimDone {}
    }

    fn outlives_session(op: &Op) -> bool {
        op.spec().repeat == Repeat::Always
    }

    fn may_change(op: &Op) -> bool {
        op.spec().is_change()
    }

    fn carried_bytes(op: &Op) -> usize {
        op.carried_bytes()
    }

    fn notice(push: Push) -> Notice<Mds> {
        match push {
            Push::Committed { transno } => Notice::Committed(transno),
            Push::Evicted { reason } => Notice::Evicted(reason),
            push => Notice::Other(push),
        }
    }
}
