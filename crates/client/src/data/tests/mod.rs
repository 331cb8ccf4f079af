//! The content half against a scripted server, over simulated disks. Free blocks are full of
//! garbage that no reader may ever see.

mod away;
mod commits;
mod crash;
mod devices;
mod faults;
mod inline;
mod model;
mod moving;
mod objects;
mod parallel;
mod place;
mod placing;
mod pools;
mod queue;
mod room;
mod target;
mod units;
mod windows;
mod zones;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use env::sim::{SimDisk, SimOptions, SimRng, SimWorld};
use env::{Env, IoBuf};
use label::{Label, SliceKind};
use proto::capability;
use proto::commit::CommitPolicy;
use proto::mds::{
    BLOCK_ZONE, Edit, LayoutSlice, Leased, ObjectLayout, PagInfo, PagRun, TARGET_ZONE, ZoneList,
};
use proto::placement::object_place;
use proto::prealloc::{Allocation, Stream};
use proto::wire::Bytes;
use types::limits::{BLOCK, BLOCK_U64, PLACE_PIECES_MAX};
use types::{
    Attr, ClientId, Duration, Epoch, Fault, FileBlock, FileKind, Ino, Instant, ObjectId, PagBlock,
    PagId, Rights, Segment, SegmentState, ServerId, Timestamp, Uuid,
};

use self::target::Target;
use super::segments::{SegmentMap, from_wire_segment};
use super::{DataConfig, DataContext, File, TargetSettings};
use crate::boundary::{
    Commit, CommitsAndGrant, Granted, LocalFuture, Offer, PlaceRequest, Refusal, Rpc, SpaceRequest,
};

/// The server of the files.
pub const HOME: ServerId = ServerId(0);

/// What that server offers.
pub fn offer(client: ClientId, zones: &[PagInfo]) -> Vec<Offer> {
    vec![Offer { server: HOME, client, zones: zones.to_vec() }]
}

/// Fills free blocks; writers in these tests never write it.
pub const GARBAGE: u8 = 0xee;
pub const FS: Uuid = Uuid([7; 16]);

#[derive(Clone, Default)]
pub struct ServerFile {
    pub layout: SegmentMap,
    /// Block 0, if it is inline data.
    pub content: Vec<u8>,
    pub size: u64,
    pub mtime: Timestamp,
}

/// What the server has in its store.
#[derive(Clone, Default)]
pub struct ServerState {
    pub free: BTreeSet<(u16, u64)>,
    /// Not reusable before the freeing is durable.
    pub freed: BTreeSet<(u16, u64)>,
    pub pool: BTreeSet<(u16, u64)>,
    pub files: BTreeMap<Ino, ServerFile>,
}

impl ServerState {
    /// The zone for a grant.
    fn zone_for(&self, hint: Option<PagId>, unreachable: &[PagId]) -> Option<u16> {
        let mut free = self.free.iter().map(|(pag, _)| *pag);
        let hinted = free.clone().find(|&pag| hint == Some(PagId(pag)));
        let reachable = |pag: &u16| !unreachable.contains(&PagId(*pag));
        hinted.filter(reachable).or_else(|| free.find(reachable))
    }
}

/// A server with one client.
pub struct Server {
    env: Env,
    pub disks: Vec<SimDisk>,
    pub now: RefCell<ServerState>,
    pub durable: RefCell<ServerState>,
    pub rng: RefCell<SimRng>,
    pub grant_max: Cell<u64>,
    /// Refusals of the next commits.
    pub refusals: RefCell<VecDeque<Refusal>>,
    /// Does the client have handles of its files?
    pub open: Cell<bool>,
    pub frozen: Cell<bool>,
    /// Room for inline data in every slot; there are no blobs.
    pub inline_max: Cell<u32>,
    /// The layout of all files.
    pub placement: RefCell<String>,
    pub page: Cell<usize>,
    pub lease: Cell<Instant>,
    pub commits: Cell<u64>,
    /// Requests for blocks.
    pub grants: Cell<u64>,
    /// Of each request with commits: their number, and how many requests were in flight.
    pub compounds: RefCell<Vec<(usize, usize)>>,
    pub in_flight: Cell<usize>,
    /// The request with this number is not answered, nor are others that come before it.
    pub held: Cell<u64>,
    pub log: RefCell<Vec<String>>,
    /// Bytes that the client told the kernel to drop.
    pub voided: RefCell<Vec<(Ino, u64, u64)>>,
    /// Its data zones; `None`: it cannot be asked for them.
    pub zones: RefCell<Option<ZoneList>>,
    /// The places that it chose last for blocks of files.
    pub placed: RefCell<BTreeMap<(Ino, u64), (PagId, PagBlock)>>,
    /// The files lie in objects at these targets, if there are any.
    pub targets: Vec<Rc<Target>>,
    /// Blocks of a stripe unit, and how many targets a file has.
    pub stripe: (u64, u16),
    /// The epoch of the capabilities that it issues, and layouts that were asked for.
    pub epoch: Cell<u32>,
    pub layouts: Cell<u64>,
    /// Files and handles for which it is to choose no more.
    pub ended: RefCell<Vec<(Ino, Option<u64>)>>,
}

