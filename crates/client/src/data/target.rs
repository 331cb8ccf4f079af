//! A data zone that is an object storage target (paper 001, section 3.1): a device that only its
//! server opens, and that this client reaches in a session.
//!
//! It is a [`DataDevice`] without an open file. Its flush is the target's *Sync*: what was answered
//! before is durable then. What the target may lose in a restart, the session keeps and replays, so
//! a restart loses no write and no stamp.
//!
//! Invariants:
//! - a request waits while the target is away, also if it never was there since the mount; the
//!   device counts as silent meanwhile, never as absent. Only a zone that the administrator calls
//!   lost fails at once;
//! - a session that was lost with answered changes loses all writes that no flush has covered:
//!   their files report it. A replay that the target refused loses those of files of the same
//!   metadata server: that one may have evicted this client, and the others have not;
//! - the bytes of a block are believed only with the right CRC32C.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::rc::{Rc, Weak};

use env::sync::Notify;
use env::{Env, IoBuf};
use proto::capability::Capability;
use proto::content::Content;
use proto::mds::PagInfo;
use proto::message::{Principal, Request};
use proto::ost::{IO_BLOCKS_MAX, ObjectRun, Op, OpReply, Ost, Push, PushReply};
use session::client::{
    Call, Config, Events, KeptLimits, ReadClientKeys, ReplayEntry, Session, Shared, result,
};
use types::limits::{BLOCK, BLOCK_U64};
use types::{ClientId, Duration, Epoch, Fault, PagId, ServerId, ShardId, Uuid, crc32c};

use super::device::{DataDevice, Watch};
use super::target_room::{Asking, Room, TargetRoom};
use crate::api::{DeviceLoad, TargetStatus};

/// Requests to one target that are kept until it has made them durable.
const KEPT_REQUESTS: usize = 4096;
/// Their bytes at all targets together.
const KEPT_BYTES: usize = 256 << 20;
/// Least and most of these for one target. A quarter is for what is sent while a commit runs.
const KEPT_EACH: (usize, usize) = (32 << 20, 128 << 20);
/// Pause between attempts to reach a target for the first time.
const AGAIN: Duration = Duration::from_secs(1);
/// How often bytes are sent or asked for again whose checksums are wrong on arrival.
const TRIES: u32 = 3;
/// Runs of an object that are asked for at once.
const RUNS: u32 = 256;

/// How this client meets targets.
#[derive(Clone, Default)]
pub struct TargetSettings {
    /// Name of the file system.
    pub fs_name: String,
    /// For people: "host, pid, mount point".
    pub description: String,
    /// Requested lease; `None`: the target's own.
    pub lease: Option<Duration>,
    /// Reads the keys for connections by TCP; `None`: there are none.
    pub keys: Option<ReadClientKeys>,
    /// How long after its last request a session asks what is durable; `None`: the target says so.
    pub ping: Option<Duration>,
}

/// What makes a device a target.
pub(super) struct TargetLink {
    settings: TargetSettings,
    fs: Uuid,
    shared: Rc<Shared>,
    log: Rc<dyn Fn(&str)>,
    session: RefCell<Option<Rc<Session<Ost>>>>,
    /// There is a session, or there will be none.
    opened: Notify,
    closed: Cell<bool>,
    /// Why there is no session yet.
    why: RefCell<String>,
    /// Writes and bytes that went to it.
    sent: Cell<(u64, u64)>,
    /// Free blocks that it keeps for this client.
    room: Rc<TargetRoom>,
    /// Targets of this client, this one included.
    targets: Rc<Cell<usize>>,
}

/// How all targets of a client are met.
#[derive(Clone)]
pub(super) struct Meeting {
    pub settings: TargetSettings,
    pub fs: Uuid,
    pub shared: Rc<Shared>,
    pub log: Rc<dyn Fn(&str)>,
    /// How many there are.
    pub targets: Rc<Cell<usize>>,
}

/// What is kept of the requests to one of so many targets.
fn kept(targets: usize) -> KeptLimits {
    let bytes = (KEPT_BYTES / targets.max(1)).clamp(KEPT_EACH.0, KEPT_EACH.1);
    KeptLimits { requests: KEPT_REQUESTS, bytes }
}

/// The address in what the server says of the zone.
fn address(path: &str) -> &str {
    path.strip_prefix("ost:").unwrap_or(path)
}

