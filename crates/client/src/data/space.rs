//! Space for accepted bytes: reservations out of the pool, and the pool's grants.
//!
//! Invariants: one grant is asked for at a time; writers that wait are served in
//! turn; a grant that arrives is kept even if whoever asked is gone; before a
//! writer hears `NoSpace`, everything of this client that would free blocks has
//! been committed. What others need is given to them when the server asks, but for what a
//! writer here waits to complete: so of two that wait neither takes from the other for ever.

use std::cell::Cell;
use std::rc::Rc;

use env::sync::{AsyncMutex, Notify};
use types::limits::GRANT_BLOCKS;
use types::{Duration, Fault, Instant};

use super::commit::DataContext;
use super::pool::{Reserved, Run, to_wire};

/// Largest number of blocks asked for ahead: 256 MiB.
const ASK_MAX: u64 = 16 * GRANT_BLOCKS;
/// How often the server is asked before a writer hears `NoSpace`.
const TRIES: u32 = 4;
/// Between two of these: the server frees blocks in the background.
const PAUSE: Duration = Duration::from_millis(50);
/// After `NoSpace`, for so long the server is asked less often before the next.
const SCARCE: Duration = Duration::from_millis(500);

/// How the pool is filled.
pub(super) struct Space {
    turn: AsyncMutex,
    waiting: Cell<usize>,
    refilling: Cell<bool>,
    granted: Notify,
    /// Blocks asked for at a time; doubles when a writer had to wait.
    ask: Cell<u64>,
    /// A writer heard `NoSpace` lately.
    scarce_until: Cell<Instant>,
    /// Nothing is asked for ahead.
    quiet_until: Cell<Instant>,
    /// Reservations since the last look.
    used: Cell<bool>,
    /// How often blocks are on their way between the server and the pool now, and how often that
    /// has begun or ended.
    moving: Cell<usize>,
    moves: Cell<u64>,
    at_rest: Notify,
}

/// Blocks are on their way between the server and the pool.
struct Moving<'a>(&'a Space);

impl Moving<'_> {
    fn begin(space: &Space) -> Moving<'_> {
        space.moving.set(space.moving.get() + 1);
        space.moves.set(space.moves.get() + 1);
        Moving(space)
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.moving.set(self.0.moving.get() - 1);
        self.0.moves.set(self.0.moves.get() + 1);
        self.0.at_rest.notify_all();
    }
}

impl Default for Space {
    fn default() -> Space {
        Space {
            turn: AsyncMutex::new(),
            waiting: Cell::new(0),
            refilling: Cell::new(false),
            granted: Notify::new(),
            ask: Cell::new(GRANT_BLOCKS),
            scarce_until: Cell::new(Instant::default()),
            quiet_until: Cell::new(Instant::default()),
            used: Cell::new(false),
            moving: Cell::new(0),
            moves: Cell::new(0),
            at_rest: Notify::new(),
        }
    }
}