impl Server {
    async fn delay(&self) {
        let micros = self.rng.borrow_mut().below(3000);
        self.env.sleep(Duration::from_micros(micros)).await;
    }

    fn make_durable(&self) {
        let mut now = self.now.borrow_mut();
        let freed = std::mem::take(&mut now.freed);
        now.free.extend(freed);
        *self.durable.borrow_mut() = now.clone();
    }

    fn attr(&self, ino: Ino) -> Attr {
        let now = self.now.borrow();
        let file = now.files.get(&ino).cloned().unwrap_or_default();
        let mut blocks = file.layout.blocks() + u64::from(!file.content.is_empty());
        if !self.targets.is_empty() {
            blocks = file.size.div_ceil(BLOCK_U64);
        }
        Attr {
            ino,
            kind: FileKind::Regular,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: file.size,
            blocks,
            atime: Timestamp::default(),
            mtime: file.mtime,
            ctime: file.mtime,
            btime: Timestamp::default(),
            spread: false,
            version: 0,
        }
    }

    fn free_all(state: &mut ServerState, removed: Vec<(u64, super::segments::Mapped)>) {
        for (_, mapped) in removed {
            for block in mapped.addr..mapped.addr + mapped.len {
                assert!(state.freed.insert((mapped.pag.0, block)), "freed twice");
            }
        }
    }

    /// The data that an edit refers to is stable: no garbage is left.
    fn check_stable(&self, segment: &Segment) {
        let disk = self.disks[usize::from(segment.pag.0) - 1].stable_only();
        let bytes = disk.peek(segment.addr.0 * BLOCK_U64, segment.len as usize * BLOCK);
        assert!(!bytes.contains(&GARBAGE), "committed before it was stable: {segment:?}");
    }

    /// Inline data that is longer than the present one needs room in the slot.
    fn has_no_room_for(&self, commit: &Commit) -> bool {
        let mut there =
            self.now.borrow().files.get(&commit.ino).map_or(0, |file| file.content.len());
        commit.edits.iter().any(|edit| {
            match edit {
                Edit::Content { bytes } => {
                    let most = there.max(self.inline_max.get() as usize);
                    there = bytes.0.len();
                    return there > most;
                }
                Edit::Map { segment } if segment.file.0 == 0 => there = 0,
                Edit::Unmap { from, .. } if from.0 == 0 => there = 0,
                _ => {}
            }
            false
        })
    }

