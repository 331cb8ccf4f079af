//! DURABLE, at the moment at which it could break: what was acknowledged as durable is durable,
//! and so is what one client has seen of another's work.
//!
//! The checker follows the log on the metadata device write by write and flush by flush,
//! independent of what the server reports:
//! - no answer of the server announces more of the log as durable than the device would keep in a
//!   power cut at that moment. No answer to a request with durability leaves before its transaction
//!   is durable;
//! - no server begins with less of the log than any earlier one announced as durable, nor with a
//!   log that is not stable itself;
//! - an answer may show a name or attributes to an application, also by ENOENT or EEXIST. Then
//!   other clients' changes of them from before the call are durable, whichever client or server
//!   dies next;
//! - when `fsync` of a directory or `syncfs` succeeds, all changes of names and attributes that
//!   were answered to this client before the call are durable. For `fsync` of a file this holds for
//!   its attributes;
//! - when `fsync` or `syncfs` succeeds, the client's writes to blocks of the file (`syncfs`: of any
//!   file with a name) from before the call are stable on the data device. A newer stable write of
//!   the same block suffices; device errors are reported in other ways.
//!
//! Not checked here: data that `fsync` never wrote; changes of names or attributes that the
//! operation does not name (the link count of a removed file); content that one client saw of
//! another; replayed changes, until they change again; `syncfs` for orphans, whose last close drops
//! what was not committed. After a loss the model judges what a client reads.

use std::collections::BTreeMap;
use std::ops::Range;

use env::sim::DiskEvent;
use types::{Fault, Ino, PagId, ShardId, Transno};

use super::{ClientPlace, NodeRun, WriteId, epochs, runs_at};
use crate::call::{At, Call, Op, Outcome};
use crate::cluster::LOG_BYTES;
use crate::events::Events;
use crate::invariant::Invariant;
use crate::zones::Place;

/// The log on the metadata device.
#[derive(Default)]
struct LogOnDisk {
    /// Device offset of position 0 of a lap, once a group was written.
    begin: Option<u64>,
    /// Everything before this position was written.
    end: u64,
    /// Writes beyond `end`: a group that wraps around is written in two pieces, in any order.
    pieces: Vec<Range<u64>>,
    /// Writes that are not stable, as positions of the log.
    unflushed: BTreeMap<u64, Range<u64>>,
}

impl LogOnDisk {
    fn happened(&mut self, event: DiskEvent<'_>) {
        match event {
            DiskEvent::Submitted { id, offset, bytes, .. } => {
                if let Some(at) = self.position(offset, bytes) {
                    self.submitted(id, at..at + bytes.len() as u64);
                }
            }
            DiskEvent::Stable { ids } => ids.iter().for_each(|id| _ = self.unflushed.remove(id)),
            DiskEvent::Completed { .. } | DiskEvent::Failed { .. } => {}
        }
    }

    fn submitted(&mut self, id: u64, written: Range<u64>) {
        if written.end <= self.durable() {
            // A starting server rewrites the same bytes.
            return;
        }
        for range in self.unflushed.values_mut() {
            *range = remainder(range, &written);
        }
        self.unflushed.retain(|_, range| !range.is_empty());
        self.unflushed.insert(id, written.clone());
        self.pieces.push(written);
        while let Some(nth) = self.pieces.iter().position(|piece| piece.start <= self.end) {
            self.end = self.end.max(self.pieces.swap_remove(nth).end);
        }
    }

    /// The log position of a write, if it is one of the log. A group has it in its header; its
    /// other piece lies in the nearest lap.
    fn position(&mut self, offset: u64, bytes: &[u8]) -> Option<u64> {
        if let Some((_, lsn)) = epochs::group(bytes) {
            self.begin = Some(offset - lsn % LOG_BYTES);
            return Some(lsn);
        }
        let at = offset.checked_sub(self.begin?).filter(|at| *at < LOG_BYTES)?;
        let lap = (self.end + LOG_BYTES / 2).saturating_sub(at) / LOG_BYTES;
        Some(lap * LOG_BYTES + at)
    }

