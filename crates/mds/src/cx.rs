//! What an operation sees of its request while its transaction runs.
//!
//! Invariants:
//! - an operation states its needs ([`Cx::need`]) before its first change and passes
//!   [`Cx::ready`]; if it cannot have them at once, it ends without a change, the
//!   server waits, and it starts over;
//! - everything it decides is in its [`Effects`], applied by the server at the instant
//!   its transaction succeeded, and dropped otherwise.

use std::cell::RefCell;

use proto::mds::{InoRef, Leased, OpReply, Principal};
use store::{Stop, Txn};
use types::limits::{RANGE_BLOCKS_MAX, RANGES_TOTAL_MAX};
use types::{
    Attr, BlockRange, Bug, ClientId, Fault, FileKind, HashMap, HeldRange, Ino, Rights, Timestamp,
    planted,
};

use crate::contention::{Asked, Manner};
use crate::gate::Held;
use crate::glimpse::Glimpsed;
use crate::recent::Unit;
use crate::record::{Outcome, Record};
use crate::server::Server;

/// Rights on an inode that no other client may hold while the operation runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    /// The inode (or [`crate::gate::RENAME_GATE`]).
    pub ino: Ino,
    /// The rights.
    pub take: Rights,
    /// Of `DATA_P` what excludes this.
    pub part: Option<HeldRange>,
}

/// What the request has already waited for.
#[derive(Default)]
pub struct Waited {
    /// Gates it holds.
    pub gates: Option<Held>,
    /// Inodes whose other holders have been asked for `OPEN`: who still holds it has the file open.
    pub open_asked: Vec<Ino>,
    /// What those who write said of size and times.
    pub glimpsed: HashMap<Ino, Glimpsed>,
    /// How requests for parts are met: decided once for each.
    pub manners: RefCell<HashMap<Ino, Manner>>,
}

/// What a transaction decided beside its changes of blocks.
#[derive(Default)]
pub struct Effects {
    /// Everything stated by [`Cx::need`].
    pub needs: Vec<Need>,
    /// Was one of them missing?
    pub missing: bool,
    /// Those who write these must be asked for size and times; what the server has.
    pub glimpse: Vec<Attr>,
    /// Rights the client would like.
    pub wants: Vec<(Ino, Rights)>,
    /// What it has found by name and may open next: it gets `OPEN`, whoever waits there.
    pub found: Vec<Ino>,
    /// Rights it shall have, free of conflicts by its needs.
    pub grants: Vec<(Ino, Rights)>,
    /// Parts that it shall have, the first likewise, the others if they are free.
    pub parts: Vec<(Ino, HeldRange)>,
    /// A file's new size, and whether zeros follow it to the end of its block.
    pub tail: Option<(Ino, u64, bool)>,
    /// Leases that end.
    pub drops: Vec<(ClientId, Ino)>,
    /// What the reply rests on.
    pub reads: Vec<Unit>,
    /// What was changed.
    pub changes: Vec<Unit>,
    /// Inodes that have no name any more (or none yet), and who gives them back unasked.
    pub nameless: Vec<(Ino, ClientId)>,
    /// Inodes that have a name again.
    pub named: Vec<Ino>,
    /// Outcome of the operation at hand, if it changes something.
    pub outcome: Option<Outcome>,
    /// Outcomes of the transaction's operations, for the kept reply.
    pub outcomes: Record,
}

/// See the module.
pub struct Cx<'a> {
    /// The server.
    pub server: &'a Server,
    /// Who asks.
    pub client: ClientId,
    /// On whose behalf.
    pub principal: &'a Principal,
    /// The time of the operation.
    pub now: Timestamp,
    /// Results of the operations before it.
    pub earlier: &'a [Result<OpReply, Fault>],
    /// Results of the operations before it in the same transaction.
    pub here: Vec<Result<OpReply, Fault>>,
    /// What had taken effect before the server restarted.
    pub kept: &'a Record,
    /// Of a replay: the results that the request's operations had.
    pub results: &'a [Result<OpReply, Fault>],
    /// Of a replay: the result that the operation at hand had.
    pub given: Option<&'a OpReply>,
    /// A replay waits for nobody: whoever conflicted then has given way then.
    pub replay: bool,
    /// What was waited for.
    pub waited: &'a Waited,
    /// What it decides.
    pub effects: Effects,
}