/// Who asks targets: they look at capabilities, not at users.
fn root() -> Principal {
    Principal { uid: 0, gid: 0, groups: Vec::new() }
}

/// The blocks that a read of an object found.
type Blocks<'a> = (&'a [ObjectRun], &'a [u8], &'a [u32]);

impl DataDevice {
    /// The target at `path`; it is met in a task of its own.
    pub fn new_target(
        env: &Env,
        (server, zone): (ServerId, &PagInfo),
        path: &str,
        watch: &Rc<Watch>,
        meeting: &Meeting,
    ) -> Rc<DataDevice> {
        let Meeting { settings, fs, shared, log, targets } = meeting.clone();
        targets.set(targets.get() + 1);
        let link = TargetLink {
            settings,
            fs,
            shared,
            log,
            session: RefCell::default(),
            opened: Notify::new(),
            closed: Cell::new(false),
            why: RefCell::default(),
            sent: Cell::default(),
            room: Rc::default(),
            targets,
        };
        let zones = (server, std::slice::from_ref(zone));
        let mut device = DataDevice::without_file(env, zones, path, watch);
        device.target = Some(link);
        let device = Rc::new(device);
        env.spawn(meet(env.clone(), Rc::downgrade(&device)));
        device
    }

    /// Is it a target?
    pub fn is_target(&self) -> bool {
        self.target.is_some()
    }

    fn link(&self) -> &TargetLink {
        self.target.as_ref().expect("it is a target")
    }

    /// The session, once there is one.
    async fn session(&self) -> Result<Rc<Session<Ost>>, Fault> {
        let link = self.link();
        loop {
            let opened = link.opened.notified();
            if link.closed.get() {
                return Err(Fault::Io);
            }
            if let Some(session) = link.session.borrow().clone() {
                return Ok(session);
            }
            if link.shared.caller_is_gone() {
                return Err(Fault::Interrupted);
            }
            opened.await;
        }
    }

    /// Asks the target for `op`, and waits for its answer.
    async fn ask(&self, op: Op) -> Result<OpReply, Fault> {
        let _request = self.begin_request();
        let session = self.session().await?;
        let reply = session.call(Call::one(root(), op)).await.map_err(|fault| match fault {
            Fault::Interrupted => fault,
            _ => Fault::Io,
        })?;
        result(&reply, 0).cloned()
    }

    /// Says that `what` failed at this target.
    fn report(&self, what: &str, fault: Fault) {
        let (zone, path) = (self.zone_names(), self.path());
        (self.link().log)(&format!("{zone}, target {}: {what}: {fault}", address(&path)));
    }

    /// Writes whole blocks `bytes` of `buf` from block `addr` of the object on, `fresh` of which
    /// take room that was taken for them. Returns the stamp of completion.
    ///
    /// # Errors
    /// `AccessDenied`: the capability is too old, or the client is fenced. `NoSpace`. Else `Io`.
    pub async fn write_object(
        &self,
        may: Capability,
        addr: u64,
        (buf, bytes, fresh): (Rc<IoBuf>, Range<usize>, u64),
    ) -> Result<u64, Fault> {
        let sums: Vec<u32> = buf[bytes.clone()].chunks(BLOCK).map(crc32c).collect();
        let link = self.link();
        let (writes, sent) = link.sent.get();
        link.sent.set((writes + 1, sent + bytes.len() as u64));
        for tries in 1.. {
            // What is kept until it is durable is counted by its length: not a small part of much.
            let data = match bytes.len() < buf.len() / 2 {
                true => Content::from(buf[bytes.clone()].to_vec()),
                false => Content::part(buf.clone(), bytes.clone()),
            };
            let sums = sums.clone();
            let room = link.room.statement(fresh);
            match self.ask(Op::Write { may, block: addr, data, sums, room }).await {
                Ok(_) => break,
                // A bit has changed on the way.
                Err(Fault::Corrupt) if tries < TRIES => {}
                // The last one was given up.
                Err(
                    fault @ (Fault::AccessDenied | Fault::NoSpace | Fault::Io | Fault::Interrupted),
                ) => return Err(fault),
                Err(fault) => {
                    self.report(&format!("object {}, write of block {addr}", may.object), fault);
                    return Err(Fault::Io);
                }
            }
        }
        Ok(self.flushes_begun())
    }