    fn apply(&self, commit: &Commit) {
        let mut now = self.now.borrow_mut();
        let state = &mut *now;
        let mut file = state.files.remove(&commit.ino).unwrap_or_default();
        assert!(self.targets.is_empty() || commit.edits.is_empty(), "{commit:?}");
        assert!(commit.edits.len() <= types::limits::COMMIT_EDITS_MAX);
        let contents = commit.edits.iter().filter(|edit| matches!(edit, Edit::Content { .. }));
        assert!(contents.count() <= 1, "only the newest inline data is sent");
        for edit in &commit.edits {
            match edit {
                Edit::Map { segment } => {
                    for block in segment.addr.0..segment.addr.0 + segment.len {
                        let own = state.pool.remove(&(segment.pag.0, block));
                        assert!(own, "block {block} of {} is not the client's", segment.pag);
                    }
                    if segment.state == SegmentState::Written {
                        self.check_stable(segment);
                    }
                    let removed = file.layout.remove(segment.file.0, segment.end());
                    Self::free_all(state, removed);
                    if segment.file.0 == 0 {
                        file.content.clear();
                    }
                    file.layout.insert(segment.file.0, from_wire_segment(segment, false));
                }
                Edit::Unmap { from, to } => {
                    let removed = file.layout.remove(from.0, *to);
                    Self::free_all(state, removed);
                    if from.0 == 0 {
                        file.content.clear();
                    }
                }
                Edit::Written { from, len } => {
                    for piece in file.layout.pieces(from.0, from.0 + len) {
                        let mapped = piece.mapped.expect("only mapped blocks can hold data");
                        self.check_stable(&super::segments::to_wire_segment(piece.from, &mapped));
                    }
                    file.layout.set_written(from.0, from.0 + len, true);
                }
                Edit::Content { bytes } => {
                    assert!(!commit.merge && !bytes.0.is_empty(), "{bytes:?}");
                    let removed = file.layout.remove(0, 1);
                    Self::free_all(state, removed);
                    file.content = bytes.0.clone();
                    file.size = file.size.max(bytes.0.len() as u64);
                }
            }
        }
        file.size = commit.size.unwrap_or(file.size);
        file.content.truncate(file.size as usize);
        file.mtime = commit.mtime.unwrap_or(file.mtime);
        state.files.insert(commit.ino, file);
    }
}

impl Rpc for Server {
    fn server_of(&self, ino: Ino) -> ServerId {
        ServerId(u16::from(ino.shard().0))
    }