struct Waiting<'a>(&'a Cell<usize>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl DataContext {
    /// Reserves `blocks` of the pool. Fails `NoSpace`, `Evicted`.
    pub(super) async fn reserve(self: &Rc<Self>, blocks: u64) -> Result<Reserved, Fault> {
        let space = &self.space;
        if space.waiting.get() == 0
            && let Some(reserved) = self.pool.reserve(blocks)
        {
            space.used.set(true);
            self.prefetch();
            return Ok(reserved);
        }
        space.waiting.set(space.waiting.get() + 1);
        let _waiting = Waiting(&space.waiting);
        let _turn = space.turn.lock().await;
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
            let lack = blocks.saturating_sub(self.pool.available());
            let ask = if tries == 0 { space.ask.get().max(lack) } else { lack };
            if tries == 0 && space.used.get() {
                space.ask.set((space.ask.get() * 2).min(ASK_MAX));
            }
            let this = self.clone();
            let refill = self.env.spawn_join(async move { this.refill(ask).await });
            match refill.await {
                Ok(()) => {}
                Err(Fault::NoSpace) => {
                    tries += 1;
                    let scarce = self.env.now() < space.scarce_until.get();
                    if tries >= TRIES || scarce && tries > 2 {
                        space.scarce_until.set(self.env.now() + SCARCE);
                        return Err(Fault::NoSpace);
                    }
                    self.relieve(tries).await;
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Has a writer heard lately that there is no block, and are there none here?
    pub(super) fn is_scarce(&self) -> bool {
        self.pool.available() == 0 && self.env.now() < self.space.scarce_until.get()
    }

    /// Asks for a grant ahead if the pool runs low.
    fn prefetch(self: &Rc<Self>) {
        let space = &self.space;
        let low = self.pool.available() < space.ask.get();
        if low && !space.refilling.get() && self.env.now() >= space.quiet_until.get() {
            let this = self.clone();
            let ask = space.ask.get();
            space.refilling.set(true);
            self.env.spawn(async move {
                if this.refill(ask).await == Err(Fault::NoSpace) {
                    this.space.quiet_until.set(this.env.now() + SCARCE);
                }
            });
        }
    }

    async fn refill(self: &Rc<Self>, blocks: u64) -> Result<(), Fault> {
        self.space.refilling.set(true);
        let moving = Moving::begin(&self.space);
        let result = self.rpc.space(None, blocks).await;
        self.space.refilling.set(false);
        let result = result.and_then(|runs| {
            let granted: u64 = runs.iter().map(|run| run.len).sum();
            self.pool.grant(&runs);
            // The server gives less when space is scarce: then less is kept here too.
            if granted < blocks {
                self.space.ask.set(self.space.ask.get().min(granted.max(1)));
            }
            if granted == 0 { Err(Fault::NoSpace) } else { Ok(()) }
        });
        drop(moving);
        self.space.granted.notify_all();
        result
    }

    /// Frees what this client can: its own truncations take effect.
    async fn relieve(self: &Rc<Self>, tries: u32) {
        if tries == 1 {
            // Their own errors reach those who wrote; here only the space counts.
            let _ = self.sync_all().await;
            self.return_runs(self.harmless()).await;
            let _ = self.rpc.commit(Vec::new(), true).await;
        } else {
            self.env.sleep(PAUSE * tries).await;
        }
    }

    /// Tainted blocks that no write of ours can reach any more.
    fn harmless(&self) -> Vec<Run> {
        if self.writes_in_flight() > 0 { Vec::new() } else { self.pool.drain_tainted() }
    }

    async fn return_runs(&self, runs: Vec<Run>) {
        let _moving = (!runs.is_empty()).then(|| Moving::begin(&self.space));
        if !runs.is_empty()
            && let Err(fault) = self.rpc.return_space(to_wire(&runs)).await
        {
            self.rpc.log(&format!("unused space could not be given back: {fault}"));
        }
    }

    /// Blocks that the server has given to this client, and that it keeps neither in a file nor for
    /// accepted bytes.
    pub fn unused_blocks(&self) -> u64 {
        self.pool.available() + self.pool.tainted()
    }

    /// Is no block on its way between the server and the pool?
    pub fn is_pool_at_rest(&self) -> bool {
        self.space.moving.get() == 0
    }

    /// Rises whenever blocks begin or end their way between the server and the pool.
    pub fn pool_moves(&self) -> u64 {
        self.space.moves.get()
    }

    /// Ends when no block is on its way between the server and the pool.
    pub async fn pool_at_rest(&self) {
        loop {
            let notified = self.space.at_rest.notified();
            if self.is_pool_at_rest() {
                return;
            }
            notified.await;
        }
    }

    /// The session is lost: what was granted is gone.
    pub(super) fn forget_space(&self) {
        self.space.moves.set(self.space.moves.get() + 1);
        self.pool.forget();
        self.space.ask.set(GRANT_BLOCKS);
        self.space.scarce_until.set(Instant::default());
        self.space.quiet_until.set(Instant::default());
        self.space.granted.notify_all();
    }

    /// Gives the pool back (unmount, idle). Blocks reserved for accepted bytes stay.
    pub async fn return_pool(&self) {
        // A grant under way would come to a pool that nobody returns.
        loop {
            let granted = self.space.granted.notified();
            if !self.space.refilling.get() {
                break;
            }
            granted.await;
        }
        let _moving = Moving::begin(&self.space);
        let runs = self.pool.drain(0);
        if !runs.is_empty()
            && let Err(fault) = self.rpc.return_space(to_wire(&runs)).await
        {
            self.rpc.log(&format!("the space pool could not be given back: {fault}"));
        }
    }

    /// The server has no space left for another client: it gets what is neither reserved nor waited
    /// for.
    pub async fn give_unused(&self) {
        self.space.ask.set(1);
        self.space.quiet_until.set(self.env.now() + SCARCE);
        let mut runs = self.harmless();
        if self.space.waiting.get() == 0 {
            runs.extend(self.pool.drain_unused());
        }
        let _moving = Moving::begin(&self.space);
        if let Err(fault) = self.rpc.return_space(to_wire(&runs)).await {
            self.rpc.log(&format!("space that others need could not be given back: {fault}"));
        }
    }

    /// Called now and then: a client that writes nothing keeps no more than one grant,
    /// one that writes no more than two of those it asks for now.
    pub(super) async fn trim_pool(&self) {
        if self.space.refilling.get() {
            return;
        }
        let keep = if self.space.used.replace(false) {
            2 * self.space.ask.get()
        } else {
            self.space.ask.set(GRANT_BLOCKS);
            GRANT_BLOCKS
        };
        let mut runs = self.harmless();
        if self.pool.available() > keep {
            runs.extend(self.pool.drain(keep));
        }
        self.return_runs(runs).await;
    }
}
