//! A directory moves to another metadata server.

use mfs::{Stop, Txn};
use proto::mds::OpReply;
use types::{Fault, Ino, ShardId};

use crate::context::OpContext;

/// Moves `dir` with its names to the server of `to`. See [`proto::mds::Op::MoveDirectory`].
///
/// # Errors
/// `NotSupported`: no directory of this server can move.
pub fn move_to(
    _cx: &mut OpContext<'_>,
    _txn: &mut Txn<'_>,
    _dir: Ino,
    _to: ShardId,
) -> Result<OpReply, Stop> {
    Err(Fault::NotSupported.into())
}