    /// Takes room for `blocks` blocks of zone `pag`; asks the target for more if there is not so
    /// much. `may` allows writes to some object.
    ///
    /// # Errors
    /// `NoSpace`: the target has none. `AccessDenied`: the capability is too old, or the client is
    /// fenced. `Interrupted`: the caller is gone. Else `Io`.
    pub async fn take_room(
        self: &Rc<Self>,
        may: Capability,
        pag: PagId,
        blocks: u64,
    ) -> Result<Room, Fault> {
        let link = self.link();
        loop {
            let answered = link.room.answered.notified();
            if let Some(room) = link.room.take(pag, blocks) {
                if let Some(asking) = link.room.ask_ahead() {
                    let this = self.clone();
                    // A refusal is no news: the next write asks itself.
                    self.env.spawn(async move { _ = this.ask_room(may, asking).await });
                }
                return Ok(room);
            }
            if let Some(asking) = link.room.ask(blocks) {
                self.ask_room(may, asking).await?;
                continue;
            }
            if link.closed.get() {
                return Err(Fault::Io);
            }
            if link.shared.caller_is_gone() {
                return Err(Fault::Interrupted);
            }
            answered.await;
        }
    }

    async fn ask_room(&self, may: Capability, asking: Asking) -> Result<(), Fault> {
        let Asking { said: room, needed, wanted, .. } = asking;
        match self.ask(Op::Reserve { may, room, needed, wanted }).await {
            Ok(OpReply::Room { blocks }) => asking.granted(blocks),
            Ok(_) => return Err(Fault::Protocol),
            Err(fault) => {
                if fault == Fault::NoSpace {
                    asking.refused();
                }
                return Err(fault);
            }
        }
        Ok(())
    }

    /// Ends when accepted bytes have spent some of their room, or need it no more.
    pub(super) fn room_freed(&self) -> impl Future<Output = ()> {
        self.link().room.freed.notified()
    }

    /// Have accepted bytes room at the target that is not spent?
    pub(super) fn has_room_taken(&self) -> bool {
        self.link().room.counts().1 > 0
    }

    /// Gives room back to the target that was not used for a while.
    pub(super) fn give_room_back(self: &Rc<Self>) {
        let Some(room) = self.target.as_ref().and_then(|link| link.room.give_back()) else {
            return;
        };
        let this = self.clone();
        // If it is lost, the next statement says the same.
        self.env.spawn(async move { _ = this.ask(Op::Hold { room }).await });
    }

    /// Makes blocks `[from, to)` of the object holes; `u64::MAX`: to the end. Returns the stamp of
    /// completion.
    ///
    /// # Errors
    /// As [`DataDevice::write_object`].
    pub async fn punch_object(&self, may: Capability, from: u64, to: u64) -> Result<u64, Fault> {
        match self.ask(Op::Punch { may, from, to }).await {
            Ok(_) => Ok(self.flushes_begun()),
            // The last one was given up.
            Err(
                fault @ (Fault::AccessDenied | Fault::NoSpace | Fault::Io | Fault::Interrupted),
            ) => Err(fault),
            Err(fault) => {
                self.report(&format!("object {}, holes from block {from} on", may.object), fault);
                Err(Fault::Io)
            }
        }
    }

    /// Fills `buf` from block `addr` of the object on; holes are zeros.
    ///
    /// # Errors
    /// `AccessDenied`: the capability is too old, or the client is fenced. `Interrupted`: the
    /// caller is gone. Else `Io`.
    pub async fn read_object(
        &self,
        may: Capability,
        addr: u64,
        buf: &mut [u8],
    ) -> Result<(), Fault> {
        let mut at = addr;
        for part in buf.chunks_mut(IO_BLOCKS_MAX as usize * BLOCK) {
            self.read_part(may, at, part).await?;
            at += u64::from(IO_BLOCKS_MAX);
        }
        Ok(())
    }