    /// A server continues the log at `end`.
    fn resume_at(&mut self, end: u64) {
        self.end = end;
        self.pieces.clear();
    }

    /// A power cut keeps everything before this position.
    fn durable(&self) -> u64 {
        self.unflushed.values().map(|range| range.start).fold(self.end, u64::min)
    }
}

/// The part of `range` after the one that `written` replaced; `range` itself if `written` begins
/// later.
fn remainder(range: &Range<u64>, written: &Range<u64>) -> Range<u64> {
    match written.start <= range.start {
        true => range.start.max(written.end.min(range.end))..range.end,
        false => range.clone(),
    }
}

/// An object that one client changes and another sees.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Unit {
    Name(At),
    Attr(Ino),
}

impl Unit {
    /// The inode to which it belongs.
    fn inode(self) -> Ino {
        match self {
            Unit::Name(at) => at.dir,
            Unit::Attr(ino) => ino,
        }
    }
}

/// The objects that an operation changes or shows.
fn units(op: &Op) -> Vec<Unit> {
    match *op {
        Op::Lookup(at)
        | Op::Make(at, _)
        | Op::Symlink(at, _)
        | Op::Create { at, .. }
        | Op::Unlink(at)
        | Op::Rmdir(at) => vec![Unit::Name(at)],
        Op::Rename { from, to, .. } => vec![Unit::Name(from), Unit::Name(to)],
        Op::Link(ino, at) => vec![Unit::Attr(ino), Unit::Name(at)],
        Op::GetAttr(ino)
        | Op::GetXattr(ino)
        | Op::SetMode(ino, _)
        | Op::SetOwner { ino, .. }
        | Op::SetXattr(ino, _) => vec![Unit::Attr(ino)],
        _ => Vec::new(),
    }
}

/// A change by a client that is not known to be durable.
struct Change {
    client: usize,
    /// Position in the history.
    at: u64,
    transno: Transno,
    /// Position at which its application got the answer.
    answered: Option<u64>,
}

/// A write of a data device that is not stable.
struct UnflushedWrite {
    node: NodeRun,
    /// Position in the history at which it was submitted.
    at: u64,
}

/// The state of the checker.
pub(crate) struct Durable {
    events: Events,
    /// Only what this shard has is followed. Of an operation of several shards the others have
    /// their parts in logs of their own.
    shard: ShardId,
    log: LogOnDisk,
    /// A server announced the log as durable up to here.
    announced: u64,
    /// The epoch of the server that last opened the metadata.
    epoch: u32,
    changes: BTreeMap<Unit, Vec<Change>>,
    /// Unstable writes of each data block, by their numbers.
    unflushed: BTreeMap<Place, BTreeMap<u64, UnflushedWrite>>,
}

impl Durable {
    pub(crate) fn new(events: &Events, shard: ShardId) -> Durable {
        let (log, changes, unflushed) = Default::default();
        Durable { events: events.clone(), shard, log, announced: 0, epoch: 0, changes, unflushed }
    }

    fn broken(&self, text: &str) {
        self.events.broken(Invariant::Durable, text);
    }

    /// An event of the metadata device.
    pub(crate) fn on_meta(&mut self, event: DiskEvent<'_>) {
        self.log.happened(event);
    }

    /// The metadata device was replaced by one with stable content.
    pub(crate) fn meta_replaced(&mut self) {
        self.log.unflushed.clear();
    }

    /// A server has opened the metadata; its log continues at `end`.
    pub(crate) fn opened(&mut self, epoch: u32, end: u64) {
        if self.epoch > 0 && end < self.announced {
            self.broken(&format!(
                "the log of epoch {epoch} begins at {end}; the server had announced it durable up to {}",
                self.announced
            ));
        }
        self.log.resume_at(end);
        let durable = self.log.durable();
        if durable < end {
            self.broken(&format!(
                "the log of epoch {epoch} begins at {end}; a power cut takes everything after {durable}"
            ));
        }
        self.epoch = epoch;
        self.announced = end;
        self.changes.clear();
    }

