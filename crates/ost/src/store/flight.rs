//! Writes of content that are in flight: what the log must wait for (paper 001, section 3.2).
//!
//! Invariants:
//! - a write is registered in the moment in which its transaction takes effect. It is in flight
//!   until the device has said how it ended, even if nobody waits for it any more;
//! - a group of the log is written when every write that was registered before its end has ended
//!   without an error, and a flush has begun after that and ended;
//! - after a failed write or flush no group is written any more.

use std::cell::RefCell;
use std::collections::BTreeMap;

use engine::error::StoreError;
use engine::store::barrier::{Awaited, Barrier};
use env::sync::Notify;
use env::{Disk, Env, IoBuf};
use types::limits::{BLOCK, BLOCK_U64};
use types::{Bug, Lsn, planted};

use super::format::Run;

/// The content slice.
#[derive(Clone)]
pub(super) struct Content {
    pub(super) env: Env,
    pub(super) disk: Disk,
    /// Its first block on the device.
    pub(super) start: u64,
    /// Its blocks.
    pub(super) blocks: u64,
}

impl Content {
    fn error(&self, what: &'static str, error: &std::io::Error) -> StoreError {
        StoreError::io(what, self.disk.path(), error)
    }

    fn offset(&self, at: u64) -> u64 {
        (self.start + at) * BLOCK_U64
    }

    /// Writes `data` to the blocks of `runs`, in this order.
    async fn write(&self, runs: &[Run], data: IoBuf) -> Result<(), StoreError> {
        if let [run] = runs {
            let (result, _) = self.disk.write(self.offset(run.at), data).await;
            return result.map_err(|error| self.error("writing content", &error));
        }
        let (mut from, mut joins) = (0, Vec::new());
        for run in runs {
            let bytes = IoBuf::copy_of(&data[from..from + run.len as usize * BLOCK]);
            from += bytes.len();
            let (disk, offset) = (self.disk.clone(), self.offset(run.at));
            joins.push(self.env.spawn_join(async move { disk.write(offset, bytes).await.0 }));
        }
        let mut result = Ok(());
        for join in joins {
            result = result.and(join.await);
        }
        result.map_err(|error| self.error("writing content", &error))
    }

    /// Reads the blocks of `runs`, in this order.
    ///
    /// # Errors
    /// `Io`.
    pub(super) async fn read(&self, runs: &[Run]) -> Result<IoBuf, StoreError> {
        if runs.iter().any(|run| run.end() > self.blocks) {
            let what = "a segment lies outside the content slice";
            return Err(StoreError::corrupt(types::MetaBlock(0), what));
        }
        let read = |run: &Run| {
            let (disk, offset, len) = (self.disk.clone(), self.offset(run.at), run.len as usize);
            async move { disk.read(offset, IoBuf::unspecified(len * BLOCK)).await }
        };
        let failed = |error: std::io::Error| self.error("reading content", &error);
        match runs {
            [] => Ok(IoBuf::unspecified(0)),
            [run] => {
                let (result, data) = read(run).await;
                result.map(|()| data).map_err(failed)
            }
            runs => {
                let all: u64 = runs.iter().map(|run| run.len).sum();
                let (mut out, mut from) = (IoBuf::unspecified(all as usize * BLOCK), 0);
                let joins: Vec<_> = runs.iter().map(|run| self.env.spawn_join(read(run))).collect();
                for join in joins {
                    let (result, data) = join.await;
                    result.map_err(failed)?;
                    out[from..from + data.len()].copy_from_slice(&data);
                    from += data.len();
                }
                Ok(out)
            }
        }
    }
}

/// See the module.
pub(super) struct Flight {
    pub(super) content: Content,
    state: RefCell<State>,
    /// Notified when a write has ended.
    ended: Notify,
    /// A planted fault: the log does not wait for content, or not for its flush.
    #[cfg(test)]
    pub(super) fault: std::cell::Cell<Option<Planted>>,
}

