//! What changes objects: writes, punches, destructions (paper 001, section 5).
//!
//! Invariants:
//! - a request is one transaction, or several of which the last one keeps the reply: then each
//!   leaves less to do, and repeating the request does the rest;
//! - a write maps fresh blocks only. So before its record is durable the old bytes are still there,
//!   and the group of its record is written when the new ones are stable;
//! - a write that fails for want of room changes nothing.

use std::rc::Rc;

use engine::cost::{Cost, Reserve};
use engine::error::{Stop, StoreError};
use engine::txn::Txn;
use env::IoBuf;
use types::limits::BLOCK;
use types::{ClientId, Fault, ObjectId, Transno};

use super::format::{BLOCKS_MAX, FENCED, FREE, OBJECTS, Run, Segment, object_key};
use super::space::{HeldBy, give, joined, take};
use super::{Asked, ObjectStore, Room, map};

/// A write that replaces nothing: nodes of five trees, a reply, a bitmap block.
const WRITE: Cost = Cost { log_bytes: 48 << 10, dirty: 24, reserve: Reserve::None };
/// Each run that it replaces may dirty another node of the tree of free runs.
const REPLACED_BYTES: u32 = 4 << 10;
/// A step of a punch.
const PUNCH: Cost = Cost { log_bytes: 512 << 10, dirty: 160, reserve: Reserve::ToFree };
/// A punch of few segments.
const PUNCH_FEW: Cost = Cost { log_bytes: 96 << 10, dirty: 48, reserve: Reserve::ToFree };

/// A write, as its transaction needs it.
struct Fresh<'a> {
    asked: Asked,
    object: ObjectId,
    block: u64,
    len: u64,
    sums: &'a [u32],
    /// Its number in flight.
    number: u64,
    room: Room,
}

impl ObjectStore {
    /// Writes whole blocks (001, section 5, steps 3 to 6): when it returns, the device has the
    /// data, and the transaction commits behind it. `sums`: the CRC32C of each block, checked by
    /// the caller. Once it is polled, the write takes place even if its future is dropped, or not
    /// at all. `room` says what it may take.
    ///
    /// # Errors
    /// `NoSpace`; `Invalid` for anything but whole blocks with a sum each; `Io` if the device
    /// fails, which stops the store.
    pub async fn write(
        &self,
        asked: Asked,
        (object, block): (ObjectId, u64),
        data: IoBuf,
        sums: &[u32],
        room: Room,
    ) -> Result<Transno, Fault> {
        let len = (data.len() / BLOCK) as u64;
        let whole = len > 0 && data.len().is_multiple_of(BLOCK) && sums.len() as u64 == len;
        if !whole || block.checked_add(len).is_none_or(|end| end > BLOCKS_MAX) {
            return Err(Fault::Invalid);
        }
        let number = self.flight.number();
        let write = Fresh { asked, object, block, len, sums, number, room };
        let (runs, number_of_txn) = self.map_fresh(&write).await?;
        // Nothing waits between the transaction and this: the write is registered and begins.
        let (flight, engine) = (self.flight.clone(), self.engine.clone());
        let begin = self.flight.content.env.now();
        let task = async move {
            let result = flight.write(number, &runs, data).await;
            if let Err(error) = &result {
                engine.poison(&error.to_string());
            }
            result
        };
        let written = self.flight.content.env.spawn_join(task).await;
        let counters = &mut *self.counters.borrow_mut();
        counters.writes += 1;
        counters.written_blocks += len;
        counters.data.add(self.flight.content.env.now().since(begin));
        written.map(|()| number_of_txn).map_err(|_| Fault::Io)
    }

    /// How many of the blocks `[block, block + len)` the object lacks, beyond what is kept for the
    /// client.
    ///
    /// # Errors
    /// The store's.
    pub async fn beyond_promise(
        &self,
        client: ClientId,
        (object, block): (ObjectId, u64),
        len: u64,
    ) -> Result<u64, Fault> {
        let end = block + len;
        let there = self.engine.run(Cost::READ, |txn| {
            let segments = map::overlapping(txn, object, block, end, len as usize)?;
            Ok(segments.iter().map(|segment| segment.part(block, end).len).sum::<u64>())
        });
        let (there, _) = there.await.map_err(|error| error.fault())?;
        Ok(len.saturating_sub(there).saturating_sub(self.promises.of(client)))
    }