    /// The server announces everything up to `covered` as durable; with `its` this transaction too.
    pub(crate) fn answers(&mut self, covered: Transno, its: Option<Transno>) {
        let durable = self.log.durable();
        for transno in [Some(covered), its].into_iter().flatten() {
            if transno.epoch.0 == self.epoch && transno.lsn.0 > durable {
                self.broken(&format!(
                    "the server answers that {transno} is durable; a power cut takes everything after {durable}"
                ));
            }
        }
        if covered.epoch.0 == self.epoch {
            self.announced = self.announced.max(covered.lsn.0);
        }
    }

    /// A client has changed the objects of this step. `home`: the shard that has an inode.
    pub(crate) fn changed(
        &mut self,
        (client, at): (usize, u64),
        op: &Op,
        transno: Transno,
        home: impl Fn(Ino) -> ShardId,
    ) {
        let shard = self.shard;
        for unit in units(op).into_iter().filter(|unit| home(unit.inode()) == shard) {
            self.note(client, at, unit, transno);
        }
    }

    /// A client has committed changes of a file.
    pub(crate) fn committed(&mut self, client: usize, at: u64, ino: Ino, transno: Transno) {
        self.note(client, at, Unit::Attr(ino), transno);
    }

    fn note(&mut self, client: usize, at: u64, unit: Unit, transno: Transno) {
        let durable = self.log.durable();
        let changes = self.changes.entry(unit).or_default();
        changes.retain(|change| change.transno.lsn.0 > durable);
        changes.push(Change { client, at, transno, answered: None });
    }

    /// An application got this answer.
    pub(crate) fn ended(&mut self, call: &Call) {
        let durable = self.log.durable();
        for unit in answered_units(call) {
            let Some(changes) = self.changes.get_mut(&unit) else { continue };
            changes.retain(|change| change.transno.lsn.0 > durable);
            let is_seen = |of: &&Change| of.client != call.client && of.at < call.begun;
            changes
                .iter()
                .filter(is_seen)
                .for_each(|change| report_missing(&self.events, call, (unit, change), durable));
            let is_its = |of: &&mut Change| of.client == call.client && Some(of.at) == call.applied;
            if call.op.changes()
                && !matches!(call.outcome, Some(Outcome::Failed(_)))
                && let Some(change) = changes.iter_mut().find(is_its)
            {
                change.answered = Some(call.ended);
            }
            if changes.is_empty() {
                self.changes.remove(&unit);
            }
        }
        if call.outcome == Some(Outcome::Done) {
            self.names_synced(call, durable);
        }
    }

    /// After a sync, changes of names and attributes answered to the client before it must be
    /// durable.
    fn names_synced(&self, call: &Call, durable: u64) {
        let is_meant = |unit: &Unit| match (&call.op, unit) {
            (Op::Fsync(of, _), Unit::Attr(ino)) => of == ino,
            (Op::SyncNames(shard), _) => *shard == self.shard,
            (Op::SyncAll, _) => true,
            _ => false,
        };
        for (unit, changes) in self.changes.iter().filter(|(unit, _)| is_meant(unit)) {
            let is_missing = |change: &&Change| {
                change.client == call.client
                    && change.transno.lsn.0 > durable
                    && change.answered.is_some_and(|answered| answered < call.begun)
            };
            changes
                .iter()
                .filter(is_missing)
                .for_each(|change| report_missing(&self.events, call, (*unit, change), durable));
        }
    }

    /// A write to a data device was submitted.
    pub(crate) fn submitted(
        &mut self,
        (zone, id): WriteId,
        (node, run): (&str, u32),
        blocks: Range<u64>,
    ) {
        let at = self.events.position();
        for block in blocks {
            let unflushed = UnflushedWrite { node: (node.to_owned(), run), at };
            self.unflushed.entry((zone, block)).or_default().insert(id, unflushed);
        }
    }

    /// A flush of a data device made a write of these blocks stable.
    pub(crate) fn stable(&mut self, (zone, id): WriteId, blocks: Range<u64>) {
        for block in blocks.map(|block| (zone, block)) {
            if let Some(writes) = self.unflushed.get_mut(&block) {
                *writes = writes.split_off(&(id + 1));
                if writes.is_empty() {
                    self.unflushed.remove(&block);
                }
            }
        }
    }

