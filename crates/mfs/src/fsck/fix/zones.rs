//! The table of data zones, from the labels of their devices.
//!
//! Invariants:
//! - a rebuilt table has every zone that the caller named and every zone in which something lies,
//!   or it is not built. With a part of the table a server would start, and meet segments in
//!   unknown zones;
//! - a line that differs from the label is set to the label before anything is cut or freed by it;
//! - a new line has what the label says and no counts: these are set when everything else is sound.

use types::{Fault, PagId};

use super::{Done, Fixer};
use crate::format::space::{PAG_VALUE, PagRecord, PagUse, pag_key};
use crate::mkfs::PagFormat;
use crate::trees::PAGS;
use crate::txn::Txn;
use engine::error::Stop;

impl Fixer {
    /// Rebuilds the table, if all labels can be read.
    pub(super) async fn rebuild_zones(&mut self) -> Done {
        match self.check.labels.all(&self.check.zones_met()) {
            Ok(zones) => {
                let lines: Vec<_> = zones.iter().map(line).collect();
                self.build_with(PAGS, true, "table of data zones", &lines).await
            }
            Err(missing_blobs) => {
                self.wanted.extend(missing_blobs);
                Ok(None)
            }
        }
    }

    /// Adds a missing zone, if its label can be read.
    pub(super) async fn add_zone(&mut self, id: PagId) -> Done {
        match self.check.labels.get(id) {
            Ok(zone) => {
                let (key, value) = line(&zone);
                let enter = |txn: &mut Txn<'_>| match txn.space().pag(id)? {
                    None => PAGS.insert(txn, &key, &value).map(drop),
                    Some(_) => Ok(()),
                };
                let done = self.change(enter).await?;
                Ok(done.then(|| format!("data zone {id} was entered, as its label says").into()))
            }
            Err(missing_blobs) => {
                self.wanted.push(missing_blobs);
                Ok(None)
            }
        }
    }

    /// Ends grants from a zone whose state is none.
    pub(super) async fn drain_zone(&mut self, pag: PagId) -> Done {
        let state = PagUse::Draining;
        let done = self.change(|txn| txn.space().set_pag_use(pag, state).map(drop)).await?;
        Ok(done.then(|| format!("data zone {pag} is {} now", state.name()).into()))
    }

    /// Sets a zone's line in the table to its label.
    pub(super) async fn set_zone(&mut self, said: &Result<PagFormat, String>) -> Done {
        match said {
            Ok(zone) => {
                let PagFormat { id, blocks, .. } = *zone;
                self.change_with_report(|txn| {
                    let record = txn.space().pag(id)?.ok_or(Stop::Fault(Fault::Stale))?;
                    let PagRecord { state, kind, free, freed, .. } = record;
                    let record = PagRecord { state, kind, ..PagRecord::new(zone, free, freed) };
                    PAGS.insert(txn, &pag_key(id), &record.encode())?;
                    Ok(format!("data zone {id} has {blocks} blocks, as its label says"))
                })
                .await
            }
            Err(why) => {
                self.wanted.push(why.clone());
                Ok(None)
            }
        }
    }
}

fn line(zone: &PagFormat) -> ([u8; 2], [u8; PAG_VALUE]) {
    (pag_key(zone.id), PagRecord::new(zone, 0, 0).encode())
}
