//! The placers of all zones: who may use them, and what they get to know.
//!
//! Invariants:
//! - requests for places are served one after another, in the order in which they arrive: the
//!   holder of the turn alone chooses places and has the store take them;
//! - the store decides: a placer whose choice the store refuses starts anew, and so does that of a
//!   zone whose state has changed. What it knew was a hint;
//! - a placer learns of every grant to other clients, so its choices are rarely refused.

use std::cell::RefCell;
use std::collections::BTreeMap;

use env::sync::{AsyncMutex, Permit};
use mfs::{Cost, StoreError};
use proto::mds::PagRun;
use types::{ClientId, Ino, PagId};

use super::Space;
use super::placer::{Asked, Placer};

/// Free runs that a placer gets to know at a time.
const LEARN_RUNS: usize = 256;

/// See the module.
#[derive(Default)]
pub struct Placing {
    turn: AsyncMutex,
    zones: RefCell<BTreeMap<PagId, Placer>>,
}

/// Places that a placer has chosen, for the store to take.
#[derive(Debug)]
pub struct Chosen {
    /// The zone.
    pub zone: PagId,
    /// The places, in the order of the pieces; none if the placer knows no free block.
    pub runs: Vec<PagRun>,
    /// Where grants to others begin to look for free blocks from now on.
    pub end: u64,
}

impl Placing {
    /// Waits until earlier requests have their places.
    pub async fn turn(&self) -> Permit {
        self.turn.lock().await
    }

    /// The zone's placer starts anew.
    pub fn reset(&self, zone: PagId) {
        self.zones.borrow_mut().remove(&zone);
    }

    /// The store did not take these places.
    pub fn give_back(&self, chosen: Chosen) {
        if let Some(placer) = self.zones.borrow_mut().get_mut(&chosen.zone) {
            placer.give_back(chosen.runs);
        }
    }

    /// A client got these blocks for its pool, and will choose places among them itself.
    pub fn granted(&self, runs: &[PagRun]) {
        let mut zones = self.zones.borrow_mut();
        for run in runs {
            if zones.get_mut(&run.pag).is_some_and(|placer| !placer.granted(run)) {
                zones.remove(&run.pag);
            }
        }
    }

    /// The client does not extend the file any more, or not through `handle`.
    pub fn close(&self, client: ClientId, ino: Ino, handle: Option<u64>) {
        for placer in self.zones.borrow_mut().values_mut() {
            placer.close(client, ino, handle);
        }
    }

    /// The client's session has ended.
    pub fn end_client(&self, client: ClientId) {
        self.zones.borrow_mut().values_mut().for_each(|placer| placer.end_client(client));
    }

    /// Blocks of a zone in windows.
    pub fn in_windows(&self, zone: PagId) -> u64 {
        self.zones.borrow().get(&zone).map_or(0, Placer::held)
    }
}

impl Space {
    /// Chooses places for pieces of a file, at most `most` runs of one zone. To be called by the
    /// holder of the turn.
    ///
    /// # Errors
    /// `NoSpace`: no zone that the client can reach has a free block; the store's.
    pub async fn choose_places(
        &self,
        asked: &Asked<'_>,
        (hint, unreachable): (Option<PagId>, &[PagId]),
        most: usize,
    ) -> Result<Chosen, StoreError> {
        let (mfs, blocks) = (&self.runtime.mfs, asked.blocks());
        let (zone, cursor) = mfs
            .run(Cost::READ, |txn| {
                let zone = txn.space().zone_for(asked.client, hint, blocks, unreachable)?;
                Ok((zone, txn.space().cursor(zone)))
            })
            .await?
            .0;
        let zones = &self.placing.zones;
        let wants = |zones: &mut BTreeMap<PagId, Placer>| {
            zones.entry(zone).or_insert_with(|| Placer::new(cursor)).wants(blocks)
        };
        loop {
            let Some(range) = wants(&mut zones.borrow_mut()) else { break };
            let found =
                mfs.run(Cost::READ, |txn| txn.space().free_runs(zone, range, LEARN_RUNS)).await?;
            match zones.borrow_mut().get_mut(&zone) {
                // It may have started anew meanwhile.
                Some(placer) if placer.wants(blocks) == Some(range) => {
                    placer.learn(&found.0, LEARN_RUNS);
                }
                _ => {}
            }
        }
        let mut zones = zones.borrow_mut();
        let Some(placer) = zones.get_mut(&zone) else {
            return Ok(Chosen { zone, runs: Vec::new(), end: cursor });
        };
        let runs = placer.place(asked, most);
        Ok(Chosen { zone, runs, end: placer.end() })
    }
}
