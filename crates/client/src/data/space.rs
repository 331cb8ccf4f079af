//! Space for accepted bytes: reservations from the pool, and grants of the server to the pool.
//!
//! Invariants:
//! - the client asks for one grant of a class at a time, and for one with commits; waiting writers
//!   are served first come, first served;
//! - no writer waits for a grant that was asked for with commits, but before `NoSpace`;
//! - a grant that arrives is kept even if the caller that asked for it is gone;
//! - before a writer gets `NoSpace`, the client has committed everything that would free blocks;
//! - a run that lost its place because its zone is avoided now is *starved*: it waits for
//!   blocks of another zone; without any, its bytes are lost. A run whose zone has room at the
//!   server but none in the pool waits, too; it goes to another zone when that one has no room;
//! - when the server asks for space, the client returns what it does not need, but not what a
//!   waiting writer needs: so no two waiting writers take blocks from each other for ever.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use proto::mds::Leased;
use types::{Duration, Fault, PagId, ServerId};

use super::class::{Class, GRANT_MAX};
use super::context::DataContext;
use super::double_pool::Refill;
use super::file::File;
use super::pool::{Pool, PoolRun, Reservation, to_wire};
use super::transfers::Transfer;
use crate::boundary::{Commit, Granted, Refusal, SpaceRequest};
use crate::waits::Wait;

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

/// A request with commits asks for blocks if the zone has so many times as many left.
const RIDES: u64 = 4;

/// Blocks that the pools of a class lack.
struct Lack {
    refill: Refill,
    /// Blocks to ask for.
    blocks: u64,
    /// Best of this zone.
    hint: Option<PagId>,
}

/// Blocks that a request with commits asks for.
pub(super) struct Rider {
    class: Rc<Class>,
    blocks: u64,
    hint: Option<PagId>,
}

struct Waiter<'a>(&'a Cell<usize>);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl DataContext {
    /// Reserves `blocks` of the pool of a class, which would best lie in the zone `hint`. Fails
    /// with `NoSpace`, `Evicted`, and with `Io` if the device of every zone is absent.
    pub(super) async fn reserve(
        self: &Rc<Self>,
        class: &Rc<Class>,
        blocks: u64,
        hint: Option<PagId>,
    ) -> Result<Reservation, Fault> {
        let grants = &class.grants;
        let mut is_large = class.is_large(blocks) && self.allocation.delegated;
        if grants.waiting.get() == 0
            && !is_large
            && let Some(reserved) = class.pool.reserve(blocks)
        {
            grants.used.set(true);
            self.prefetch(class);
            return Ok(reserved);
        }
        let _named = self.waits.begin(&self.env, Wait::Space);
        grants.waiting.set(grants.waiting.get() + 1);
        let _waiter = Waiter(&grants.waiting);
        let _turn = grants.fifo.lock().await;
        let mut tries = 0;
        loop {
            let granted = grants.granted.notified();
            if !is_large && let Some(reserved) = class.pool.reserve(blocks) {
                grants.used.set(true);
                self.prefetch(class);
                return Ok(reserved);
            }
            if grants.refilling.get() {
                granted.await;
                continue;
            }
            if std::mem::take(&mut is_large) {
                // The pools are for small files. They help only where the server has too little.
                match self.refill(class, blocks, hint).await {
                    Ok(()) | Err(Fault::NoSpace) => continue,
                    Err(fault) => return Err(fault),
                }
            }
            let missing = class.pool.missing_for(blocks);
            let ahead = tries == 0 && self.allocation.delegated;
            let ask = if ahead { grants.size.get().max(missing) } else { missing };
            if ahead && grants.used.get() {
                grants.size.set((grants.size.get() * 2).min(GRANT_MAX));
            }
            match self.refill(class, ask, hint).await {
                Ok(()) => {}
                // What the server has left may be on its way to this pool.
                Err(Fault::NoSpace) if grants.riding.get() => grants.granted.notified().await,
                Err(Fault::NoSpace) => self.found_no_space(class, &mut tries).await?,
                Err(fault) => return Err(fault),
            }
        }
    }