    fn space(&self, asked: SpaceRequest) -> LocalFuture<'_, Result<Granted, Fault>> {
        let SpaceRequest { server, hint, blocks, unreachable } = asked;
        assert_eq!(server, HOME, "the other server grants none");
        Box::pin(async move {
            self.grants.set(self.grants.get() + 1);
            self.delay().await;
            let mut runs: Vec<PagRun> = Vec::new();
            let leaving = self.zones.borrow().as_ref().map(|list| list.leaving.clone());
            let unreachable = [unreachable, leaving.unwrap_or_default()].concat();
            {
                let mut now = self.now.borrow_mut();
                let zone = now.zone_for(hint, &unreachable);
                for _ in 0..blocks.min(self.grant_max.get()) {
                    let mut free = now.free.iter().copied();
                    let of_zone = free.find(|(pag, _)| Some(*pag) == zone);
                    let Some((pag, block)) = of_zone else { break };
                    now.free.remove(&(pag, block));
                    now.pool.insert((pag, block));
                    match runs.last_mut() {
                        Some(run) if run.pag.0 == pag && run.addr.0 + run.len == block => {
                            run.len += 1;
                        }
                        _ => {
                            let addr = PagBlock(block);
                            runs.push(PagRun { pag: PagId(pag), addr, len: 1 });
                        }
                    }
                }
            }
            self.make_durable();
            let now = self.now.borrow();
            let of_zone =
                |(pag, _): &&(u16, u64)| runs.first().is_some_and(|run| run.pag.0 == *pag);
            let left = now.free.iter().filter(of_zone).count() as u64;
            if runs.is_empty() { Err(Fault::NoSpace) } else { Ok(Granted { runs, left }) }
        })
    }

    /// Chooses places from the end of the zone, in the wrong direction: each is a run of its own.
    fn place(&self, asked: PlaceRequest) -> LocalFuture<'_, Result<Granted, Fault>> {
        Box::pin(async move {
            self.delay().await;
            let leaving = self.zones.borrow().as_ref().map(|list| list.leaving.clone());
            let unreachable = [asked.unreachable, leaving.unwrap_or_default()].concat();
            let mut runs: Vec<PagRun> = Vec::new();
            {
                let mut now = self.now.borrow_mut();
                let zone = now.zone_for(asked.hint, &unreachable);
                let blocks = asked.pieces.iter().flat_map(|piece| {
                    (piece.block.0..piece.block.0 + piece.len).map(|block| (asked.ino, block))
                });
                for (ino, block) in blocks {
                    let mut free = now.free.iter().rev().copied();
                    let Some((pag, addr)) = free.find(|(pag, _)| Some(*pag) == zone) else { break };
                    if runs.len() >= PLACE_PIECES_MAX {
                        break;
                    }
                    now.free.remove(&(pag, addr));
                    now.pool.insert((pag, addr));
                    let (addr, pag) = (PagBlock(addr), PagId(pag));
                    runs.push(PagRun { pag, addr, len: 1 });
                    self.placed.borrow_mut().insert((ino, block), (pag, addr));
                }
            }
            self.make_durable();
            let left = self.now.borrow().free.len() as u64;
            if runs.is_empty() { Err(Fault::NoSpace) } else { Ok(Granted { runs, left }) }
        })
    }

    fn end_placing(&self, ino: Ino, handle: Option<u64>) -> LocalFuture<'_, Result<(), Fault>> {
        self.ended.borrow_mut().push((ino, handle));
        Box::pin(async { Ok(()) })
    }

    fn return_space(&self, _: ServerId, runs: Vec<PagRun>) -> LocalFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            self.delay().await;
            let mut now = self.now.borrow_mut();
            for run in runs {
                for block in run.addr.0..run.addr.0 + run.len {
                    assert!(
                        now.pool.remove(&(run.pag.0, block)),
                        "returned a block that is not in its pool"
                    );
                    now.free.insert((run.pag.0, block));
                }
            }
            Ok(())
        })
    }

    fn zones(&self, _: ServerId) -> LocalFuture<'_, Result<ZoneList, Fault>> {
        Box::pin(async move {
            self.delay().await;
            self.zones.borrow().clone().ok_or(Fault::Unsupported)
        })
    }

    fn layout(&self, ino: Ino, from: FileBlock) -> LocalFuture<'_, Result<LayoutSlice, Fault>> {
        Box::pin(async move {
            self.delay().await;
            self.layouts.set(self.layouts.get() + 1);
            Ok(self.part(ino, from))
        })
    }

    fn sync(&self, _: ServerId) -> LocalFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            let none = self.commit(Vec::new(), true).await;
            none.into_iter()
                .try_for_each(|answer| answer.map(drop).map_err(|refusal| refusal.fault))
        })
    }

    fn commit(
        &self,
        commits: Vec<Commit>,
        sync: bool,
    ) -> LocalFuture<'_, Vec<Result<Leased, Refusal>>> {
        Box::pin(async move {
            self.in_flight.set(self.in_flight.get() + 1);
            self.compounds.borrow_mut().push((commits.len(), self.in_flight.get()));
            self.delay().await;
            self.commits.set(self.commits.get() + 1);
            let number = self.commits.get();
            while number <= self.held.get() {
                self.env.sleep(Duration::from_millis(1)).await;
            }
            let mut results = Vec::new();
            for commit in &commits {
                if let Some(refusal) = self.refusals.borrow_mut().pop_front() {
                    if refusal.done > 0 {
                        let edits = commit.edits[..refusal.done].to_vec();
                        let size = commit.size.max(Some(self.attr(commit.ino).size));
                        self.apply(&Commit { edits, size, mtime: None, ctime: None, ..*commit });
                    }
                    results.push(Err(refusal));
                    continue;
                }
                if self.has_no_room_for(commit) {
                    results.push(Err(Fault::NoSpace.into()));
                    continue;
                }
                self.apply(commit);
                let attr = self.attr(commit.ino);
                results.push(Ok(Leased { attr, rights: Rights::DATA_X, seq: 1 }));
            }
            if sync {
                self.make_durable();
            }
            self.delay().await;
            self.in_flight.set(self.in_flight.get() - 1);
            results
        })
    }

    fn commit_and_refill(
        &self,
        commits: Vec<Commit>,
        sync: bool,
        refill: SpaceRequest,
    ) -> LocalFuture<'_, CommitsAndGrant> {
        Box::pin(async move {
            let answers = self.commit(commits, sync).await;
            if answers.iter().any(Result::is_err) {
                return (answers, None);
            }
            let granted = self.space(refill).await;
            (answers, Some(granted))
        })
    }

    fn load(&self) -> u16 {
        0
    }

    fn lease_ends(&self, _: ServerId) -> Instant {
        self.lease.get()
    }

    fn require_epoch(&self, _: ServerId, _: Epoch) {}

    fn wait_lease(&self, _: ServerId) -> LocalFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            while self.env.now() >= self.lease.get() {
                self.env.sleep(Duration::from_millis(10)).await;
            }
            Ok(())
        })
    }

    fn time(&self) -> Timestamp {
        self.env.wall()
    }

    fn log(&self, text: &str) {
        self.log.borrow_mut().push(text.to_owned());
    }

    fn attr(&self, ino: Ino) -> Option<Attr> {
        Some(Server::attr(self, ino))
    }

    fn inval_pages(&self, ino: Ino, from: u64, to: u64) {
        self.voided.borrow_mut().push((ino, from, to));
    }

    fn is_open(&self, _: Ino) -> bool {
        self.open.get()
    }
}