    /// The data devices were replaced by others with stable content.
    pub(crate) fn data_replaced(&mut self) {
        self.unflushed.clear();
    }

    /// The device of a zone failed a write or flush of this client, or (`None`) its session was
    /// lost: its writes there need not become stable, and it reports that.
    pub(crate) fn abandon_writes(&mut self, place: &ClientPlace, zone: Option<PagId>) {
        let meant = |of: &PagId| zone.is_none_or(|zone| zone == *of);
        for (_, writes) in self.unflushed.iter_mut().filter(|((of, _), _)| meant(of)) {
            writes.retain(|_, unflushed| !runs_at(&unflushed.node, place));
        }
        self.unflushed.retain(|_, writes| !writes.is_empty());
    }

    /// A sync of the client at this place succeeded for its earlier writes; `is_its` selects the
    /// blocks that it covers.
    pub(crate) fn synced(&self, call: &Call, place: &ClientPlace, is_its: impl Fn(Place) -> bool) {
        for (block, writes) in &self.unflushed {
            let older = |of: &UnflushedWrite| of.at < call.begun && runs_at(&of.node, place);
            if writes.values().any(older) && is_its(*block) {
                self.broken(&format!(
                    "{}: no flush made its earlier write of block {} of zone {} stable",
                    call.line(),
                    block.1,
                    block.0
                ));
            }
        }
    }
}

/// The objects that an answer shows, also a failure.
fn answered_units(call: &Call) -> Vec<Unit> {
    match (&call.op, &call.outcome) {
        (_, None) => Vec::new(),
        (Op::Unlink(at) | Op::Rmdir(at), Some(Outcome::Failed(Fault::NotFound)))
        | (
            Op::Make(at, _) | Op::Symlink(at, _) | Op::Create { at, .. } | Op::Link(_, at),
            Some(Outcome::Failed(Fault::Exists)),
        ) => vec![Unit::Name(*at)],
        // Neither says anything of what is there.
        (_, Some(Outcome::Failed(_) | Outcome::NoRoom)) => Vec::new(),
        (op, _) => units(op),
    }
}

fn report_missing(events: &Events, call: &Call, (unit, change): (Unit, &Change), durable: u64) {
    let text = format!(
        "{}: c{} had changed {unit:?} by {} [{}]; a power cut takes everything after {durable}",
        call.line(),
        change.client,
        change.transno,
        change.at
    );
    events.broken(Invariant::Durable, &text);
}

#[cfg(test)]
mod tests {
    use types::{Epoch, FileKind, Lsn};

    use super::*;

    fn found(work: impl FnOnce(&mut Durable)) -> Option<String> {
        let events = Events::default();
        let mut durable = Durable::new(&events, ShardId(0));
        durable.opened(1, LOG_BYTES - 8192);
        work(&mut durable);
        events.first_violation().map(|(invariant, text)| {
            assert_eq!(invariant, Invariant::Durable);
            text
        })
    }

    const BEGIN: u64 = 65_536;
    const ZONE: PagId = PagId(2);

    fn transno(lsn: u64) -> Transno {
        Transno { epoch: Epoch(1), lsn: Lsn(lsn) }
    }

    fn submit(durable: &mut Durable, id: u64, offset: u64, bytes: &[u8]) {
        durable.on_meta(DiskEvent::Submitted { id, node: ("mds", 1), offset, bytes });
    }

    /// Submits a group of this epoch at this position, up to the end of a block.
    fn group(durable: &mut Durable, id: u64, epoch: u32, lsn: u64) {
        let mut bytes = vec![0; 4096];
        bytes[4..8].copy_from_slice(b"RBLG");
        bytes[8..16].copy_from_slice(&lsn.to_le_bytes());
        bytes[20..24].copy_from_slice(&epoch.to_le_bytes());
        submit(durable, id, BEGIN + lsn % LOG_BYTES, &bytes);
    }