    /// The server had no block for a writer, for the `tries`th time: makes room, or gives up.
    pub(super) async fn found_no_space(
        self: &Rc<Self>,
        class: &Rc<Class>,
        tries: &mut u32,
    ) -> Result<(), Fault> {
        if self.settle_for_any_zone(class) {
            return Ok(());
        }
        *tries += 1;
        let scarce = self.env.now() < class.grants.scarce_until.get();
        if *tries >= TRIES || scarce && *tries > 2 {
            class.grants.scarce_until.set(self.env.now() + SCARCE);
            return Err(Fault::NoSpace);
        }
        self.free_own_space(class, *tries).await;
        Ok(())
    }

    /// Did a writer to the class get `NoSpace` recently, and is its pool empty?
    pub(super) fn is_scarce(&self, class: &Class) -> bool {
        class.pool.available() == 0 && self.env.now() < class.grants.scarce_until.get()
    }

    /// What the pools of the class lack: in a zone that is in use, or in total.
    fn lack(&self, class: &Class) -> Option<Lack> {
        let grants = &class.grants;
        if self.env.now() < grants.quiet_until.get() || !self.allocation.delegated {
            return None;
        }
        let share = self.share_of_zone(class);
        let used = grants.used_zones.borrow();
        let usable = used.iter().copied().filter(|&zone| self.is_usable(class, zone));
        let hint = usable.min_by_key(|&zone| class.pool.stock(zone));
        let of_zone = hint.map_or(Refill::Enough, |zone| class.pool.refill_zone(zone, share));
        let wanted = class.wanted();
        let in_all = class.pool.refill(wanted);
        let missing = wanted.full.saturating_sub(class.pool.available());
        let blocks = match (of_zone, in_all) {
            (Refill::Enough, Refill::Enough) => return None,
            (Refill::Enough, _) => grants.size.get().max(missing),
            _ => share,
        };
        Some(Lack { refill: of_zone.max(in_all), blocks, hint })
    }

    /// Can blocks be asked for with commits? Not if the server may first have to get them from
    /// others: the files would wait for their answers.
    fn can_ride(&self, class: &Class, lack: &Lack) -> bool {
        let zone = self.grant_zones(class, lack.hint).0;
        zone.is_some_and(|zone| {
            !self.disks.is_absent(class.server, zone)
                && class.grants.has_left(zone, RIDES * lack.blocks)
        })
    }

    /// Asks for a grant in advance if no request with commits will do so in time.
    fn prefetch(self: &Rc<Self>, class: &Rc<Class>) {
        let Some(lack) = self.lack(class) else { return };
        let rides = lack.refill == Refill::Rides
            && (class.grants.riding.get() || self.can_ride(class, &lack));
        if rides || class.grants.refilling.replace(true) {
            return;
        }
        let (this, class) = (self.clone(), class.clone());
        self.env.spawn(async move {
            let granted = this.granted(&class, lack.blocks, lack.hint).await;
            this.note_refusal(&class, granted);
        });
    }

    /// After a refusal, nothing is asked for in advance for a while.
    fn note_refusal(&self, class: &Class, granted: Result<(), Fault>) {
        if matches!(granted, Err(Fault::NoSpace | Fault::Io)) {
            class.grants.quiet_until.set(self.env.now() + SCARCE);
        }
    }

    /// What the request with these commits is to ask for, too, of one of their servers.
    pub(super) fn rider(&self, commits: &[Commit]) -> Option<Rider> {
        let servers: BTreeSet<ServerId> =
            commits.iter().map(|commit| self.rpc.server_of(commit.ino)).collect();
        let classes = self.each_class().into_iter();
        classes.filter(|class| servers.contains(&class.server)).find_map(|class| {
            let lack = self.lack(&class).filter(|_| !class.grants.is_expected())?;
            if !self.can_ride(&class, &lack) {
                return None;
            }
            class.grants.riding.set(true);
            Some(Rider { class, blocks: lack.blocks, hint: lack.hint })
        })
    }