    async fn read_part(&self, may: Capability, addr: u64, buf: &mut [u8]) -> Result<(), Fault> {
        let len = (buf.len() / BLOCK) as u32;
        for tries in 1.. {
            let fault = match self.ask(Op::Read { may, block: addr, len }).await {
                Ok(OpReply::Data { runs, data, sums }) => {
                    match fill(buf, (&runs, &data, &sums)) {
                        Ok(()) => break,
                        // A bit has changed on the way.
                        Err((_, Fault::Corrupt)) if tries < TRIES => continue,
                        Err((block, fault)) => {
                            let block = addr + block;
                            self.report(&format!("object {}, block {block}", may.object), fault);
                            return Err(Fault::Io);
                        }
                    }
                }
                Ok(_) => Fault::Protocol,
                Err(fault @ (Fault::AccessDenied | Fault::Interrupted)) => return Err(fault),
                Err(fault) => fault,
            };
            match fault {
                Fault::Corrupt => self.report_damage(may, addr, len).await,
                _ => {
                    let what = format!("object {}, {len} blocks from {addr} on", may.object);
                    self.report(&what, fault);
                }
            }
            return Err(Fault::Io);
        }
        Ok(())
    }

    /// Says which block is damaged of those that the target could not read whole: the first one.
    async fn report_damage(&self, may: Capability, mut addr: u64, mut len: u32) {
        while len > 1 {
            let half = len / 2;
            match self.ask(Op::Read { may, block: addr, len: half }).await {
                Err(Fault::Corrupt) => len = half,
                // The other half has it.
                Ok(_) => (addr, len) = (addr + u64::from(half), len - half),
                Err(_) => break,
            }
        }
        let (zone, path, object) = (self.zone_names(), self.path(), may.object);
        let which = match len {
            1 => format!("block {addr} is damaged"),
            _ => format!("a block of {len} from {addr} on is damaged"),
        };
        let at = address(&path);
        (self.link().log)(&format!(
            "{zone}, target {at}: object {object}, {which}: its checksum is wrong"
        ));
    }

    /// Runs of blocks of the object from `from` on that hold something, in order, and whether there
    /// are none behind them.
    ///
    /// # Errors
    /// As [`DataDevice::read_object`].
    pub async fn object_runs(
        &self,
        may: Capability,
        from: u64,
    ) -> Result<(Vec<(u64, u64)>, bool), Fault> {
        match self.ask(Op::Runs { may, from, max: RUNS }).await? {
            OpReply::Runs { runs, end } => {
                let end = end || runs.is_empty();
                let ends = |run: ObjectRun| (run.block, run.block.saturating_add(run.len));
                Ok((runs.into_iter().map(ends).collect(), end))
            }
            _ => Err(Fault::Protocol),
        }
    }

    /// Makes everything durable that the target has answered so far.
    pub(super) async fn sync_target(&self) -> bool {
        let _request = self.begin_request();
        let Ok(session) = self.session().await else { return false };
        loop {
            match session.sync().await {
                // What the old session has lost, if anything, no flush covers any more.
                Err(Fault::Evicted) => {}
                synced => return synced.is_ok(),
            }
        }
    }

    /// What the session with the target is doing; `None`: it is no target.
    pub(super) fn target_status(&self) -> Option<TargetStatus> {
        let link = self.target.as_ref()?;
        let mut status = TargetStatus::default();
        address(&self.path()).clone_into(&mut status.address);
        link.why.borrow().clone_into(&mut status.why);
        if let Some(session) = &*link.session.borrow() {
            let (report, kept) = (session.report(), session.kept());
            status.connected = report.phase == "up";
            status.refused = report.refused;
            status.down = report.down;
            status.unanswered = report.unanswered;
            status.oldest_unanswered = report.oldest_unanswered;
            status.client = report.client;
            status.transno = kept.seen;
            status.last_committed = kept.last_committed;
            status.pinned_requests = kept.requests;
            status.pinned_bytes = kept.bytes as u64;
            status.evictions = report.evictions;
            (status.granted_blocks, status.taken_blocks) = link.room.counts();
        }
        Some(status)
    }

    /// What a target has been asked to write; `None`: it is no target.
    pub(super) fn target_load(&self) -> Option<DeviceLoad> {
        let (writes, bytes) = self.target.as_ref()?.sent.get();
        Some(DeviceLoad { writes, requests: writes, bytes, ..DeviceLoad::default() })
    }

    /// The caller of `operation` is gone: what it has not sent to the target fails.
    pub(super) fn give_up_operation(&self, operation: u64) {
        let Some(link) = &self.target else { return };
        let session = link.session.borrow().clone();
        match session {
            Some(session) => session.give_up(operation),
            None => link.opened.notify_all(),
        }
        link.room.wake_all();
    }

