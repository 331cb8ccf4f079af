//! Space for accepted bytes: reservations from the pool, and grants of the server to the pool.
//!
//! Invariants:
//! - the client asks for one grant at a time; waiting writers are served first come, first served;
//! - a grant that arrives is kept even if the caller that asked for it is gone;
//! - before a writer gets `NoSpace`, the client has committed everything that would free blocks;
//! - a run that lost its place because its zone is avoided now is *starved*: it waits for
//!   blocks of another zone; without any, its bytes are lost;
//! - when the server asks for space, the client returns what it does not need, but not what a
//!   waiting writer needs: so no two waiting writers take blocks from each other for ever.

use std::cell::Cell;
use std::rc::Rc;

use types::limits::GRANT_BLOCKS;
use types::{Duration, Fault, Instant};

use super::context::DataContext;
use super::file::File;
use super::grants::Transfer;
use super::pool::{PoolRun, Reservation, to_wire};
use crate::waits::Wait;

/// Largest number of blocks asked for in advance: 256 MiB.
const GRANT_MAX: u64 = 16 * GRANT_BLOCKS;
/// How often the client asks the server before a writer gets `NoSpace`.
const TRIES: u32 = 4;
/// Pause between two tries: the server frees blocks in the background.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// For so long after a `NoSpace`, the next writer asks less often before it gets one, too.
const SCARCE: Duration = Duration::from_millis(500);

/// For so long after a `NoSpace` of the others, silent and failing zones are used as well.
const MODEST: Duration = Duration::from_secs(10);

/// How long a writer without space waits for commits that a silent device may hold up.
const SYNC_PATIENCE: Duration = Duration::from_millis(500);

