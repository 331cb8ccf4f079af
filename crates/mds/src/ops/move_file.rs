//! A file follows its directory to another metadata server.
//!
//! It keeps its number, and the other server gets its blocks or its object with it.
//!
//! Invariants:
//! - all clients have given up what they hold of the file, and none has it open: so nobody writes
//!   it, or has blocks of its former server for it. What they have written at object targets is
//!   durable there, and evicted clients are refused there;
//! - what a client looked up before counts for nothing, and it asks the new server;
//! - the name, which the other server has, leads to the same number before and after.

use mfs::{FileArrival, ObjectRecord, Stop, Txn};
use proto::mds::{Op, OpReply};
use proto::wire::{Bytes, Wire};
use types::{Fault, Ino, Name, Rights, ShardId};

use crate::context::{OpContext, applicable};
use crate::joint::{ArrivingFile, ArrivingObject, Ask, Part};
use crate::leases::NO_CLIENT;
use crate::ops::move_directory::BYTES_MAX;
use crate::recovery::kept_results::Outcome;
use crate::uncommitted::MetaItem;

/// Blocks that change with each segment: two of the tree of lent space, one of the segments.
const BLOCKS_OF_SEGMENT: usize = 3;

/// The names of a directory, the move of which costs as much as that of a file with so many
/// segments at worst.
pub fn as_names(segments: usize) -> usize {
    BLOCKS_OF_SEGMENT * segments + 1
}

/// Runs [`Op::MoveFile`].
///
/// # Errors
/// See there.
pub fn move_to(cx: &mut OpContext<'_>, txn: &mut Txn<'_>, op: &Op) -> Result<OpReply, Stop> {
    let &Op::MoveFile { ino, dir, ref name, shard } = op else {
        return Err(Fault::Unsupported.into());
    };
    let to = ShardId(shard);
    if let Some(answers) = &cx.joint {
        let it = match answers.part() {
            Some(Part::TakeFile { it }) => it.arrival(None),
            Some(Part::TakeObjectFile { it, object }) => it.arrival(Some(object)),
            _ => return Err(Fault::Protocol.into()),
        };
        txn.names().leave_file(&it, to)?;
        cx.server.learned.forget(ino);
        cx.effects.gone.push(ino);
        cx.effects.orphaned.push((ino, NO_CLIENT));
        cx.effects.changes.push(MetaItem::Attr(ino));
        cx.effects.outcome = Some(Outcome::Done);
        return Ok(OpReply::Moved { there: false });
    }
    let own = cx.server.runtime.shard;
    if to == own {
        cx.attr(txn, ino)?;
        cx.effects.outcome = Some(Outcome::Done);
        return Ok(OpReply::Moved { there: true });
    }
    // An evicted client may still write any file of this server.
    if !cx.server.locks.held(ino).is_empty() || cx.server.evictions.is_all_frozen() {
        return Err(Fault::WouldBlock.into());
    }
    let (it, zones) = txn.names().file_departure(ino, to)?;
    let open = if cx.waited.open_asked.contains(&ino) { Rights::OPEN } else { Rights::empty() };
    // Clients give up all rights, so the server knows size and times.
    cx.need_of_all(ino, (applicable(it.attr.kind) | Rights::DATA_P) - open);
    if cx.effects.missing {
        return Err(Fault::Busy.into());
    }
    // A client that has the file open has answered so, and keeps it open.
    if cx.server.leases.table().any_holder(ino, Rights::OPEN) {
        return Err(Fault::WouldBlock.into());
    }
    cx.learn(match &it.object {
        None => {
            let zones = zones.iter().map(|zone| cx.server.space.lender_zone(zone)).collect();
            let segments = it.segments.len() as u32;
            Ask::ReceiveFile { shard: to.0, zones, segments }
        }
        Some(record) => {
            let targets = cx.server.targets.named(&record.targets).ok_or(Fault::CrossDevice)?;
            Ask::ReceiveObject { shard: to.0, targets }
        }
    })?;
    cx.ready()?;
    // It is tried before the other server relies on it. Nothing of a plan is kept.
    txn.names().leave_file(&it, to)?;
    let object = it.object.clone().map(ArrivingObject::from);
    let it = ArrivingFile::of(it, own, (dir, name.clone()));
    let part = match object {
        Some(object) => Part::TakeObjectFile { it, object },
        None => Part::TakeFile { it },
    };
    if part.to_bytes().len() > BYTES_MAX {
        return Err(Fault::TooBig.into());
    }
    cx.plan(vec![(to, part)])
}

/// The other server's part: takes the file, which may lie in an object.
///
/// # Errors
/// `Busy`: what it has left here the last time is not freed yet. `Stale`, `NotFound`: the name is
/// not here any more. `NoSpace`.
pub fn take(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    it: &ArrivingFile,
    object: Option<&ArrivingObject>,
) -> Result<(), Stop> {
    let ino = it.attr.ino;
    cx.need(ino, Rights::empty());
    cx.need(it.dir, Rights::empty());
    cx.ready()?;
    txn.names().arrive_file((it.dir, &it.name), ShardId(it.from), &it.arrival(object))?;
    cx.server.learned.forget(ino);
    cx.effects.came.push(ino);
    cx.effects.changes.extend([MetaItem::Attr(ino), MetaItem::Name(it.dir, it.name.clone())]);
    Ok(())
}

impl ArrivingFile {
    fn of(it: FileArrival, from: ShardId, (dir, name): (Ino, Name)) -> ArrivingFile {
        let bytes = |(name, value)| (Bytes(name), Bytes(value));
        ArrivingFile {
            from: from.0,
            dir,
            name,
            attr: it.attr,
            xattrs: it.xattrs.into_iter().map(bytes).collect(),
            content: Bytes(it.content),
            segments: it.segments,
        }
    }

    fn arrival(&self, object: Option<&ArrivingObject>) -> FileArrival {
        let bytes = |(name, value): &(Bytes, Bytes)| (name.0.clone(), value.0.clone());
        FileArrival {
            attr: self.attr,
            xattrs: self.xattrs.iter().map(bytes).collect(),
            content: self.content.0.clone(),
            segments: self.segments.clone(),
            object: object.map(ArrivingObject::record),
        }
    }
}

impl From<ObjectRecord> for ArrivingObject {
    fn from(record: ObjectRecord) -> ArrivingObject {
        let ObjectRecord { object, part, targets } = record;
        ArrivingObject { object, part, targets }
    }
}

impl ArrivingObject {
    fn record(&self) -> ObjectRecord {
        let ArrivingObject { object, part, targets } = self.clone();
        ObjectRecord { object, part, targets }
    }
}
