//! Object files in the sweeps.

use types::{FileKind, Ino, Name, ObjectId, PagId, ShardId, Uuid};

use super::new;
use crate::format::object::ObjectRecord;
use crate::txn::Txn;
use engine::error::Stop;
use engine::format::features::Feature;

/// The target of all object files.
pub const TARGET: PagId = PagId(7);

/// Makes the `nth` object file of the root with units of so many blocks, or removes it. If that is
/// an even number of blocks, its object is one of another shard.
pub fn toggle(txn: &mut Txn<'_>, nth: u64, part: u64) -> Result<(), Stop> {
    let name = Name::new(format!("object{nth}").as_bytes()).unwrap();
    if txn.space().pags()?.iter().all(|pag| pag.id != TARGET) {
        txn.space().add_target(TARGET, Uuid([7; 16]), 900)?;
    }
    if txn.names().lookup(Ino::ROOT, &name)?.is_some() {
        return txn.names().free_with_name(Ino::ROOT, &name).map(drop);
    }
    let ino = txn.names().create(Ino::ROOT, &name, &new(FileKind::Regular), None)?;
    let own = ObjectId(txn.space().take_objects()?.start);
    let far = txn.has_feature(Feature::FOLLOWED_OBJECTS) && part.is_multiple_of(2);
    let object = if far { ObjectId::of(ShardId(9), own.number()) } else { own };
    let record = ObjectRecord { object, part, targets: vec![TARGET] };
    txn.layouts().set_object(ino, &record)
}