struct Waiter<'a>(&'a Cell<usize>);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl DataContext {
    /// Reserves `blocks` of the pool. Fails with `NoSpace`, `Evicted`, and with `Io` if the device
    /// of every zone is absent.
    pub(super) async fn reserve(self: &Rc<Self>, blocks: u64) -> Result<Reservation, Fault> {
        let space = &self.space;
        if space.waiting.get() == 0
            && let Some(reserved) = self.pool.reserve(blocks)
        {
            space.used.set(true);
            self.prefetch();
            return Ok(reserved);
        }
        let _named = self.waits.begin(&self.env, Wait::Space);
        space.waiting.set(space.waiting.get() + 1);
        let _waiter = Waiter(&space.waiting);
        let _turn = space.fifo.lock().await;
        let mut tries = 0;
        loop {
            let granted = space.granted.notified();
            if let Some(reserved) = self.pool.reserve(blocks) {
                space.used.set(true);
                self.prefetch();
                return Ok(reserved);
            }
            if space.refilling.get() {
                granted.await;
                continue;
            }
            let missing = self.pool.missing_for(blocks);
            let ask = if tries == 0 { space.grant_size.get().max(missing) } else { missing };
            if tries == 0 && space.used.get() {
                space.grant_size.set((space.grant_size.get() * 2).min(GRANT_MAX));
            }
            let this = self.clone();
            let refill = self.env.spawn_join(async move { this.refill(ask).await });
            match refill.await {
                Ok(()) => {}
                Err(Fault::NoSpace) if self.settle_for_any_zone() => {}
                Err(Fault::NoSpace) => {
                    tries += 1;
                    let scarce = self.env.now() < space.scarce_until.get();
                    if tries >= TRIES || scarce && tries > 2 {
                        space.scarce_until.set(self.env.now() + SCARCE);
                        return Err(Fault::NoSpace);
                    }
                    self.free_own_space(tries).await;
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Did a writer get `NoSpace` recently, and is the pool empty?
    pub(super) fn is_scarce(&self) -> bool {
        self.pool.available() == 0 && self.env.now() < self.space.scarce_until.get()
    }

    /// Asks for a grant in advance if the pool runs low.
    fn prefetch(self: &Rc<Self>) {
        let space = &self.space;
        let low = self.pool.available() < space.grant_size.get();
        if low && !space.refilling.get() && self.env.now() >= space.quiet_until.get() {
            let this = self.clone();
            let ask = space.grant_size.get();
            space.refilling.set(true);
            self.env.spawn(async move {
                if matches!(this.refill(ask).await, Err(Fault::NoSpace | Fault::Io)) {
                    this.space.quiet_until.set(this.env.now() + SCARCE);
                }
            });
        }
    }

    async fn refill(self: &Rc<Self>, blocks: u64) -> Result<(), Fault> {
        self.space.refilling.set(true);
        let transfer = Transfer::begin(&self.space);
        let unreachable = self.pool.avoided();
        let result = match self.disks.devices().all(|device| device.is_absent()) {
            true => Err(Fault::Io),
            false => self.rpc.space(None, blocks, unreachable).await,
        };
        self.space.refilling.set(false);
        if matches!(result, Err(Fault::NoSpace | Fault::Io)) {
            self.disks.ask_for_absent();
        }
        let result = result.and_then(|runs| {
            let granted: u64 = runs.iter().map(|run| run.len).sum();
            self.pool.grant(&runs);
            // The server grants less when space is scarce: then keep less here, too.
            if granted < blocks {
                self.space.grant_size.set(self.space.grant_size.get().min(granted.max(1)));
            }
            if granted == 0 { Err(Fault::NoSpace) } else { Ok(()) }
        });
        drop(transfer);
        self.space.granted.notify_all();
        result
    }

    /// The server has no room in the zones that this client prefers: uses all that are there for a
    /// while. Returns whether these are more.
    fn settle_for_any_zone(self: &Rc<Self>) -> bool {
        let before = self.pool.avoided().len();
        self.space.modest_until.set(self.env.now() + MODEST);
        self.choose_zones();
        self.pool.avoided().len() < before
    }

    /// Other zones than before may be used, or fewer.
    pub(super) fn zones_changed(self: &Rc<Self>) {
        self.space.granted.notify_all();
        self.relieve();
    }

    /// The file's wanted runs cannot be launched before the pool has more blocks.
    pub(super) fn starve(self: &Rc<Self>, file: &Rc<File>) {
        self.space.starved.borrow_mut().entry(file.ino).or_insert_with(|| file.clone());
        self.relieve();
    }

    /// Gets blocks for starved files.
    fn relieve(self: &Rc<Self>) {
        if self.space.starved.borrow().is_empty() || self.space.relieving.replace(true) {
            return;
        }
        let this = self.clone();
        self.env.spawn(async move {
            // Launching may use up what another file needs.
            while !this.space.starved.borrow().is_empty() {
                let filled = this.fill_shortage().await;
                match filled {
                    Ok(()) | Err(Fault::NoSpace | Fault::Io | Fault::Evicted) => {}
                    // The client has ended.
                    Err(Fault::Unreachable) => break,
                    Err(_) => {
                        this.env.sleep(RETRY_PAUSE).await;
                        continue;
                    }
                }
                let starved = std::mem::take(&mut *this.space.starved.borrow_mut());
                for file in starved.into_values() {
                    file.relieved(filled);
                }
            }
            this.space.relieving.set(false);
        });
    }

    /// Waits until the pool has a place for all that is reserved. Fails as
    /// [`DataContext::reserve`].
    pub(super) async fn fill_shortage(self: &Rc<Self>) -> Result<(), Fault> {
        let mut tries = 0;
        loop {
            let granted = self.space.granted.notified();
            let missing = self.pool.missing_for(0);
            if missing == 0 {
                return Ok(());
            }
            if self.space.refilling.get() {
                granted.await;
                continue;
            }
            let this = self.clone();
            let refill = self.env.spawn_join(async move { this.refill(missing).await });
            match refill.await {
                Ok(()) => {}
                Err(Fault::NoSpace) if self.settle_for_any_zone() => {}
                Err(Fault::NoSpace) if tries < TRIES => {
                    tries += 1;
                    self.env.sleep(RETRY_PAUSE * tries).await;
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Frees what this client can free: commits its truncations.
    async fn free_own_space(self: &Rc<Self>, tries: u32) {
        if tries == 1 {
            // Each file reports its own errors; only the space matters here.
            let this = self.clone();
            let mut sync = self.env.spawn_join(async move { this.sync_all().await });
            while self.env.timeout(SYNC_PATIENCE, &mut sync).await.is_none() {
                if self.disks.any_silent() {
                    break;
                }
            }
            self.return_runs(self.returnable_tainted()).await;
            let _ = self.rpc.commit(Vec::new(), true).await;
        } else {
            self.env.sleep(RETRY_PAUSE * tries).await;
        }
    }

    /// Tainted blocks that no write of this client can reach any more.
    fn returnable_tainted(&self) -> Vec<PoolRun> {
        if self.writes_in_flight() > 0 { Vec::new() } else { self.pool.drain_tainted() }
    }

    async fn return_runs(&self, runs: Vec<PoolRun>) {
        let _transfer = (!runs.is_empty()).then(|| Transfer::begin(&self.space));
        if !runs.is_empty()
            && let Err(fault) = self.rpc.return_space(to_wire(&runs)).await
        {
            self.rpc.log(&format!("cannot return unused space to the server: {fault}"));
        }
    }

    /// See [`crate::boundary::DataHalf::unused_blocks`].
    pub(super) fn unused_blocks(&self) -> u64 {
        self.pool.available() + self.pool.aside() + self.pool.tainted()
    }

    /// See [`crate::boundary::DataHalf::is_pool_idle`].
    pub(super) fn is_pool_idle(&self) -> bool {
        self.space.transfers.get() == 0
    }

    /// See [`crate::boundary::DataHalf::pool_transfers`].
    pub(super) fn pool_transfers(&self) -> u64 {
        self.space.transfer_changes.get()
    }

    /// See [`crate::boundary::DataHalf::pool_idle`].
    pub(super) async fn pool_idle(&self) {
        loop {
            let notified = self.space.transfers_done.notified();
            if self.is_pool_idle() {
                return;
            }
            notified.await;
        }
    }

    /// The session is lost, and all granted blocks with it.
    pub(super) fn forget_space(&self) {
        self.space.transfer_changes.set(self.space.transfer_changes.get() + 1);
        self.pool.forget();
        self.space.grant_size.set(GRANT_BLOCKS);
        self.space.scarce_until.set(Instant::default());
        self.space.quiet_until.set(Instant::default());
        self.space.granted.notify_all();
    }

    /// See [`crate::boundary::DataHalf::return_pool`].
    pub(super) async fn return_pool(&self) {
        // A grant in progress would arrive in a pool that nobody returns.
        loop {
            let granted = self.space.granted.notified();
            if !self.space.refilling.get() {
                break;
            }
            granted.await;
        }
        let _transfer = Transfer::begin(&self.space);
        let runs = self.pool.drain(0);
        if !runs.is_empty()
            && let Err(fault) = self.rpc.return_space(to_wire(&runs)).await
        {
            self.rpc.log(&format!("cannot return the space pool to the server: {fault}"));
        }
    }

    /// See [`crate::boundary::DataHalf::return_unused`].
    pub(super) async fn return_unused(&self) {
        self.space.grant_size.set(1);
        self.space.quiet_until.set(self.env.now() + SCARCE);
        let mut runs = self.returnable_tainted();
        if self.space.waiting.get() == 0 {
            runs.extend(self.pool.drain_unused());
        }
        let _transfer = Transfer::begin(&self.space);
        if let Err(fault) = self.rpc.return_space(to_wire(&runs)).await {
            self.rpc.log(&format!("cannot return space that other clients need: {fault}"));
        }
    }

    /// Called regularly: an idle client keeps at most one grant, one that writes keeps two grants
    /// of its current size.
    pub(super) async fn trim_pool(&self) {
        if self.space.refilling.get() {
            return;
        }
        let keep = if self.space.used.replace(false) {
            2 * self.space.grant_size.get()
        } else {
            self.space.grant_size.set(GRANT_BLOCKS);
            GRANT_BLOCKS
        };
        let mut runs = self.returnable_tainted();
        runs.extend(self.pool.drain_aside(|pag| self.disks.is_absent(pag)));
        if self.pool.available() > keep {
            runs.extend(self.pool.drain(keep));
        }
        self.return_runs(runs).await;
    }
}
