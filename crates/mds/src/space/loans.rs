//! Space that this server lends to others, and that they lend to it.
//!
//! Invariants:
//! - a loan is durable at the lender before the borrower hears of it. If the borrower has not
//!   entered it, it asks for the same loan again;
//! - a zone of another server is open here before blocks of it are granted, or counts as absent:
//!   evictions flush it, and look for locks there;
//! - the fencing epoch in the label of such a zone is the other server's. Nobody compares it with
//!   this one's, or raises it.

use mfs::{Cost, Feature, Loan, PagFormat, Stop, StoreError, Txn};
use proto::mds::{BORROWED_ZONE, PagInfo, PagRun};
use types::{Fault, ShardId, Transno};

use super::new_zone::Entering;
use super::{Space, zones};
use crate::config::PagPlace;
use crate::joint::LenderZone;

fn format_of(zone: &PagInfo, start: u64) -> PagFormat {
    let PagInfo { id, uuid, device, blocks, .. } = *zone;
    PagFormat { id, uuid, device, start, blocks }
}

/// What a lender answers: a zone, its first block on the device, and blocks there.
pub type Lent = (PagInfo, u64, Vec<PagRun>);

impl Space {
    /// Lends free blocks to another server. See [`proto::mds::Op::Lend`].
    ///
    /// # Errors
    /// `NoSpace`: nothing can be lent. `Invalid`: it is neither the last loan nor the next one.
    /// `Busy`: lent blocks go back just now (`goes_back`). Those of the store.
    pub async fn lend(
        &self,
        to: ShardId,
        (sequence, blocks): (u32, u64),
        goes_back: impl Fn() -> bool,
    ) -> Result<Lent, Fault> {
        let runtime = &self.runtime;
        let failed = |error: StoreError| {
            runtime.note_failure(&error, "lending space");
            error.fault()
        };
        // A server that cannot lend stays readable for older releases.
        let can = runtime.mfs.run(Cost::READ, |txn| txn.space().can_lend()).await;
        let has_lent = runtime.mfs.superblock().features.has(Feature::LENT_SPACE);
        if !has_lent && !can.map_err(failed)?.0 {
            return Err(Fault::NoSpace);
        }
        runtime.mfs.add_lent_space().await.map_err(failed)?;
        let lent = runtime.mfs.run(Cost::STEP, |txn| match goes_back() {
            true => Err(Fault::Busy.into()),
            false => txn.space().lend(to, sequence, blocks),
        });
        let lent = lent.await;
        if let Err(StoreError::Fault(Fault::Invalid)) = &lent {
            runtime.log(&format!(
                "the metadata server of shard {to} asks for loan {sequence}, which is neither the \
                 last one nor the next: one of the two has older metadata than the other. Run \
                 `redbud fsck` of all servers before anything is written"
            ));
        }
        let (loan, transno) = lent.map_err(failed)?;
        runtime.wait_durable(transno).await.map_err(failed)?;
        let PagFormat { id, uuid, device, start, blocks } = loan.zone;
        let runs: Vec<PagRun> =
            loan.runs.iter().map(|&(addr, len)| PagRun { pag: id, addr, len }).collect();
        let sum: u64 = runs.iter().map(|run| run.len).sum();
        runtime.log(&format!(
            "{sum} blocks of data zone {id} are lent to the metadata server of shard {to} \
             (loan {sequence})"
        ));
        let (kind, path) = (proto::mds::BLOCK_ZONE, self.path(id));
        Ok((PagInfo { id, uuid, device, blocks, kind, path }, start, runs))
    }