    fn flush(durable: &mut Durable, ids: &[u64]) {
        durable.on_meta(DiskEvent::Stable { ids });
    }

    #[test]
    fn announced_log_is_on_the_device_across_the_end_of_a_lap() {
        let lap = LOG_BYTES;
        let detected = |covered: &[u64], upto: u64| {
            found(|durable| {
                group(durable, 1, 1, lap - 8192);
                flush(durable, &[1]);
                // The end of a group is written before its beginning.
                submit(durable, 2, BEGIN, &[1; 4096]);
                group(durable, 3, 1, lap - 4096);
                flush(durable, covered);
                durable.answers(transno(upto), None);
            })
        };
        assert_eq!(detected(&[2, 3], lap + 4096), None);
        assert_eq!(detected(&[], lap - 4096), None);
        for (covered, upto) in [(vec![3], lap + 1), (vec![2], lap - 1), (vec![2, 3], lap + 4097)] {
            assert!(detected(&covered, upto).is_some_and(|text| text.contains("power cut")));
        }
    }

    #[test]
    fn announced_log_is_there_for_the_next_server() {
        let at = LOG_BYTES - 8192;
        let next = |end: u64| {
            found(|durable| {
                group(durable, 1, 1, at);
                flush(durable, &[1]);
                durable.answers(transno(at + 4096), Some(transno(at + 4096)));
                // Written, but not announced.
                group(durable, 2, 1, at + 4096);
                durable.opened(2, end);
                group(durable, 3, 2, at + 4096);
                flush(durable, &[3]);
                durable.opened(3, at + 8192);
            })
        };
        assert_eq!(next(at + 4096), None);
        assert!(next(at).is_some_and(|text| text.contains("had announced")));
        assert!(next(at + 8192).is_some_and(|text| text.contains("of epoch 2 begins")));
        let its = found(|durable| {
            group(durable, 1, 1, at);
            durable.answers(transno(at), Some(transno(at + 100)));
        });
        assert!(its.is_some());
    }

    const AT: At = At { dir: Ino::ROOT, name: 3 };

    fn call(client: usize, op: Op, begun: u64) -> Call {
        let outcome = Some(Outcome::Done);
        Call { client, op, outcome, guessed: false, applied: None, begun, ended: begun + 1 }
    }

    #[test]
    fn change_of_another_client_is_durable_before_it_is_seen() {
        let at = LOG_BYTES - 8192;
        let detected = |client: usize, op: Op, begun: u64, flushed: bool| {
            found(|durable| {
                group(durable, 1, 1, at);
                durable.changed(
                    (1, 10),
                    &Op::Make(AT, FileKind::Regular),
                    transno(at + 90),
                    Ino::shard,
                );
                durable.committed(1, 10, Ino(7), transno(at + 100));
                if flushed {
                    flush(durable, &[1]);
                }
                durable.ended(&call(client, op, begun));
            })
            .is_some()
        };
        assert!(detected(2, Op::Lookup(AT), 11, false));
        assert!(detected(2, Op::GetAttr(Ino(7)), 11, false));
        assert!(!detected(2, Op::Lookup(AT), 11, true));
        assert!(!detected(2, Op::Lookup(AT), 9, false), "the answer may be older");
        assert!(!detected(1, Op::Lookup(AT), 11, false), "its own change");
        assert!(!detected(2, Op::Lookup(At { name: 4, ..AT }), 11, false));
    }

    #[test]
    fn enoent_and_eexist_show_a_change_as_well() {
        let at = LOG_BYTES - 8192;
        let detected = |op: Op, fault: Fault| {
            found(|durable| {
                group(durable, 1, 1, at);
                durable.changed((1, 10), &Op::Unlink(AT), transno(at + 90), Ino::shard);
                let outcome = Some(Outcome::Failed(fault));
                durable.ended(&Call { outcome, ..call(2, op, 11) });
            })
            .is_some()
        };
        assert!(detected(Op::Unlink(AT), Fault::NotFound));
        assert!(detected(Op::Make(AT, FileKind::Regular), Fault::Exists));
        assert!(!detected(Op::Unlink(AT), Fault::Io));
    }

