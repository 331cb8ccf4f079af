//! Data zones against their labels, and against what lies in them.
//!
//! Invariants:
//! - where all is sound each block of a zone has an owner: some run ends where the zone does, and
//!   none begins behind it. So the runs *bear out* a size, or they do not;
//! - what a label says the table is to say before anything is cut or freed by the table's word, but
//!   where the runs bear out what the table says and not what the label does: then nobody knows;
//! - nor does anybody where there is no label and the runs do not bear out what the table says;
//! - a zone never was if neither the table nor whoever runs this names it, though both name others,
//!   and the table none besides. Files and space for others together lie in a real one only.

use types::{PagBlock, PagId};

use super::plan::Fix;
use super::space::{Owner, Piece, Zones};
use super::{Check, ProblemKind, Subject};
use crate::format::space::PagRecord;

impl Check {
    /// Compares what the table says of a zone with its label, and with the runs in it.
    pub(super) fn compare_zone(&mut self, pag: PagId, record: &PagRecord, pieces: &[Piece]) {
        let table = record.blocks;
        match self.labels.get(pag) {
            Ok(zone) if (zone.uuid, zone.blocks) == (record.uuid, table) => {}
            Ok(zone) => {
                let label = zone.blocks;
                let detail = format!(
                    "table: {table} blocks, {}; label: {label} blocks, {}",
                    record.uuid, zone.uuid
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

    /// Is a zone without a record one that there never was, in which these pieces lie?
    pub(super) fn never_existed(&self, pag: PagId, table: &Zones, pieces: &[Piece]) -> bool {
        let named = |pag: &PagId| self.labels.has_device(*pag);
        let files = pieces.iter().filter(|piece| matches!(piece.owner(), Owner::File(_))).count();
        let mixed = files > 0 && files < pieces.len();
        !table.is_empty() && table.keys().all(named) && !named(&pag) && !mixed
    }
}

/// Do the runs in a zone, by what of it has an owner, say that it has so many blocks?
fn confirms_size(pieces: &[Piece], blocks: u64) -> bool {
    pieces.iter().any(|piece| piece.end() == blocks)
        && !pieces.iter().any(|piece| piece.start() == blocks && piece.len() > 0)
}