    /// Sends commits, and asks for blocks with them. They arrive in the pool even if the caller is
    /// dropped.
    pub(super) async fn commit_with(
        self: &Rc<Self>,
        rider: Rider,
        (commits, sync): (Vec<Commit>, bool),
    ) -> Vec<Result<Leased, Refusal>> {
        let this = self.clone();
        let sent = self.env.spawn_join(async move {
            let Rider { class, blocks, hint } = rider;
            let transfer = Transfer::begin(&this.transfers);
            let (hint, unreachable) = this.grant_zones(&class, hint);
            let asked = SpaceRequest { server: class.server, hint, blocks, unreachable };
            let (answers, granted) = this.rpc.commit_and_refill(commits, sync, asked).await;
            class.grants.riding.set(false);
            if let Some(granted) = granted {
                let taken = this.take_grant(&class, blocks, hint, granted);
                this.transfers.rode.set(this.transfers.rode.get() + u64::from(taken.is_ok()));
                this.note_refusal(&class, taken);
            }
            drop(transfer);
            class.grants.granted.notify_all();
            answers
        });
        sent.await
    }

    /// Gets a grant. It arrives in the pool even if the caller is dropped.
    async fn refill(
        self: &Rc<Self>,
        class: &Rc<Class>,
        blocks: u64,
        hint: Option<PagId>,
    ) -> Result<(), Fault> {
        let (this, class) = (self.clone(), class.clone());
        self.env.spawn_join(async move { this.granted(&class, blocks, hint).await }).await
    }

    async fn granted(
        self: &Rc<Self>,
        class: &Rc<Class>,
        blocks: u64,
        hint: Option<PagId>,
    ) -> Result<(), Fault> {
        let grants = &class.grants;
        grants.refilling.set(true);
        let transfer = Transfer::begin(&self.transfers);
        let (hint, unreachable) = self.grant_zones(class, hint);
        let server = class.server;
        let result = match self.has_no_device(class) {
            Some(fault) => Err(fault),
            None => self.rpc.space(SpaceRequest { server, hint, blocks, unreachable }).await,
        };
        grants.refilling.set(false);
        let result = self.take_grant(class, blocks, hint, result);
        drop(transfer);
        grants.granted.notify_all();
        result
    }

    /// Why no request for blocks of this class is sent: there is no zone (`NoSpace`), or the device
    /// of every one is absent (`Io`).
    pub(super) fn has_no_device(&self, class: &Class) -> Option<Fault> {
        let zones = self.zones_of(class);
        if !zones.is_empty() {
            let all_absent = zones.into_iter().all(|zone| self.disks.is_absent(class.server, zone));
            return all_absent.then_some(Fault::Io);
        }
        if !class.grants.lacks_zones.replace(true) {
            let which = match &class.zones[..] {
                [] if self.sessions.servers().len() > 1 => {
                    format!("metadata server {} has no data zone yet", class.server)
                }
                [] => "the file system has no data zone yet".to_owned(),
                zones => {
                    let list: Vec<String> = zones.iter().map(ToString::to_string).collect();
                    format!("the file system has none of the data zones {}", list.join(", "))
                }
            };
            self.rpc.log(&format!(
                "{which}, so writes find no space: add one by `redbud pag add ost:HOST:PORT`, or \
                 `redbud pag add DEVICE`"
            ));
        }
        Some(Fault::NoSpace)
    }

    /// Takes the server's answer to a request for `blocks`, best of the zone `hint`.
    fn take_grant(
        &self,
        class: &Class,
        blocks: u64,
        hint: Option<PagId>,
        result: Result<Granted, Fault>,
    ) -> Result<(), Fault> {
        let grants = &class.grants;
        if matches!(result, Err(Fault::NoSpace | Fault::Io)) {
            self.disks.ask_for_absent();
        }
        result.and_then(|Granted { runs, left }| {
            let granted: u64 = runs.iter().map(|run| run.len).sum();
            self.transfers.grants.set(self.transfers.grants.get() + 1);
            class.pool.grant(&runs);
            let zone = runs.first().map(|run| run.pag);
            if let Some(zone) = zone {
                grants.note_left(zone, left);
            }
            match hint {
                Some(hint) if zone != Some(hint) => grants.note_full(hint, self.env.now()),
                // The pool still has blocks of that zone to use.
                Some(_) if left == 0 && !self.is_only_zone(class) => {}
                // The server grants less when space is scarce: then keep less here, too.
                _ if granted < blocks => grants.size.set(grants.size.get().min(granted.max(1))),
                _ => {}
            }
            if granted == 0 { Err(Fault::NoSpace) } else { Ok(()) }
        })
    }