    /// A change as an operation of its own, which can be given up, and the operation's number.
    pub(super) fn begin_change<T>(
        &self,
        change: impl Future<Output = T> + 'static,
    ) -> (u64, impl Future<Output = T> + 'static) {
        let shared = self.link().shared.clone();
        let operation = shared.own_operation();
        let steps = async move {
            let mut change = pin!(change);
            poll_fn(|cx| shared.step(operation, || change.as_mut().poll(cx))).await
        };
        (operation, steps)
    }

    /// Nobody waits for the change that is this operation: what of it is not sent fails, and what
    /// is sent is not sent again.
    pub(super) fn retract_change(&self, operation: u64) {
        self.link().shared.note_gone(operation);
        if let Some(session) = self.link().session.borrow().clone() {
            session.retract(operation);
        }
        self.link().opened.notify_all();
    }

    /// The change that is this operation has ended.
    pub(super) fn change_ended(&self, operation: u64) {
        self.link().shared.operation_ended(operation);
    }

    /// What the target has answered and not made durable is lost: a restart does not get it again.
    pub(super) fn forget_kept(&self) {
        let session = self.target.as_ref().and_then(|link| link.session.borrow().clone());
        if let Some(session) = session {
            session.forget_kept();
        }
    }

    /// Ends the session: the target forgets this client.
    pub(super) async fn leave_target(&self) {
        let Some(link) = &self.target else { return };
        link.closed.set(true);
        let session = link.session.borrow().clone();
        if let Some(session) = session {
            session.close().await;
        }
        link.opened.notify_all();
        link.room.wake_all();
    }

    /// Ends the session without a goodbye.
    pub(super) fn abandon_target(&self) {
        let Some(link) = &self.target else { return };
        link.closed.set(true);
        if let Some(session) = link.session.take() {
            session.abandon();
        }
        link.opened.notify_all();
    }
}

/// Opens the session with a target, however long that takes.
async fn meet(env: Env, weak: Weak<DataDevice>) {
    loop {
        let Some(device) = weak.upgrade() else { return };
        let link = device.link();
        if link.closed.get() {
            return;
        }
        let (settings, shared, path) = (link.settings.clone(), link.shared.clone(), device.path());
        let mut config = Config {
            description: settings.description,
            lease: settings.lease,
            keys: settings.keys,
            kept: kept(link.targets.get()),
            ping: settings.ping,
            log: link.log.clone(),
            ..Config::new::<Ost>(vec![address(&path).to_owned()], &settings.fs_name)
        };
        config.expected.fs_uuid = link.fs;
        drop(device);
        let met = Session::<Ost>::open(env.clone(), config, shared).await;
        let Some(device) = weak.upgrade() else {
            if let Ok(session) = met {
                session.abandon();
            }
            return;
        };
        match met.map_err(|error| error.text).and_then(|session| device.adopt(session)) {
            Ok(()) => return,
            Err(why) => {
                let link = device.link();
                if link.why.replace(why.clone()) != why {
                    (link.log)(&format!(
                        "{}: {why}; what lies there waits until the target is back",
                        device.zone_names()
                    ));
                }
            }
        }
        drop(device);
        env.sleep(AGAIN).await;
    }
}

impl DataDevice {
    /// Uses this session from now on, if it is with the right target.
    fn adopt(self: &Rc<Self>, session: Rc<Session<Ost>>) -> Result<(), String> {
        let link = self.link();
        let expected = self.places()[0].info.uuid;
        let offered = session.offer().1.unwrap_or_default();
        if link.closed.get() || offered.uuid != expected {
            session.abandon();
            return Err(format!(
                "the target at {} has the UUID {}, and this zone's is {expected}",
                address(&self.path()),
                offered.uuid
            ));
        }
        let events: Rc<dyn Events<Ost>> = self.clone();
        session.set_events(Rc::downgrade(&events));
        *link.session.borrow_mut() = Some(session);
        if !std::mem::take(&mut *link.why.borrow_mut()).is_empty() {
            (link.log)(&format!("{} is there", self.zone_names()));
        }
        link.opened.notify_all();
        Ok(())
    }
}

impl Events<Ost> for DataDevice {
    fn absorb(&self, _: ServerId, _: &Request<Ost>, _: &proto::ost::Reply, _: u64) {}