impl Server {
    /// A part of a layout, a few segments long.
    pub fn part(&self, ino: Ino, from: FileBlock) -> LayoutSlice {
        let now = self.now.borrow();
        let all = now.files.get(&ino).map(|file| file.layout.to_segments()).unwrap_or_default();
        let tail: Vec<Segment> =
            all.iter().filter_map(|segment| segment.slice(from.0, u64::MAX)).collect();
        let page = self.page.get();
        let to = if tail.len() > page { tail[page].file.0 } else { u64::MAX };
        let segments = tail.into_iter().take(page).collect();
        let content = now.files.get(&ino).map(|file| file.content.clone()).unwrap_or_default();
        let content = Bytes(if from.0 == 0 { content } else { Vec::new() });
        let inline_max = self.inline_max.get();
        let placement = Bytes(self.placement.borrow().clone().into_bytes());
        let frozen = self.frozen.get();
        let object = self.object(ino);
        LayoutSlice { from, to, segments, frozen, content, inline_max, placement, object }
    }

    /// The object of a file: it has the file's number.
    fn object(&self, ino: Ino) -> Option<ObjectLayout> {
        let (key, object) = (&self.targets.first()?.key, ObjectId(ino.0));
        let (part, width) = self.stripe;
        let rights = capability::READ | capability::WRITE;
        let may = key.issue(object, ClientId(5), rights, Epoch(self.epoch.get()));
        // Files begin at different targets.
        let all = self.targets.len() as u64;
        let nth =
            |n: u16| PagId(self.disks.len() as u16 + 1 + ((ino.0 + u64::from(n)) % all) as u16);
        Some(ObjectLayout { object, part, targets: (0..width).map(nth).collect(), may })
    }

    /// The bytes of a file as a new client would read them.
    pub fn seen(&self, ino: Ino) -> Vec<u8> {
        let now = self.now.borrow();
        match self.targets.is_empty() {
            true => Server::content(&now, &self.disks, ino),
            false => {
                let blocks = |target: &Target| target.now.borrow().0.clone();
                self.in_objects(now.files.get(&ino).map_or(0, |file| file.size), ino, blocks)
            }
        }
    }

    /// The bytes of a file of this size in the blocks of its targets.
    pub fn in_objects(
        &self,
        size: u64,
        ino: Ino,
        blocks: impl Fn(&Target) -> BTreeMap<(ObjectId, u64), Vec<u8>>,
    ) -> Vec<u8> {
        let layout = self.object(ino).expect("an object file");
        let all: Vec<_> = self.targets.iter().map(|target| blocks(target)).collect();
        let mut out = Vec::new();
        for at in 0..size.div_ceil(BLOCK_U64) {
            let (nth, block, _) = object_place(at, layout.part, layout.targets.len());
            let target = usize::from(layout.targets[nth].0) - 1 - self.disks.len();
            match all[target].get(&(layout.object, block)) {
                Some(bytes) => out.extend_from_slice(bytes),
                None => out.extend_from_slice(&[0; BLOCK]),
            }
        }
        out.truncate(size as usize);
        out
    }