    /// The server has no room in the zones that this client prefers: uses all that are there for a
    /// while. Returns whether these are more.
    fn settle_for_any_zone(self: &Rc<Self>, class: &Class) -> bool {
        let before = class.pool.avoided().len();
        class.grants.modest_until.set(self.env.now() + MODEST);
        self.choose_zones();
        class.pool.avoided().len() < before
    }

    /// Other zones of the class than before may be used, or fewer.
    pub(super) fn zones_changed(self: &Rc<Self>, class: &Rc<Class>) {
        class.grants.granted.notify_all();
        self.relieve(class);
    }

    /// The file's wanted runs cannot be launched before the pool has more blocks.
    pub(super) fn starve(self: &Rc<Self>, class: &Rc<Class>, file: &Rc<File>) {
        let mut starved = class.grants.starved.borrow_mut();
        starved.entry(file.ino).or_insert_with(|| file.clone());
        drop(starved);
        self.relieve(class);
    }

    /// The file's wanted runs wait for `blocks` in this zone of the class.
    pub(super) fn starve_for(
        self: &Rc<Self>,
        class: &Rc<Class>,
        file: &Rc<File>,
        (zone, blocks): (PagId, u64),
    ) {
        class.grants.want(zone, blocks);
        self.starve(class, file);
    }

    /// Asks for `blocks` in this zone, as [`DataContext::starve_for`] does.
    pub(super) async fn fill_zone(
        self: &Rc<Self>,
        class: &Rc<Class>,
        (zone, blocks): (PagId, u64),
    ) -> Result<(), Fault> {
        class.grants.want(zone, blocks);
        self.fill_zones(class).await
    }

    /// Gets blocks for starved files.
    fn relieve(self: &Rc<Self>, class: &Rc<Class>) {
        let grants = &class.grants;
        if grants.starved.borrow().is_empty() || grants.relieving.replace(true) {
            return;
        }
        let (this, class) = (self.clone(), class.clone());
        self.env.spawn(async move {
            let grants = &class.grants;
            // Launching may use up what another file needs.
            while !grants.starved.borrow().is_empty() {
                let mut filled = this.fill_shortage(&class).await;
                if filled.is_ok() {
                    filled = this.fill_zones(&class).await;
                }
                match filled {
                    Ok(()) | Err(Fault::NoSpace | Fault::Io | Fault::Evicted) => {}
                    // The client has ended.
                    Err(Fault::Unreachable) => break,
                    Err(_) => {
                        this.env.sleep(RETRY_PAUSE).await;
                        continue;
                    }
                }
                for file in grants.starved.take().into_values() {
                    file.relieved(filled);
                }
            }
            grants.relieving.set(false);
        });
    }