    #[test]
    fn refusal_for_want_of_room_says_nothing_of_the_file() {
        let at = LOG_BYTES - 8192;
        let detected = |outcome: Outcome| {
            found(|durable| {
                group(durable, 1, 1, at);
                durable.changed((1, 10), &Op::SetMode(Ino(7), 1), transno(at + 90), Ino::shard);
                let outcome = Some(outcome);
                durable.ended(&Call { outcome, ..call(2, Op::Link(Ino(7), AT), 11) });
            })
            .is_some()
        };
        assert!(detected(Outcome::Done));
        assert!(!detected(Outcome::NoRoom));
    }

    #[test]
    fn older_change_is_checked_after_a_newer_one_of_the_client() {
        let at = LOG_BYTES - 8192;
        let found = found(|durable| {
            group(durable, 1, 1, at);
            durable.changed((1, 10), &Op::SetMode(Ino(7), 1), transno(at + 90), Ino::shard);
            durable.changed((1, 12), &Op::SetMode(Ino(7), 2), transno(at + 100), Ino::shard);
            durable.ended(&Call { ended: 14, ..call(2, Op::GetAttr(Ino(7)), 11) });
        });
        assert!(found.is_some_and(|text| text.contains("[10]")));
    }

    #[test]
    fn sync_makes_changes_answered_before_it_durable() {
        let at = LOG_BYTES - 8192;
        let is_missing = |sync: Op, begun: u64, flushed: bool| {
            found(|durable| {
                group(durable, 1, 1, at);
                durable.changed((1, 10), &Op::SetMode(Ino(7), 1), transno(at + 90), Ino::shard);
                if flushed {
                    flush(durable, &[1]);
                    // The application got no answer for changes committed later.
                    durable.committed(1, 11, Ino(7), transno(at + 4200));
                }
                let applied = Some(10);
                durable.ended(&Call { applied, ended: 12, ..call(1, Op::SetMode(Ino(7), 1), 9) });
                durable.ended(&call(1, sync, begun));
            })
            .is_some()
        };
        for sync in [Op::SyncNames(ShardId(0)), Op::SyncAll, Op::Fsync(Ino(7), 1)] {
            assert!(is_missing(sync.clone(), 13, false), "{sync:?}");
            assert!(!is_missing(sync.clone(), 13, true), "{sync:?}");
            assert!(!is_missing(sync, 11, false), "it was not answered");
        }
        assert!(!is_missing(Op::Fsync(Ino(8), 1), 13, false), "another file");
    }

    #[test]
    fn sync_makes_writes_from_before_it_stable() {
        let synced = |work: &dyn Fn(&mut Durable)| {
            found(|durable| {
                durable.events.at(5);
                durable.submitted((ZONE, 1), ("c0", 4), 7..8);
                work(durable);
                let place = ("c0".to_owned(), Some(4));
                durable.synced(&call(0, Op::SyncAll, 6), &place, |block| block == (ZONE, 7));
            })
            .is_some()
        };
        assert!(synced(&|_| {}));
        assert!(!synced(&|durable| durable.stable((ZONE, 1), 7..8)));
        assert!(!synced(&|durable| {
            durable.submitted((ZONE, 2), ("c0", 4), 7..8);
            durable.stable((ZONE, 2), 7..8);
        }));
        let other = |node: (&str, u32), block: u64, at: u64| {
            found(|durable| {
                durable.events.at(at);
                durable.submitted((ZONE, 1), node, block..block + 1);
                let place = ("c0".to_owned(), Some(4));
                durable.synced(&call(0, Op::SyncAll, 6), &place, |block| block == (ZONE, 7));
            })
            .is_some()
        };
        assert!(other(("c0", 4), 7, 5));
        assert!(!other(("c0", 3), 7, 5), "an earlier run");
        assert!(!other(("c1", 4), 7, 5));
        assert!(!other(("c0", 4), 8, 5), "a block of no file");
        assert!(!other(("c0", 4), 7, 7), "later");
    }
}