    /// The bytes of a file as a new client would read them.
    pub fn content(state: &ServerState, disks: &[SimDisk], ino: Ino) -> Vec<u8> {
        let file = state.files.get(&ino).cloned().unwrap_or_default();
        let mut out = vec![0u8; file.size as usize];
        out[..file.content.len()].copy_from_slice(&file.content);
        for segment in file.layout.to_segments() {
            if segment.state != SegmentState::Written {
                continue;
            }
            let disk = &disks[usize::from(segment.pag.0) - 1];
            let bytes = disk.peek(segment.addr.0 * BLOCK_U64, segment.len as usize * BLOCK);
            let start = (segment.file.0 * BLOCK_U64) as usize;
            for (index, byte) in bytes.into_iter().enumerate() {
                if let Some(slot) = out.get_mut(start + index) {
                    *slot = byte;
                }
            }
        }
        out
    }

    /// Every block is free, freed, in the pool or in one file.
    pub fn check_ownership(&self, blocks_each: u64) {
        let now = self.now.borrow();
        let mut seen: BTreeSet<(u16, u64)> = BTreeSet::new();
        let mut count = |set: &BTreeSet<(u16, u64)>| {
            for &block in set {
                assert!(seen.insert(block), "{block:?} has two owners");
            }
        };
        count(&now.free);
        count(&now.freed);
        count(&now.pool);
        let mut files = BTreeSet::new();
        for file in now.files.values() {
            for segment in file.layout.to_segments() {
                for block in segment.addr.0..segment.addr.0 + segment.len {
                    assert!(files.insert((segment.pag.0, block)), "in two files");
                }
            }
        }
        count(&files);
        assert_eq!(seen.len() as u64, self.disks.len() as u64 * (blocks_each - 1));
    }
}

/// A client, its server and disks.
pub struct Rig {
    pub env: Env,
    pub server: Rc<Server>,
    pub ctx: Rc<DataContext>,
}

#[derive(Clone, Copy)]
pub struct Setup {
    pub disks: u16,
    pub blocks: u64,
    pub dirty_max: usize,
    pub grant_max: u64,
    pub inline_max: u32,
    pub allocation: Allocation,
    pub commit: CommitPolicy,
    /// Files lie in objects, at so many targets.
    pub targets: u16,
    /// See [`Server::stripe`].
    pub stripe: (u64, u16),
    /// See [`TargetSettings::ping`].
    pub target_ping: Option<Duration>,
}

impl Setup {
    /// As this, but the server chooses the places.
    pub fn undelegated(self) -> Setup {
        Setup { allocation: Allocation { delegated: false, ..self.allocation }, ..self }
    }
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            disks: 2,
            blocks: 2048,
            dirty_max: 8 << 20,
            grant_max: 512,
            inline_max: 0,
            allocation: Allocation::default(),
            commit: CommitPolicy::default(),
            targets: 0,
            stripe: (2, 1),
            target_ping: None,
        }
    }
}

fn label(pag: u16, blocks: u64) -> Label {
    let kind = SliceKind::Data { pag: PagId(pag) };
    Label::single(FS, "test", Uuid([pag as u8; 16]), blocks + 1, kind)
}

fn info(pag: u16, blocks: u64) -> PagInfo {
    let uuid = Uuid([pag as u8; 16]);
    PagInfo {
        id: PagId(pag),
        uuid,
        device: uuid,
        blocks,
        kind: BLOCK_ZONE,
        path: format!("data{pag}"),
    }
}