    /// Waits until the pool has a place for all that is reserved. Fails as
    /// [`DataContext::reserve`].
    pub(super) async fn fill_shortage(self: &Rc<Self>, class: &Rc<Class>) -> Result<(), Fault> {
        let mut tries = 0;
        loop {
            let granted = class.grants.granted.notified();
            let missing = class.pool.missing_for(0);
            if missing == 0 {
                return Ok(());
            }
            if class.grants.refilling.get() {
                granted.await;
                continue;
            }
            match self.refill(class, missing, None).await {
                Ok(()) => {}
                Err(Fault::NoSpace) if class.grants.riding.get() => {
                    class.grants.granted.notified().await;
                }
                Err(Fault::NoSpace) if self.settle_for_any_zone(class) => {}
                Err(Fault::NoSpace) if tries < TRIES => {
                    tries += 1;
                    self.env.sleep(RETRY_PAUSE * tries).await;
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Asks for the blocks that runs want in certain zones. A zone of which neither the
    /// pool nor the server has enough counts as full then: the runs go to others, which have room
    /// for all that is reserved.
    async fn fill_zones(self: &Rc<Self>, class: &Rc<Class>) -> Result<(), Fault> {
        loop {
            let granted = class.grants.granted.notified();
            if class.grants.refilling.get() {
                granted.await;
                continue;
            }
            let Some((zone, blocks)) = class.grants.wanted.borrow_mut().pop_first() else {
                return Ok(());
            };
            if class.pool.has(zone, blocks) || !self.is_usable(class, zone) {
                continue;
            }
            let ask = blocks.max(self.share_of_zone(class));
            let has_more = match self.refill(class, ask, Some(zone)).await {
                // Other files may have used what came: the server says whether that was all.
                Ok(()) => class.grants.has_left(zone, blocks),
                Err(Fault::NoSpace | Fault::Io) => false,
                Err(fault) => return Err(fault),
            };
            if !has_more && !class.pool.has(zone, blocks) {
                class.grants.note_full(zone, self.env.now());
            }
        }
    }

    /// Frees what this client can free: commits its truncations, and returns what its other classes
    /// do not need.
    async fn free_own_space(self: &Rc<Self>, class: &Class, tries: u32) {
        if tries == 1 {
            // Each file reports its own errors; only the space matters here.
            let this = self.clone();
            let mut sync = self.env.spawn_join(async move { this.sync_all().await });
            while self.env.timeout(SYNC_PATIENCE, &mut sync).await.is_none() {
                if self.disks.any_silent() {
                    break;
                }
            }
            let mut runs = self.returnable_tainted(class);
            for other in self.each_class() {
                // What waits for files of this class keeps no other file from a block.
                let is_other = other.zones != class.zones || !self.allocation.delegated;
                if other.server == class.server && is_other && other.grants.waiting.get() == 0 {
                    runs.extend(other.pool.drain_unused());
                }
            }
            self.return_runs(class.server, runs).await;
            let _ = self.rpc.sync(class.server).await;
        } else {
            self.env.sleep(RETRY_PAUSE * tries).await;
        }
    }

    /// Tainted blocks that no write of this client can reach any more.
    fn returnable_tainted(&self, class: &Class) -> Vec<PoolRun> {
        if self.writes_in_flight() > 0 { Vec::new() } else { class.pool.drain_tainted() }
    }

    /// Returns blocks to the server, which has granted them.
    pub(super) async fn return_runs(&self, server: ServerId, runs: Vec<PoolRun>) {
        let _transfer = (!runs.is_empty()).then(|| Transfer::begin(&self.transfers));
        if !runs.is_empty()
            && let Err(fault) = self.rpc.return_space(server, to_wire(&runs)).await
        {
            self.rpc.log(&format!("cannot return unused space to the server: {fault}"));
        }
    }

    /// See [`crate::boundary::DataHalf::pool_blocks`].
    pub(super) fn pool_blocks(&self) -> (u64, u64) {
        let classes = self.classes.borrow();
        let sum = |of: fn(&Pool) -> u64| classes.iter().map(|class| of(&class.pool)).sum();
        (sum(Pool::blocks), sum(Pool::tainted))
    }

    /// See [`crate::boundary::DataHalf::unused_blocks`].
    pub(super) fn unused_blocks(&self) -> u64 {
        let classes = self.classes.borrow();
        let unused = |pool: &Pool| pool.available() + pool.aside() + pool.tainted();
        classes.iter().map(|class| unused(&class.pool)).sum()
    }

    /// See [`crate::boundary::DataHalf::is_pool_idle`].
    pub(super) fn is_pool_idle(&self) -> bool {
        self.transfers.in_progress.get() == 0
    }

    /// See [`crate::boundary::DataHalf::pool_transfers`].
    pub(super) fn pool_transfers(&self) -> u64 {
        self.transfers.changes.get()
    }

    /// See [`crate::boundary::DataHalf::pool_idle`].
    pub(super) async fn pool_idle(&self) {
        loop {
            let notified = self.transfers.done.notified();
            if self.is_pool_idle() {
                return;
            }
            notified.await;
        }
    }

    /// The session with the server is lost, and all blocks with it that it has granted.
    pub(super) fn forget_space(&self, server: ServerId) {
        self.transfers.changes.set(self.transfers.changes.get() + 1);
        for class in self.classes_of(server) {
            class.pool.forget();
            class.grants.forget();
        }
        self.transfers.asked.forget(|ino| self.rpc.server_of(ino) == server);
    }

    /// See [`crate::boundary::DataHalf::return_pool`].
    pub(super) async fn return_pool(&self) {
        let mut runs: BTreeMap<ServerId, Vec<PoolRun>> = BTreeMap::new();
        for class in self.each_class() {
            // A grant in progress would arrive in a pool that nobody returns.
            loop {
                let granted = class.grants.granted.notified();
                if !class.grants.is_expected() && !self.transfers.asked.is_waiting() {
                    break;
                }
                granted.await;
            }
            runs.entry(class.server).or_default().extend(class.pool.drain(0));
        }
        let _transfer = Transfer::begin(&self.transfers);
        for (server, runs) in runs.into_iter().filter(|(_, runs)| !runs.is_empty()) {
            if let Err(fault) = self.rpc.return_space(server, to_wire(&runs)).await {
                self.rpc.log(&format!("cannot return the space pool to the server: {fault}"));
            }
        }
    }

    /// See [`crate::boundary::DataHalf::return_unused`].
    pub(super) async fn return_unused(&self, server: ServerId) {
        let mut runs = Vec::new();
        for class in self.classes_of(server) {
            class.grants.size.set(1);
            class.grants.quiet_until.set(self.env.now() + SCARCE);
            runs.extend(self.returnable_tainted(&class));
            if class.grants.waiting.get() == 0 {
                runs.extend(class.pool.drain_zones(&self.leaving_zones(&class)));
                runs.extend(class.pool.drain_unused());
            }
        }
        let _transfer = Transfer::begin(&self.transfers);
        if let Err(fault) = self.rpc.return_space(server, to_wire(&runs)).await {
            self.rpc.log(&format!("cannot return space that other clients need: {fault}"));
        }
    }

    /// The zones of the class that drain.
    fn leaving_zones(&self, class: &Class) -> Vec<PagId> {
        let mut zones = self.zones_of(class);
        zones.retain(|&zone| self.disks.arrivals.is_leaving(zone));
        zones
    }

    /// Returns the blocks of zones that drain. Those that accepted bytes need are replaced by
    /// blocks of other zones before; if there are none, they stay: what was accepted has a place.
    pub(super) async fn leave_zones(self: &Rc<Self>) {
        for class in self.each_class() {
            let mut before = u64::MAX;
            loop {
                let zones = self.leaving_zones(&class);
                let mut runs = class.pool.drain_aside(|zone| zones.contains(&zone));
                runs.extend(class.pool.drain_zones(&zones));
                class.grants.note_returned(&runs);
                self.return_runs(class.server, runs).await;
                let stock: u64 = zones.into_iter().map(|zone| class.pool.stock(zone)).sum();
                let busy = class.grants.refilling.get();
                // A server that grants blocks there again has news for this client.
                if stock == 0 || busy || stock >= before {
                    break;
                }
                before = stock;
                // If there are no others, the next writer that needs more meets that.
                if self.refill(&class, stock, None).await.is_err() {
                    break;
                }
            }
        }
    }

    /// Called regularly: an idle client keeps at most one grant, one that writes keeps a grant of
    /// its current size and what its windows need.
    pub(super) async fn trim_pool(self: &Rc<Self>) {
        if self.any_out_of_service() {
            let this = self.clone();
            self.env.spawn(async move { this.leave_zones().await });
        }
        self.disks.devices().for_each(|device| device.give_room_back());
        for class in self.each_class() {
            if class.grants.is_expected() {
                continue;
            }
            class.grants.used_zones.take();
            if !self.allocation.delegated {
                let mut runs = self.returnable_tainted(&class);
                runs.extend(class.pool.drain_aside(|pag| self.disks.is_absent(class.server, pag)));
                runs.extend(class.pool.drain_free());
                class.grants.note_returned(&runs);
                self.return_runs(class.server, runs).await;
                continue;
            }
            let keep = if class.grants.used.replace(false) {
                class.grants.size.get() + class.wanted().full
            } else {
                class.grants.size.set(class.grants.chunk);
                // Only the class of all zones keeps blocks for the next writer.
                if class.zones.is_empty() { class.grants.chunk } else { 0 }
            };
            let mut runs = self.returnable_tainted(&class);
            runs.extend(class.pool.drain_aside(|pag| self.disks.is_absent(class.server, pag)));
            if class.pool.available() > keep {
                runs.extend(class.pool.drain(keep));
            }
            class.grants.note_returned(&runs);
            self.return_runs(class.server, runs).await;
        }
    }
}