    /// Runs the transaction of a write, if need be when blocks are let go.
    async fn map_fresh(&self, write: &Fresh<'_>) -> Result<(Vec<Run>, Transno), Fault> {
        let end = write.block + write.len;
        let count = self.engine.run(Cost::READ, |txn| {
            map::overlapping(txn, write.object, write.block, end, write.len as usize)
        });
        let replaced = count.await.map_err(|error| error.fault())?.0.len() as u32;
        let cost = Cost {
            log_bytes: WRITE.log_bytes + replaced * REPLACED_BYTES,
            dirty: WRITE.dirty + replaced,
            // It had room when it ran first.
            reserve: match write.room {
                Room::Repeated => Reserve::Replay,
                Room::Of(_) => WRITE.reserve,
            },
        };
        let begin = self.flight.content.env.now();
        let mut waited = false;
        loop {
            let (mut runs, mut full) = (Vec::new(), false);
            let made = self.engine.run(cost, |txn| {
                (runs, full) = (Vec::new(), false);
                match self.replace(txn, write)? {
                    Some(chosen) => runs = chosen,
                    None => full = true,
                }
                if full { Err(Fault::NoSpace.into()) } else { Ok(()) }
            });
            match made.await {
                Ok(((), number)) => {
                    if waited {
                        let waited = self.flight.content.env.now().since(begin);
                        self.counters.borrow_mut().held.add(waited);
                    }
                    return Ok((runs, number));
                }
                Err(StoreError::Fault(Fault::NoSpace)) if full => self.wait_for_held().await?,
                Err(error) => return Err(error.fault()),
            }
            waited = true;
        }
    }

    /// Waits until some of the blocks that are held may be taken.
    ///
    /// # Errors
    /// `NoSpace` if none is held.
    async fn wait_for_held(&self) -> Result<(), Fault> {
        let durable = self.engine.last_committed();
        self.space.release(durable.lsn);
        match self.space.held_by(durable.lsn) {
            HeldBy::Nothing => Err(Fault::NoSpace),
            HeldBy::Log(lsn) => {
                let wait = self.engine.wait_durable(Transno { lsn, ..durable });
                wait.await.map_err(|error| error.fault())
            }
            HeldBy::Reads => {
                self.space.read_ended().await;
                Ok(())
            }
        }
    }

    /// Maps fresh blocks; `None` if too few can be taken now.
    fn replace(&self, txn: &mut Txn<'_>, write: &Fresh<'_>) -> Result<Option<Vec<Run>>, Stop> {
        let Fresh { asked, object, block, len, sums, number, room } = *write;
        self.space.release(txn.durable().lsn);
        let segments = map::overlapping(txn, object, block, block + len, len as usize)?;
        let replaced: u64 =
            segments.iter().map(|segment| segment.part(block, block + len).len).sum();
        let added = len - replaced;
        let beyond = match room {
            Room::Of(_) => added.saturating_sub(self.promises.of(asked.client)),
            Room::Repeated => 0,
        };
        let kept = if beyond > 0 { self.space.reserve() + self.promises.total() } else { 0 };
        if self.space.free() < len.max(kept + beyond) {
            return Err(Fault::NoSpace.into());
        }
        let goal = map::goal(txn, object, block)?;
        let Some(runs) = self.space.choose(txn, len, goal)? else { return Ok(None) };
        for &run in &runs {
            if !self.space.holds(run) {
                return Err(FREE.corrupt(txn, "a free run lies outside the content slice"));
            }
            take(txn, run)?;
        }
        let freed = map::unmap(txn, object, block, block + len, &segments)?;
        let mut at = block;
        for run in &runs {
            map::map(txn, object, Segment { block: at, len: run.len, at: run.at })?;
            at += run.len;
        }
        if self.checksums {
            map::set_sums(txn, object, block, sums)?;
        }
        let mut extent = map::extent(txn, object)?.unwrap_or_default();
        extent.blocks = extent.blocks.saturating_add(len).saturating_sub(replaced);
        extent.end = extent.end.max(block + len);
        map::set_extent(txn, object, extent)?;
        let freed = self.free(txn, freed)?;
        keep_reply(txn, asked)?;
        let (space, flight, taken) = (self.space.clone(), self.flight.clone(), runs.clone());
        let promises = self.promises.clone();
        txn.on_commit(move |made| {
            space.changed(made, &taken, &freed);
            flight.register(number, made.lsn, taken);
            if let Room::Of(said) = room {
                promises.spend(asked.client, added, said);
            }
        });
        Ok(Some(runs))
    }

    /// Puts runs back into the tree of free runs; returns them as they are to be held.
    fn free(&self, txn: &mut Txn<'_>, runs: Vec<Run>) -> Result<Vec<Run>, Stop> {
        let runs = joined(runs);
        for &run in &runs {
            if !self.space.holds(run) {
                return Err(OBJECTS.corrupt(txn, "a segment lies outside the content slice"));
            }
            give(txn, run)?;
        }
        Ok(runs)
    }