    /// The number of the next loan from a shard.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn next_loan(&self, from: ShardId) -> Result<u32, Fault> {
        let next = self.runtime.mfs.run(Cost::READ, |txn| txn.space().next_loan(from)).await;
        next.map(|(next, _)| next).map_err(|error| {
            self.runtime.note_failure(&error, "reading loans");
            error.fault()
        })
    }

    /// Enters what the server of a shard has lent: it can be granted from now on. Returns how many
    /// blocks that are.
    ///
    /// # Errors
    /// `Protocol`: the answer makes no sense. `Busy`: lent blocks go back just now (`goes_back`).
    /// Those of the store.
    pub async fn enter_loan(
        &self,
        from: ShardId,
        sequence: u32,
        (zone, start, runs): Lent,
        goes_back: impl Fn() -> bool,
    ) -> Result<u64, Fault> {
        let runtime = &self.runtime;
        if runs.iter().any(|run| run.pag != zone.id) {
            return Err(Fault::Protocol);
        }
        let runs = runs.into_iter().map(|run| (run.addr, run.len)).collect();
        let loan = Loan { zone: format_of(&zone, start), runs };
        let enter = |txn: &mut Txn<'_>| match goes_back() {
            true => Err(Fault::Busy.into()),
            false => txn.space().borrow(from, sequence, &loan),
        };
        self.enter_other(&zone, enter).await?;
        let sum = loan.runs.iter().map(|(_, len)| len).sum();
        runtime.log(&format!(
            "the metadata server of shard {from} has lent {sum} blocks of its data zone {} \
             (loan {sequence})",
            zone.id
        ));
        self.announce_return();
        Ok(sum)
    }

    /// A zone of which blocks may go to another server, as that needs to know it.
    pub fn lender_zone(&self, zone: &PagFormat) -> LenderZone {
        let PagFormat { id, uuid, device, start, blocks } = *zone;
        let (kind, path) = (proto::mds::BLOCK_ZONE, self.path(id));
        LenderZone { zone: PagInfo { id, uuid, device, blocks, kind, path }, start }
    }

    /// Enters zones of another server, of which blocks will come. One that is known, or is this
    /// server's own, stays as it is.
    ///
    /// # Errors
    /// `Invalid`: the number is another zone's. Those of the store.
    pub async fn enter_lenders(&self, zones: &[LenderZone]) -> Result<(), Fault> {
        self.runtime.mfs.add_lent_space().await.map_err(|error| self.not_taken(error))?;
        for LenderZone { zone, start } in zones {
            let is_known = |known: &PagInfo| (known.id, known.uuid) == (zone.id, zone.uuid);
            if !self.zones.borrow().iter().any(is_known) {
                let format = format_of(zone, *start);
                self.enter_other(zone, |txn| txn.space().enter_lender(&format)).await?;
            }
        }
        Ok(())
    }

    /// Makes a change that concerns a zone of another server, and announces the zone if it is new.
    async fn enter_other(
        &self,
        zone: &PagInfo,
        change: impl FnMut(&mut Txn<'_>) -> Result<(), Stop>,
    ) -> Result<(), Fault> {
        let runtime = &self.runtime;
        let PagInfo { id, uuid, device, blocks, .. } = *zone;
        runtime.mfs.add_lent_space().await.map_err(|error| self.not_taken(error))?;
        let is_unknown = || self.zones.borrow().iter().all(|known| known.id != id);
        let path = self.path_elsewhere(zone);
        let place = PagPlace { id, uuid, path: path.clone() };
        let found = if is_unknown() { Some(self.look_at(&place).await) } else { None };
        let entering = found.is_some().then(|| Entering::begin(self));
        let entered = runtime.mfs.run(Cost::STEP, change).await;
        let (_, transno) = entered.map_err(|error| self.not_taken(error))?;
        runtime.wait_durable(transno).await.map_err(|error| self.not_taken(error))?;
        if self.leaving().contains(&id) && self.is_in_service(id).await {
            self.changed(id, mfs::PagUse::InService, transno);
            self.placing.reset(id);
        }
        // Another request may have entered it meanwhile.
        let found = found.filter(|_| is_unknown());
        let is_new = found.is_some();
        if let Some(found) = found {
            let kind = BORROWED_ZONE;
            self.zones.borrow_mut().push(PagInfo { id, uuid, device, blocks, kind, path });
            self.states.borrow_mut().insert(id, (mfs::PagUse::InService, Transno::ZERO));
            self.devices.add_borrowed(vec![place], found);
        }
        drop(entering);
        if is_new {
            self.announce_zones();
        }
        Ok(())
    }

    fn not_taken(&self, error: StoreError) -> Fault {
        self.runtime.note_failure(&error, "entering space of another server");
        error.fault()
    }

    /// The path of a zone of another server on this host: that of the configuration, or the other
    /// server's.
    fn path_elsewhere(&self, zone: &PagInfo) -> String {
        let named = self.runtime.config.elsewhere.iter().find(|(id, _)| *id == zone.id);
        named.map_or_else(|| zone.path.clone(), |(_, path)| path.clone())
    }

    /// Opens the device of a zone; `None`: it does not answer.
    async fn look_at(&self, place: &PagPlace) -> Option<super::devices::Look> {
        let (runtime, places) = (self.runtime.clone(), vec![place.clone()]);
        let opened =
            self.runtime.env.spawn_join(async move { zones::open(&runtime, &places).await });
        let opened = self.runtime.env.timeout_awake(zones::LOOK_MAX, opened).await?;
        let found = opened.map(|(disk, found)| (disk, found.label.fencing_epoch));
        Some(found.map_err(|problem| problem.to_string()))
    }
}