/// See [`Flight::fault`].
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Planted {
    NoWait,
    NoFlush,
}

#[derive(Default)]
struct State {
    writes: BTreeMap<u64, Write>,
    next: u64,
    /// A write has ended since the last flush began.
    unflushed: bool,
    failed: Option<StoreError>,
}

struct Write {
    /// End of the record of its transaction.
    lsn: Lsn,
    runs: Vec<Run>,
}

impl Flight {
    pub(super) fn new(content: Content) -> Flight {
        Flight {
            content,
            state: RefCell::default(),
            ended: Notify::new(),
            #[cfg(test)]
            fault: std::cell::Cell::default(),
        }
    }

    /// A number for a write.
    pub(super) fn number(&self) -> u64 {
        let state = &mut *self.state.borrow_mut();
        state.next += 1;
        state.next
    }

    /// Registers a write to `runs`, whose record ends at `lsn`.
    pub(super) fn register(&self, number: u64, lsn: Lsn, runs: Vec<Run>) {
        self.state.borrow_mut().writes.insert(number, Write { lsn, runs });
    }

    /// Does the registered write, and ends it.
    ///
    /// # Errors
    /// `Io`.
    pub(super) async fn write(
        &self,
        number: u64,
        runs: &[Run],
        data: IoBuf,
    ) -> Result<(), StoreError> {
        let result = self.content.write(runs, data).await;
        let state = &mut *self.state.borrow_mut();
        state.writes.remove(&number);
        state.unflushed = true;
        if let Err(error) = &result {
            state.failed.get_or_insert(error.clone());
        }
        self.ended.notify_all();
        result
    }

    /// Number of writes in flight.
    pub(super) fn in_flight(&self) -> u64 {
        self.state.borrow().writes.len() as u64
    }

    /// Waits until no write that `matches` is in flight.
    ///
    /// # Errors
    /// That of a write that failed.
    async fn wait(&self, matches: impl Fn(&Write) -> bool) -> Result<(), StoreError> {
        loop {
            let ended = {
                let state = self.state.borrow();
                if let Some(error) = &state.failed {
                    return Err(error.clone());
                }
                if !state.writes.values().any(&matches) {
                    return Ok(());
                }
                self.ended.notified()
            };
            ended.await;
        }
    }

    /// Waits until nothing is being written to these blocks.
    ///
    /// # Errors
    /// That of a write that failed.
    pub(super) async fn settled(&self, runs: &[Run]) -> Result<(), StoreError> {
        let overlap = |a: &Run, b: &Run| a.at < b.end() && b.at < a.end();
        self.wait(|write| write.runs.iter().any(|one| runs.iter().any(|run| overlap(one, run))))
            .await
    }
}

impl Barrier for Flight {
    fn ended(&self, end: Lsn) -> Awaited<'_> {
        #[cfg(test)]
        if self.fault.get() == Some(Planted::NoWait) {
            return Box::pin(async { Ok(()) });
        }
        if planted(Bug::ContentNotAwaited) {
            return Box::pin(async { Ok(()) });
        }
        Box::pin(self.wait(move |write| write.lsn <= end))
    }

    fn flush(&self) -> Awaited<'_> {
        #[cfg(test)]
        if self.fault.get() == Some(Planted::NoFlush) {
            return Box::pin(async { Ok(()) });
        }
        if planted(Bug::ContentNotAwaited) {
            return Box::pin(async { Ok(()) });
        }
        Box::pin(async {
            if !std::mem::take(&mut self.state.borrow_mut().unflushed) {
                return Ok(());
            }
            let flushed = self.content.disk.flush().await;
            if planted(Bug::FailedFlushIgnored) {
                return Ok(());
            }
            flushed.map_err(|error| {
                let error = self.content.error("flushing content", &error);
                self.state.borrow_mut().failed.get_or_insert(error).clone()
            })
        })
    }
}