    fn push(&self, _: ServerId, push: Push) -> Option<PushReply> {
        let session = self.link().session.borrow().clone();
        if let (Push::Short {}, Some(session)) = (push, session) {
            let room = self.link().room.give_all_back();
            // If it is lost, the next statement says the same.
            self.env
                .spawn(async move { _ = session.call(Call::one(root(), Op::Hold { room })).await });
        }
        None
    }

    fn reclaim(&self, _: ServerId, _: Epoch) -> Vec<Op> {
        vec![Op::Hold { room: self.link().room.statement_anew() }]
    }

    fn names_lost(&self, _: &Op) -> bool {
        false
    }

    fn not_repeated(&self, request: &Request<Ost>) {
        let shards = request.ops.iter().filter_map(Op::capability).map(Capability::shard);
        for shard in shards.collect::<BTreeSet<ShardId>>() {
            self.lose_unflushed_of(ServerId(u16::from(shard.0)));
        }
    }

    fn evicted(&self, _: ServerId, _: ClientId, lost: &[ReplayEntry<Ost>]) {
        self.link().room.forget();
        if !lost.is_empty() {
            self.lose_unflushed();
        }
    }
}

/// Puts the blocks of an answer into `buf`, and zeros between them.
///
/// # Errors
/// The block of the buffer that is wrong, and how.
fn fill(buf: &mut [u8], (runs, data, sums): Blocks<'_>) -> Result<(), (u64, Fault)> {
    let blocks = buf.len() as u64 / BLOCK_U64;
    let (mut end, mut data, mut sums) = (0, data, sums.iter());
    for run in runs {
        let malformed = (run.block, Fault::Protocol);
        let behind = run.block.checked_add(run.len).ok_or(malformed)?;
        if run.block < end || behind > blocks {
            return Err(malformed);
        }
        buf[end as usize * BLOCK..run.block as usize * BLOCK].fill(0);
        for block in run.block..behind {
            let (bytes, rest) = data.split_at_checked(BLOCK).ok_or((block, Fault::Protocol))?;
            if sums.next() != Some(&crc32c(bytes)) {
                return Err((block, Fault::Corrupt));
            }
            buf[block as usize * BLOCK..][..BLOCK].copy_from_slice(bytes);
            data = rest;
        }
        end = behind;
    }
    buf[end as usize * BLOCK..].fill(0);
    if data.is_empty() { Ok(()) } else { Err((end, Fault::Protocol)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_share_what_is_kept_and_each_has_some() {
        let mib = |targets| kept(targets).bytes >> 20;
        assert_eq!([0, 1, 2, 4, 8, 28].map(mib), [128, 128, 128, 64, 32, 32]);
    }

    #[test]
    fn answer_is_believed_only_with_right_sums_and_inside_the_read() {
        let block = |byte: u8| vec![byte; BLOCK];
        let data = [block(1), block(2)].concat();
        let sums: Vec<u32> = data.chunks(BLOCK).map(crc32c).collect();
        let run = |block, len| ObjectRun { block, len };
        let mut buf = vec![9; 4 * BLOCK];
        fill(&mut buf, (&[run(1, 1), run(3, 1)], &data, &sums)).unwrap();
        assert_eq!(buf, [block(0), block(1), block(0), block(2)].concat());
        fill(&mut buf, (&[], &[], &[])).unwrap();
        assert_eq!(buf, vec![0; 4 * BLOCK]);
        let mut bad = |runs: &[ObjectRun], data: &[u8], sums: &[u32]| {
            fill(&mut buf, (runs, data, sums)).unwrap_err().1
        };
        let mut flipped = data.clone();
        flipped[BLOCK + 17] ^= 4;
        assert_eq!(bad(&[run(0, 2)], &flipped, &sums), Fault::Corrupt);
        assert_eq!(bad(&[run(0, 2)], &data, &sums[..1]), Fault::Corrupt);
        assert_eq!(bad(&[run(0, 2)], &data[..BLOCK], &sums), Fault::Protocol);
        assert_eq!(bad(&[run(0, 1)], &data, &sums), Fault::Protocol);
        assert_eq!(bad(&[run(3, 2)], &data, &sums), Fault::Protocol);
        assert_eq!(bad(&[run(1, 1), run(0, 1)], &data, &sums), Fault::Protocol);
        assert_eq!(bad(&[run(2, u64::MAX)], &data, &sums), Fault::Protocol);
    }
}
