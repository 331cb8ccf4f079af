//! Data zones against their labels, and against what lies in them.
//!
//! Invariants:
//! - in a sound zone each block has an owner: some run ends where the zone does, and none begins
//!   behind it. So the runs *confirm* a size or they do not;
//! - the table is set to the label before anything is cut or freed by the table. Exception: the
//!   runs confirm the table and not the label; then the size is unknown;
//! - the size is also unknown where there is no label and the runs do not confirm the table;
//! - an object target has no label here, and nothing in it has an owner here: targets are neither
//!   compared nor named;
//! - a zone of another shard, which has lent blocks of it, is not compared with its label: that
//!   shard does it;
//! - where space may have been lent, no zone counts as one that never existed;
//! - a zone never existed if neither the table nor the caller names it, and the caller names every
//!   zone of the table, which has some. A zone with both files and other space did exist.

use types::{PagBlock, PagId};

use super::plan::Fix;
use super::space::{Owner, Piece, Zones};
use super::{Check, ProblemKind, Subject};
use crate::format::space::{PagRecord, ZoneKind};

impl Check {
    /// Compares a zone's line in the table with its label, and with the runs in it.
    pub(super) fn compare_zone(&mut self, pag: PagId, record: &PagRecord, pieces: &[Piece]) {
        let table = record.blocks;
        match self.labels.get(pag) {
            Ok(zone) if zone == record.zone(pag) => {}
            Ok(zone) => {
                let label = zone.blocks;
                let detail = format!(
                    "table: {table} blocks from {} of device {}, {}; label: {label} blocks from {} of device {}, {}",
                    record.start, record.device, record.uuid, zone.start, zone.device, zone.uuid
                );
                self.found(ProblemKind::WrongZone, Subject::Data(pag, PagBlock(0)), detail);
                let doubtful =
                    table != label && confirms_size(pieces, table) && !confirms_size(pieces, label);
                let unknown = || {
                    format!(
                        "data zone {pag}: a label that says what is so: that on its device says {label} blocks, the table and \
                         what lies in the zone {table}"
                    )
                };
                let said = if doubtful { Err(unknown()) } else { Ok(zone) };
                self.plan.add(Fix::SetZone(said));
            }
            Err(_) if confirms_size(pieces, table) => {}
            Err(why) => {
                let why = format!(
                    "{why}; what lies in the zone does not end at its {table} blocks, as the table says"
                );
                self.plan.add(Fix::SetZone(Err(why)));
            }
        }
    }

    /// Did a zone without a record, in which these pieces lie, never exist?
    pub(super) fn never_existed(&self, pag: PagId, table: &Zones, pieces: &[Piece]) -> bool {
        if self.may_have_lent {
            return false;
        }
        let named = |pag: &PagId| self.labels.has_device(*pag);
        let files = pieces.iter().filter(|piece| matches!(piece.owner(), Owner::File(_))).count();
        let mixed = files > 0 && files < pieces.len();
        let blocks = |(_, record): &(&PagId, &PagRecord)| record.kind == ZoneKind::Blocks;
        let mut devices = table.iter().filter(blocks).map(|(pag, _)| pag).peekable();
        devices.peek().is_some() && devices.all(named) && !named(&pag) && !mixed
    }
}

/// Do the runs in a zone confirm that it has `blocks` blocks?
fn confirms_size(pieces: &[Piece], blocks: u64) -> bool {
    pieces.iter().any(|piece| piece.end() == blocks)
        && !pieces.iter().any(|piece| piece.start() == blocks && piece.len() > 0)
}