impl Cx<'_> {
    /// The inode meant.
    ///
    /// # Errors
    /// `Invalid` if no earlier operation found one.
    pub fn resolve(&self, at: &InoRef) -> Result<Ino, Stop> {
        let op = match at {
            InoRef::Is { ino } => return Ok(*ino),
            InoRef::Of { op } => usize::from(*op),
        };
        let found = match self.earlier.iter().chain(&self.here).nth(op) {
            Some(Ok(OpReply::Entry { entry: Some(leased), .. })) => leased.attr.ino,
            Some(Ok(OpReply::Entry { entry: None, .. })) => return Err(Fault::NotFound.into()),
            Some(Ok(
                OpReply::Attr { leased }
                | OpReply::Created { leased, .. }
                | OpReply::Linked { leased, .. }
                | OpReply::Acquired { leased, .. },
            )) => leased.attr.ino,
            _ => return Err(Fault::Invalid.into()),
        };
        Ok(found)
    }

    /// The operation number `index` of the compound is done.
    pub fn finish(&mut self, index: usize) {
        if let Some(outcome) = self.effects.outcome.take() {
            self.effects.outcomes.push((index as u8, outcome));
        }
    }

    /// No other client may hold `take` on `ino`, and no other operation may wait there.
    pub fn need(&mut self, ino: Ino, take: Rights) {
        if self.replay {
            return;
        }
        if planted(Bug::RecallSkipped) && take.contains(Rights::NAMES) {
            return;
        }
        self.effects.needs.push(Need { ino, take, part: None });
        self.effects.missing |= self.server.gates.closed(ino, self.waited.gates.as_ref())
            || self.server.leases.borrow().others(self.client, ino).intersects(take);
    }

    /// No other client may hold anything that excludes `part` of `ino`, and no other operation may
    /// wait there.
    pub fn need_part(&mut self, ino: Ino, part: HeldRange) {
        let take = Rights::DATA_P.conflicts();
        self.need(ino, take);
        self.effects.needs.push(Need { ino, take, part: Some(part) });
        let leases = self.server.leases.borrow();
        self.effects.missing |= !leases.range_conflicts(self.client, ino, part).is_empty();
    }

    /// How a request for `range` of `ino` under `rights` is met.
    pub fn manner(&self, ino: Ino, rights: Rights, range: BlockRange) -> Manner {
        if let Some(manner) = self.waited.manners.borrow().get(&ino) {
            return *manner;
        }
        let leases = self.server.leases.borrow();
        let (client, now) = (self.client, self.server.env.now());
        let part = HeldRange { range, exclusive: rights.contains(Rights::DATA_X) };
        let holds = leases.rights(client, ino);
        let manner = self.server.contention.borrow_mut().ask(Asked {
            client,
            ino,
            now,
            excluded: leases.others(client, ino).intersects(rights.conflicts() & Rights::WHOLE),
            overlaps: !leases.range_conflicts(client, ino, part).is_empty(),
            holds_parts: holds.contains(Rights::DATA_P),
        });
        let many = range.len() > RANGE_BLOCKS_MAX / 2 || leases.ranges_len() >= RANGES_TOTAL_MAX;
        let manner = match manner {
            Manner::Part(_) if holds.intersects(Rights::WHOLE) => Manner::Whole,
            Manner::Part(_) if many && holds.contains(Rights::DATA_P) => Manner::Calm,
            Manner::Part(_) if many => Manner::Whole,
            manner => manner,
        };
        self.waited.manners.borrow_mut().insert(ino, manner);
        manner
    }

    /// Has another client the file open?
    pub fn open_elsewhere(&self, ino: Ino) -> bool {
        match self.given {
            // What was decided before the restart: not everybody has reclaimed yet.
            Some(OpReply::Removed { kept, .. } | OpReply::Renamed { kept, .. }) => *kept,
            _ => self.server.leases.borrow().others(self.client, ino).contains(Rights::OPEN),
        }
    }

    /// Other holders of `OPEN` on `ino` must have been asked whether they have it open.
    pub fn need_open_answers(&mut self, ino: Ino) {
        if !self.replay && !self.waited.open_asked.contains(&ino) {
            self.need(ino, Rights::OPEN);
        }
    }

    /// Passes if all needs are met.
    ///
    /// # Errors
    /// Ends the attempt.
    pub fn ready(&self) -> Result<(), Stop> {
        if self.effects.missing || !self.effects.glimpse.is_empty() {
            return Err(Fault::Busy.into());
        }
        Ok(())
    }

    /// Attributes of an inode that is there. That it is gone, the reply rests on.
    ///
    /// # Errors
    /// `Stale`.
    pub fn attr(&mut self, txn: &mut Txn<'_>, ino: Ino) -> Result<Attr, Stop> {
        let attr = if self.server.freer.is_freeing(ino) { None } else { txn.attr(ino)? };
        if attr.is_none() {
            self.effects.reads.push(Unit::Attr(ino));
        }
        attr.ok_or(Stop::Fault(Fault::Stale))
    }

    /// Attributes of a directory that is there. That it was removed, the reply rests on.
    ///
    /// # Errors
    /// `Stale`, `NotDirectory`.
    pub fn dir(&mut self, txn: &mut Txn<'_>, ino: Ino) -> Result<Attr, Stop> {
        let attr = self.attr(txn, ino)?;
        if attr.nlink == 0 {
            self.effects.reads.push(Unit::Attr(ino));
        }
        if attr.kind == FileKind::Directory { Ok(attr) } else { Err(Fault::NotDirectory.into()) }
    }

    /// As [`Cx::dir`], and it has not been removed.
    ///
    /// # Errors
    /// `NotFound` if it has; as [`Cx::dir`].
    pub fn live_dir(&mut self, txn: &mut Txn<'_>, ino: Ino) -> Result<Attr, Stop> {
        let attr = self.dir(txn, ino)?;
        if attr.nlink == 0 { Err(Fault::NotFound.into()) } else { Ok(attr) }
    }

    /// Attributes as others may see them: with what those know who write the file, if this client
    /// is not the only one. Asks for a glimpse if there is none yet.
    pub fn seen(&mut self, mut attr: Attr) -> Attr {
        let (written, by_others) = {
            let leases = self.server.leases.borrow();
            let others = leases.others(self.client, attr.ino).intersects(Rights::WRITES);
            (leases.written_elsewhere(self.client, attr.ino), others)
        };
        if attr.kind != FileKind::Regular || self.replay || !written {
            return attr;
        }
        match self.waited.glimpsed.get(&attr.ino) {
            Some(_) if planted(Bug::GlimpseIgnored) => {}
            Some(glimpsed) if glimpsed.holds_for(&attr) => glimpsed.put_in(&mut attr),
            // Sizes that change too fast to be read are taken. What the asking client writes into
            // its own parts is left to one more question.
            Some(glimpsed) if glimpsed.is_given_up() && by_others => {
                self.need(attr.ino, Rights::WRITES);
            }
            _ => self.effects.glimpse.push(attr),
        }
        attr
    }

    /// `attr` as a part of the reply; the lease is filled in when the reply leaves.
    pub fn leased(&self, attr: Attr) -> Leased {
        Leased { attr, rights: Rights::empty(), seq: 0 }
    }

    /// The client would like `rights` on the inode.
    pub fn want(&mut self, attr: &Attr, rights: Rights) {
        let rights = rights & possible(attr.kind);
        if !rights.is_empty() {
            self.effects.wants.push((attr.ino, rights));
        }
    }

    /// Notes a change of a directory's content at the operation's time and stores it. What is
    /// replayed may come after others' changes that were later.
    ///
    /// # Errors
    /// As `set_attr`.
    pub fn touch_dir(&self, txn: &mut Txn<'_>, dir: &mut Attr) -> Result<(), Stop> {
        // A time that was set ahead lasts until the next change.
        let overtaken = self.now < dir.ctime;
        dir.mtime = if overtaken { dir.mtime.max(self.now) } else { self.now };
        dir.ctime = dir.ctime.max(self.now);
        dir.version += 1;
        txn.set_attr(dir)?;
        if let Some(stored) = txn.attr(dir.ino)? {
            *dir = stored;
        }
        Ok(())
    }
}

/// Rights that make sense on an inode of this kind.
pub fn possible(kind: FileKind) -> Rights {
    match kind {
        FileKind::Directory => Rights::ATTR | Rights::NAMES | Rights::OPEN,
        FileKind::Regular => Rights::ATTR | Rights::OPEN | Rights::WHOLE,
        _ => Rights::ATTR | Rights::OPEN,
    }
}
