//! Object files and their targets: records, numbers, and what targets have still to do.
//!
//! Invariant: nothing is destroyed, or said to be, for which a file is there. What other shards say
//! is compared elsewhere ([`super::across()`]).

use std::collections::BTreeMap;

use types::{Ino, ObjectId, PagBlock, PagId};

use super::plan::Fix;
use super::space::{Piece, Zones};
use super::{Check, ProblemKind, Subject};
use crate::format::slot::Slot;
use crate::format::space::{PagRecord, ZoneKind, decode_object_key};
use crate::trees::{DOOMED, NEXT_OBJECT, OWED_FENCES};
use engine::error::StoreError;
use engine::format::features::Feature;

/// What the files say of objects.
#[derive(Default)]
pub(super) struct Objects {
    /// For each zone that a record names: the first file, and how many there are.
    uses: BTreeMap<PagId, (Ino, u64)>,
    /// The highest number of the shard.
    highest: u64,
}

impl Check {
    /// Notes the object record of a file, if it has one.
    pub(super) fn object_record(&mut self, slot: &Slot) {
        let Some(record) = slot.object() else { return };
        if !self.features.has(Feature::OBJECT_FILES) {
            self.features = self.features.with(Feature::OBJECT_FILES);
            self.found(ProblemKind::MissingFeature, Subject::Whole, "object-files");
            self.plan.add(Fix::AddFeature(Feature::OBJECT_FILES));
        }
        if record.object.shard() != self.shard && !self.takes_objects() {
            let place = format_args!("object {} of a file", record.object);
            self.foreign(Subject::Inode(slot.ino()), record.object.shard(), place);
        }
        let ino = slot.ino();
        self.report.shard.objects.entry(record.object).or_insert(ino);
        self.note_number(record.object);
        let objects = &mut self.objects;
        for target in record.targets {
            objects.uses.entry(target).or_insert((ino, 0)).1 += 1;
        }
    }

    /// May objects of other shards be here? Finds the feature for that missing where inodes have
    /// moved.
    fn takes_objects(&mut self) -> bool {
        let missing = Feature::MOVED_DIRECTORIES;
        if !self.features.has(Feature::FOLLOWED_OBJECTS) && self.features.has(missing) {
            self.features = self.features.with(Feature::FOLLOWED_OBJECTS);
            self.found(ProblemKind::MissingFeature, Subject::Whole, "followed-objects");
            self.plan.add(Fix::AddFeature(Feature::FOLLOWED_OBJECTS));
        }
        self.features.has(Feature::FOLLOWED_OBJECTS)
    }

    fn note_number(&mut self, object: ObjectId) {
        if object.shard() == self.shard {
            self.objects.highest = self.objects.highest.max(object.number());
        }
    }

    /// Checks the record of a target in the table; `pieces` of it are none of its.
    pub(super) fn target_zone(&mut self, pag: PagId, record: &PagRecord, pieces: &[Piece]) {
        for piece in pieces {
            let detail = format!("{} blocks of {:?} in a target", piece.len(), piece.owner());
            self.found(ProblemKind::OutsideDataBlock, piece.subject(), detail);
            self.plan.add(Fix::Outside(*piece, piece.start(), piece.end()));
        }
        self.zone_state(pag, record);
        self.zone_counts(pag, record, (0, 0));
    }

    /// Finds zones that files lie on, and that are no targets.
    pub(super) fn missing_targets(&mut self, pags: &Zones) {
        let is_target =
            |id: &PagId| pags.get(id).is_some_and(|record| record.kind == ZoneKind::Target);
        let uses = std::mem::take(&mut self.objects.uses);
        for (id, (ino, files)) in uses.into_iter().filter(|(id, _)| !is_target(id)) {
            let detail = format!("zone {id} is none; {files} files in all");
            self.found(ProblemKind::MissingTarget, Subject::Inode(ino), detail);
        }
    }

    /// Checks what targets have still to do, and the numbers of objects.
    pub(super) async fn doomed(&mut self, pags: &Zones) -> Result<(), StoreError> {
        let is_target =
            |id: PagId| pags.get(&id).is_some_and(|record| record.kind == ZoneKind::Target);
        self.walk((DOOMED, "doomed objects"), |check, key, _| {
            let (target, object) = decode_object_key(key);
            if object.0 == 0 {
                return;
            }
            check.note_number(object);
            let followed = check.features.has(Feature::FOLLOWED_OBJECTS);
            let what = match check.report.shard.objects.contains_key(&object) {
                true => "it is a file's",
                false if object.shard() != check.shard && !followed => "it is of another shard",
                false if !pags.is_empty() && !is_target(target) => "the zone is no target",
                false => {
                    check.report.shard.doomed.insert(object);
                    return;
                }
            };
            let detail = format!("object {object}: {what}");
            check.found(ProblemKind::DoomedObject, Subject::Data(target, PagBlock(0)), detail);
            check.plan.add(Fix::DropDoomed(*key));
        })
        .await?;
        // A client that was removed may still have to be refused: nothing is to be said of these.
        self.walk((OWED_FENCES, "owed fences"), |_, _, _| {}).await?;
        self.intents().await?;
        let next = self.read(|txn| txn.root(NEXT_OBJECT)).await?;
        self.report.shard.next_object = next.unwrap_or(0);
        let highest = self.objects.highest;
        if next.is_some_and(|next| highest >= next) && highest > 0 {
            let detail = format!("object {highest} is there");
            self.found(ProblemKind::BadCounter, Subject::Whole, detail);
            self.plan.add(Fix::NextObject(highest + 1));
        }
        Ok(())
    }
}