impl Rig {
    pub async fn new(world: &SimWorld, env: Env, seed: u64, setup: Setup) -> Rig {
        let mut disks = Vec::new();
        let mut state = ServerState::default();
        let mut pags = Vec::new();
        for pag in 1..=setup.disks {
            let disk = SimDisk::new((setup.blocks + 1) * BLOCK_U64);
            disk.poke(0, &vec![GARBAGE; setup.blocks as usize * BLOCK]);
            label::put(&disk, &label(pag, setup.blocks));
            world.attach(&format!("data{pag}"), &disk);
            disks.push(disk);
            state.free.extend((1..setup.blocks).map(|block| (pag, block)));
            pags.push(info(pag, setup.blocks));
        }
        let mut targets = Vec::new();
        for number in 1..=setup.targets {
            let target = Target::new(world, number, seed);
            target.start();
            let (uuid, path) = (Target::uuid(number), target.address());
            let id = setup.disks + number;
            pags.push(PagInfo { uuid, device: uuid, kind: TARGET_ZONE, path, ..info(id, 1 << 30) });
            targets.push(target);
        }
        let server = Rc::new(Server {
            env: env.clone(),
            targets,
            stripe: setup.stripe,
            epoch: Cell::new(1),
            layouts: Cell::new(0),
            disks,
            now: RefCell::new(state.clone()),
            durable: RefCell::new(state),
            rng: RefCell::new(SimRng::new(seed)),
            grant_max: Cell::new(setup.grant_max),
            refusals: RefCell::default(),
            open: Cell::new(true),
            frozen: Cell::new(false),
            inline_max: Cell::new(setup.inline_max),
            placement: RefCell::default(),
            page: Cell::new(3),
            lease: Cell::new(Instant::FAR),
            commits: Cell::new(0),
            grants: Cell::new(0),
            compounds: RefCell::default(),
            in_flight: Cell::new(0),
            held: Cell::new(0),
            log: RefCell::default(),
            voided: RefCell::default(),
            zones: RefCell::default(),
            placed: RefCell::default(),
            ended: RefCell::default(),
        });
        let config = DataConfig {
            devices: Vec::new(),
            dirty_max: setup.dirty_max,
            read_only: false,
            allocation: setup.allocation,
            commit: setup.commit,
            on_edit: None,
            waits: Rc::default(),
            targets: TargetSettings {
                fs_name: "test".into(),
                ping: setup.target_ping,
                ..TargetSettings::default()
            },
        };
        let ctx =
            DataContext::open(env.clone(), config, FS, offer(ClientId(5), &pags), server.clone())
                .await
                .expect("the devices are in order");
        Rig { env, server, ctx }
    }

    /// A file on which the client has all rights, as the server knows it.
    pub fn file(&self, ino: u64) -> Rc<File> {
        let ino = Ino(ino);
        let file = File::new(&self.ctx, ino, &self.server.attr(ino));
        self.acquire(&file);
        file
    }

    pub fn acquire(&self, file: &Rc<File>) {
        let rights = Rights::DATA_X | Rights::DATA_S;
        let part = self.server.part(file.ino, FileBlock(0));
        file.rights_acquired(rights, &self.server.attr(file.ino), Some(part));
    }

    pub async fn write(&self, file: &Rc<File>, offset: u64, bytes: &[u8]) -> Result<u32, Fault> {
        let data = IoBuf::copy_of(bytes);
        file.write(Some(offset), data, bytes.len(), process_at(offset)).await.map(|(_, len)| len)
    }

    /// Commits and returns everything; nothing may be lost on the way.
    pub async fn finish(&self, blocks_each: u64) {
        self.ctx.sync_all().await.expect("all is well");
        assert_eq!(self.ctx.dirty_bytes(), 0);
        self.ctx.return_pool().await;
        assert_eq!(self.server.now.borrow().pool.len(), 0, "the pool was returned");
        self.server.check_ownership(blocks_each);
    }
}

/// Files that still wait for their commit at the end would keep the context, and with it the disks
/// of their world, in memory.
struct Unqueued(Rc<DataContext>);

impl Drop for Unqueued {
    fn drop(&mut self) {
        self.0.release_files();
    }
}

/// Runs `main` in a world of its own.
pub fn run<F: Future<Output = ()>>(seed: u64, setup: Setup, main: impl FnOnce(Rig) -> F) {
    // Odd seeds: tasks run in any order, and devices are slow.
    let mut options = SimOptions { shuffle_tasks: seed % 2 == 1, ..SimOptions::default() };
    if seed % 2 == 1 {
        options.disk_latency = Duration::from_micros(20)..=Duration::from_millis(8);
        options.flush_latency = Duration::from_micros(100)..=Duration::from_millis(20);
    }
    let world = SimWorld::with_options(seed, options);
    let inner = world.clone();
    world.run(|env| async move {
        let rig = Rig::new(&inner, env, seed, setup).await;
        let _unqueued = Unqueued(rig.ctx.clone());
        main(rig).await;
    });
}

/// Parts of a file have writers of their own.
pub fn process_at(offset: u64) -> Option<Stream> {
    Some(Stream { client: ClientId(5), handle: 1, process: (offset >> 20) as u32 % 3 })
}