    /// Makes holes of the blocks `from..to`; `u64::MAX`: to the end.
    ///
    /// # Errors
    /// `Io`.
    pub async fn punch(
        &self,
        asked: Asked,
        object: ObjectId,
        from: u64,
        to: u64,
    ) -> Result<Transno, Fault> {
        let mut from = from;
        loop {
            let (cost, budget) = match self.few(object, from, to).await? {
                true => (PUNCH_FEW, map::Budget::FEW),
                false => (PUNCH, map::Budget::STEP),
            };
            let step = self.engine.run(cost, |txn| {
                let (mut budget, mut freed) = (budget, Vec::new());
                let next = match from < to {
                    true => map::unmap_step(txn, object, from, to, &mut budget, &mut freed)?,
                    false => None,
                };
                self.free_on_commit(txn, freed)?;
                if next.is_none() {
                    keep_reply(txn, asked)?;
                }
                Ok(next)
            });
            match step.await.map_err(|error| error.fault())? {
                (Some(next), _) => from = next,
                (None, number) => return Ok(self.seen(number)),
            }
            self.wait_if_much_is_held().await?;
        }
    }

    /// Are there few segments in `from..to`?
    async fn few(&self, object: ObjectId, from: u64, to: u64) -> Result<bool, Fault> {
        let count = self.engine.run(Cost::READ, |txn| {
            Ok(map::overlapping(txn, object, from, to, map::Budget::FEW.segments + 1)?.len())
        });
        Ok(count.await.map_err(|error| error.fault())?.0 <= map::Budget::FEW.segments)
    }

    /// The number of a transaction. One that found nothing to change stands behind all before it:
    /// what it found may not be durable yet.
    fn seen(&self, number: Transno) -> Transno {
        match number {
            Transno::ZERO => Transno { lsn: self.engine.log_end(), ..self.engine.last_committed() },
            number => number,
        }
    }

    /// Waits while very much is held.
    async fn wait_if_much_is_held(&self) -> Result<(), Fault> {
        while self.space.holds_many() {
            self.wait_for_held().await?;
        }
        Ok(())
    }

    /// Frees blocks, and holds them when the transaction has taken effect.
    fn free_on_commit(&self, txn: &mut Txn<'_>, freed: Vec<Run>) -> Result<(), Stop> {
        if !freed.is_empty() {
            let freed = self.free(txn, freed)?;
            let space: Rc<_> = self.space.clone();
            txn.on_commit(move |made| space.changed(made, &[], &freed));
        }
        Ok(())
    }

    /// Destroys objects; unknown ones are no failure.
    ///
    /// # Errors
    /// `Io`.
    pub async fn destroy(&self, asked: Asked, objects: &[ObjectId]) -> Result<Transno, Fault> {
        let mut done = 0;
        loop {
            let step = self.engine.run(PUNCH, |txn| {
                let (mut at, mut budget, mut freed) = (done, map::Budget::STEP, Vec::new());
                while let Some(&object) = objects.get(at).filter(|_| !budget.is_spent()) {
                    let left = map::unmap_step(txn, object, 0, u64::MAX, &mut budget, &mut freed)?;
                    if left.is_none() {
                        OBJECTS.remove(txn, &object_key(object))?;
                        budget.segments = budget.segments.saturating_sub(1);
                        at += 1;
                    }
                }
                self.free_on_commit(txn, freed)?;
                if at == objects.len() {
                    keep_reply(txn, asked)?;
                }
                Ok(at)
            });
            let (at, number) = step.await.map_err(|error| error.fault())?;
            done = at;
            if done == objects.len() {
                return Ok(self.seen(number));
            }
            self.wait_if_much_is_held().await?;
        }
    }

    /// Refuses the capabilities of a client of the metadata server from now on. When it returns,
    /// that is durable, and every write whose transaction took effect before has ended; requests of
    /// the client that the server has let in and that are not in a transaction yet are the server's
    /// to wait for.
    ///
    /// # Errors
    /// `Io`; `NoSpace` if not even the reserve has a block for it.
    pub async fn fence(&self, client: ClientId) -> Result<(), Fault> {
        self.fenced.borrow_mut().insert(client);
        let fault = |error: StoreError| error.fault();
        let cost = Cost::DELETE;
        let made = self.engine.run(cost, |txn| {
            FENCED.insert(txn, &client.0.to_be_bytes(), &[])?;
            Ok(())
        });
        made.await.map_err(fault)?;
        self.engine.sync().await.map_err(fault)
    }

    /// Are the capabilities of this client of the metadata server refused?
    pub fn is_fenced(&self, client: ClientId) -> bool {
        self.fenced.borrow().contains(&client)
    }
}

/// Keeps the reply of a request, if a client asked for it.
fn keep_reply(txn: &mut Txn<'_>, asked: Asked) -> Result<(), Stop> {
    match asked.client {
        ClientId::NONE => Ok(()),
        client => txn.set_reply(client, u32::from(asked.slot), asked.seq, &[]),
    }
}
