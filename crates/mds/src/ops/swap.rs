//! A file and a spare exchange their layouts: the last step of a move between pools.
//!
//! The client has copied the content of the file to the spare, under rights that no writer has had
//! in between, and the copy is stable. What a crash leaves is in `client/src/ops/migrating.rs`.
//!
//! Invariants:
//! - the client holds `DATA_X` of both, so nobody else knows a layout of either;
//! - no evicted client may still write either: its blocks would lose what keeps them frozen;
//! - size, times, names and attributes stay; the placement goes with the layout.

use mfs::{Stop, Txn};
use proto::mds::OpReply;
use proto::placement::ATTRIBUTE;
use types::{Fault, FileKind, Ino, Rights};

use crate::context::OpContext;
use crate::recovery::kept_results::Outcome;
use crate::uncommitted::MetaItem;

/// Exchanges the layouts of `ino` and `spare`, an inode without a name.
pub fn swap(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    ino: Ino,
    spare: Ino,
) -> Result<OpReply, Stop> {
    let (file, other) = (cx.attr(txn, ino)?, cx.attr(txn, spare)?);
    let regular = |kind| kind == FileKind::Regular;
    if !regular(file.kind) || !regular(other.kind) || other.nlink > 0 {
        return Err(Fault::Invalid.into());
    }
    if !cx.replay {
        let evictions = &cx.server.evictions;
        for one in [ino, spare] {
            if !cx.server.leases.table().rights(cx.client, one).contains(Rights::DATA_X) {
                return Err(Fault::NotHeld.into());
            }
            if evictions.is_all_frozen() || txn.space().is_frozen(one)? {
                return Err(Fault::Busy.into());
            }
        }
    }
    txn.layouts().swap(ino, spare)?;
    let placements = (txn.names().xattr(ino, ATTRIBUTE)?, txn.names().xattr(spare, ATTRIBUTE)?);
    for (one, placement) in [(ino, placements.1), (spare, placements.0)] {
        match placement {
            Some(placement) => txn.names().set_xattr(one, ATTRIBUTE, &placement)?,
            None => _ = txn.names().remove_xattr(one, ATTRIBUTE)?,
        }
        let mut attr = cx.attr(txn, one)?;
        attr.version += 1;
        txn.names().set_attr(&attr)?;
        cx.effects.changes.extend([MetaItem::Attr(one), MetaItem::Data(one)]);
        cx.effects.reads.extend([MetaItem::Attr(one), MetaItem::Data(one)]);
    }
    let zero = cx.server.leases.is_tail_zero(spare, other.size);
    cx.effects.tail = Some((ino, file.size, zero));
    cx.effects.outcome = Some(Outcome::Done);
    let attr = cx.attr(txn, ino)?;
    Ok(OpReply::Attr { leased: cx.leased(attr) })
}
