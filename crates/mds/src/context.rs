//! The context in which an operation runs: its request, and what it decides.
//!
//! Invariants:
//! - an operation states its needs ([`OpContext::need`]) before its first change and then passes
//!   [`OpContext::ready`]. If it cannot have them at once, it ends without a change, the server
//!   waits, and the operation starts over;
//! - everything it decides is in its [`Effects`]; the server applies them at the instant the
//!   transaction succeeds, and drops them otherwise.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use mfs::{Stop, Txn};
use proto::mds::{Leased, OpReply, Principal};
use types::limits::{RANGE_BLOCKS_MAX, RANGES_TOTAL_MAX};
use types::{
    Attr, BlockRange, Bug, ClientId, Fault, FileKind, HashMap, HeldRange, Ino, Rights, ShardId,
    Timestamp, planted,
};

use crate::joint::{self, Answers, Ask, Known, Part};
use crate::leases::{Glimpsed, GrantMode, HeldGates, NO_CLIENT, Need, RangeRequest};
use crate::recovery::kept_results::{Outcome, OutcomeRecord};
use crate::server::Server;
use crate::uncommitted::MetaItem;

/// What the request has already waited for.
#[derive(Default)]
pub struct Waited {
    /// Gates it holds.
    pub gates: Option<HeldGates>,
    /// Inodes whose other holders of `OPEN` have answered a recall of it: those that still hold it
    /// have the file open.
    pub open_asked: Vec<Ino>,
    /// Size and times that writers have reported.
    pub glimpsed: HashMap<Ino, Glimpsed>,
    /// The shard whose turn it is to get the new directory; the inner `None`: this one.
    pub home: Cell<Option<Option<ShardId>>>,
    /// What other shards have said, while it has held these gates.
    pub learned: Vec<(Ask, Result<Known, Fault>)>,
    /// How each file's request for a range is granted: decided once for each.
    pub grant_modes: RefCell<HashMap<Ino, GrantMode>>,
}

impl Waited {
    /// The gates open, and nothing is known any more of what they have kept as it was.
    pub fn drop_gates(&mut self) {
        self.gates = None;
        self.learned.clear();
    }

    /// Asks other shards what a plan wants to know; the gates of its needs are held. Could they
    /// answer?
    pub async fn find_out(&mut self, server: &Rc<Server>, ask: Option<Ask>) -> bool {
        let Some(ask) = ask else { return true };
        let known = joint::find_out(server, &ask).await;
        let answers = known != Err(Fault::Busy);
        self.learned.push((ask, known));
        answers
    }
}

/// What a transaction decided beside its changes of blocks.
#[derive(Default)]
pub struct Effects {
    /// Everything stated by [`OpContext::need`].
    pub needs: Vec<Need>,
    /// The client that asks gives up what the needs say, too.
    pub asker_gives_up: bool,
    /// Was one of them not met?
    pub missing: bool,
    /// Files whose writers must be asked for size and times, with the attributes that the server
    /// has.
    pub glimpse: Vec<Attr>,
    /// What must be asked of another shard first.
    pub ask: Option<Ask>,
    /// Rights that the client would like.
    pub wants: Vec<(Ino, Rights)>,
    /// Files that the client has found by name and may open next: it gets `OPEN` on them even while
    /// another operation waits at their gate.
    pub found: Vec<Ino>,
    /// Rights to grant, free of conflicts by the operation's needs.
    pub grants: Vec<(Ino, Rights)>,
    /// Ranges to grant: the first is free of conflicts by the operation's needs, the others are
    /// granted if they are free.
    pub ranges: Vec<(Ino, HeldRange)>,
    /// A file's new size, and whether zeros follow it to the end of its block.
    pub tail: Option<(Ino, u64, bool)>,
    /// Leases to drop.
    pub drops: Vec<(ClientId, Ino)>,
    /// Inodes that have gone to another shard: nobody holds anything of them here.
    pub gone: Vec<Ino>,
    /// Inodes that have come from another shard.
    pub came: Vec<Ino>,
    /// What the reply depends on.
    pub reads: Vec<MetaItem>,
    /// What was changed.
    pub changes: Vec<MetaItem>,
    /// Inodes that have lost their last name (or have none yet), and the client that gives up
    /// `OPEN` on them unasked.
    pub orphaned: Vec<(Ino, ClientId)>,
    /// Inodes that have a name again.
    pub relinked: Vec<Ino>,
    /// What other shards have to do: the operation is joint, and this was its plan.
    pub joint: Option<Vec<(ShardId, Part)>>,
    /// Outcome of the operation for the kept reply, if it changes something.
    pub outcome: Option<Outcome>,
}

impl Effects {
    /// Has the attempt ended because something must be waited for?
    pub fn waits(&self) -> bool {
        self.missing || !self.glimpse.is_empty() || self.ask.is_some()
    }

    /// The inodes whose gates it needs.
    pub fn gates(&self) -> Vec<Ino> {
        self.needs.iter().map(|need| need.ino).collect()
    }

    /// Takes back all grants: a client whose request is replayed has reclaimed what it holds.
    pub(crate) fn grant_nothing(&mut self) {
        self.grants.clear();
        self.wants.clear();
        self.found.clear();
    }
}

/// See the module.
pub struct OpContext<'a> {
    /// The server.
    pub server: &'a Server,
    /// The client.
    pub client: ClientId,
    /// The user on whose behalf it asks.
    pub principal: &'a Principal,
    /// The time of the operation.
    pub now: Timestamp,
    /// Outcomes that were kept before the server restarted.
    pub kept: &'a OutcomeRecord,
    /// Of a replay: the result that the running operation had.
    pub replayed: Option<&'a OpReply>,
    /// It is a replay, and waits for nobody: clients that conflicted then have given way then.
    pub replay: bool,
    /// It comes from a node whose callers are squashed, and which is not believed to check them.
    pub squashed: bool,
    /// What the request has waited for.
    pub waited: &'a Waited,
    /// Of a joint operation that all shards have agreed on: what the others have answered.
    pub joint: Option<Answers<'a>>,
    /// What the operation decides.
    pub effects: Effects,
}

impl OpContext<'_> {
    /// States that no other client may hold `take` on `ino`, and no other operation wait there.
    pub fn need(&mut self, ino: Ino, take: Rights) {
        self.need_of_others(self.client, ino, take);
    }

    /// The same of all clients: the one that asks gives it up, too.
    pub fn need_of_all(&mut self, ino: Ino, take: Rights) {
        self.effects.asker_gives_up = true;
        self.need_of_others(NO_CLIENT, ino, take);
    }

    fn need_of_others(&mut self, than: ClientId, ino: Ino, take: Rights) {
        if self.replay {
            return;
        }
        if planted(Bug::RecallSkipped) && take.contains(Rights::NAMES) {
            return;
        }
        let need = Need { ino, take, range: None };
        // Operations that go together need the same directory: it is recalled once.
        if !self.effects.needs.contains(&need) {
            self.effects.needs.push(need);
        }
        self.effects.missing |= self.server.leases.is_gate_closed(ino, self.waited.gates.as_ref())
            || self.server.leases.table().others(than, ino).intersects(take);
    }

    /// States that no other client may hold anything that excludes `part` of `ino`, and no other
    /// operation wait there.
    pub fn need_range(&mut self, ino: Ino, part: HeldRange) {
        let take = Rights::DATA_P.conflicts();
        self.need(ino, take);
        self.effects.needs.push(Need { ino, take, range: Some(part) });
        let leases = self.server.leases.table();
        self.effects.missing |= !leases.range_conflicts(self.client, ino, part).is_empty();
    }

    /// Decides how a request for `range` of `ino` under `rights` is granted.
    pub fn grant_mode(&self, ino: Ino, rights: Rights, range: BlockRange) -> GrantMode {
        if let Some(grant_mode) = self.waited.grant_modes.borrow().get(&ino) {
            return *grant_mode;
        }
        let leases = self.server.leases.table();
        let (client, now) = (self.client, self.server.runtime.env.now());
        let part = HeldRange { range, exclusive: rights.contains(Rights::DATA_X) };
        let holds = leases.rights(client, ino);
        let grant_mode = self.server.leases.grant_mode(RangeRequest {
            client,
            ino,
            now,
            excluded: leases.others(client, ino).intersects(rights.conflicts() & Rights::WHOLE),
            overlaps: !leases.range_conflicts(client, ino, part).is_empty(),
            holds_ranges: holds.contains(Rights::DATA_P),
        });
        let many = range.len() > RANGE_BLOCKS_MAX / 2 || leases.ranges_len() >= RANGES_TOTAL_MAX;
        let grant_mode = match grant_mode {
            GrantMode::Range(_) if holds.intersects(Rights::WHOLE) => GrantMode::Whole,
            GrantMode::Range(_) if many && holds.contains(Rights::DATA_P) => GrantMode::Calm,
            GrantMode::Range(_) if many => GrantMode::Whole,
            grant_mode => grant_mode,
        };
        self.waited.grant_modes.borrow_mut().insert(ino, grant_mode);
        grant_mode
    }

    /// Does another client have the file open?
    pub fn open_elsewhere(&self, ino: Ino) -> bool {
        match self.replayed {
            // As decided before the restart: not every client has reclaimed yet.
            Some(OpReply::Removed { kept, .. } | OpReply::Renamed { kept, .. }) => *kept,
            _ => self.server.leases.table().others(self.client, ino).contains(Rights::OPEN),
        }
    }

    /// States that other holders of `OPEN` on `ino` must have answered whether they have it open.
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

    /// What another shard says. Its plan states first what must stay as it is meanwhile.
    ///
    /// # Errors
    /// Ends the attempt, if it is not known yet. The fault of the other shard; `Busy` if that does
    /// not answer.
    pub fn learn(&mut self, ask: Ask) -> Result<Known, Stop> {
        if let Some((_, known)) = self.waited.learned.iter().find(|(asked, _)| *asked == ask) {
            return known.clone().map_err(Stop::Fault);
        }
        self.ready()?;
        self.effects.ask = Some(ask);
        Err(Fault::Busy.into())
    }

    /// Does the inode live on another shard?
    pub fn is_elsewhere(&self, ino: Ino) -> bool {
        !self.server.is_here(ino)
    }

    /// Does another server ask for this, as a part of a joint operation?
    pub fn joint_is_asked(&self) -> bool {
        self.client == NO_CLIENT
    }

    /// The shard where the inode lives.
    pub fn home(&self, ino: Ino) -> ShardId {
        self.server.home_of(ino)
    }

    /// Ends the plan of a joint operation: other shards have to do this first. Its needs are
    /// stated and met.
    ///
    /// # Errors
    /// Always: `Corrupt` if a shard is none of this namespace.
    pub fn plan<T>(&mut self, parts: Vec<(ShardId, Part)>) -> Result<T, Stop> {
        self.ready()?;
        let joint = &self.server.joint;
        if !parts.iter().all(|(shard, _)| joint.is_peer(*shard)) {
            return Err(Fault::Corrupt.into());
        }
        self.effects.joint = Some(parts);
        Err(Fault::Busy.into())
    }

    /// Passes if no joint operation would be seen half done.
    ///
    /// # Errors
    /// Ends the attempt.
    pub fn is_open_to_readers(&mut self, ino: Ino) -> Result<(), Stop> {
        let own = self.waited.gates.as_ref().is_some_and(|gates| gates.cover(&[ino]));
        if !own && self.server.joint.is_closed(ino) {
            // A replay waits, too: a restart may have found the operation before it.
            self.effects.needs.push(Need { ino, take: Rights::empty(), range: None });
            self.effects.missing = true;
            self.ready()?;
        }
        Ok(())
    }

    /// Attributes of an inode that exists. A reply that it does not exist depends on its removal.
    ///
    /// # Errors
    /// `Stale`; `Moved` if it lives on another shard.
    pub fn attr(&mut self, txn: &mut Txn<'_>, ino: Ino) -> Result<Attr, Stop> {
        self.is_open_to_readers(ino)?;
        if self.is_elsewhere(ino) {
            return Err(Fault::Moved.into());
        }
        let attr =
            if self.server.orphans.is_freeing(ino) { None } else { txn.names().attr(ino)? };
        if attr.is_none() {
            self.effects.reads.push(MetaItem::Attr(ino));
        }
        attr.ok_or(Stop::Fault(Fault::Stale))
    }

    /// Attributes of a directory that exists. A reply that it was removed depends on the removal.
    ///
    /// # Errors
    /// `Stale`, `NotDirectory`.
    pub fn dir(&mut self, txn: &mut Txn<'_>, ino: Ino) -> Result<Attr, Stop> {
        let attr = self.attr(txn, ino)?;
        if attr.nlink == 0 {
            self.effects.reads.push(MetaItem::Attr(ino));
        }
        if attr.kind == FileKind::Directory { Ok(attr) } else { Err(Fault::NotDirectory.into()) }
    }

    /// As [`OpContext::dir`], of a directory that has not been removed.
    ///
    /// # Errors
    /// `NotFound` if it has been removed; as [`OpContext::dir`].
    pub fn live_dir(&mut self, txn: &mut Txn<'_>, ino: Ino) -> Result<Attr, Stop> {
        let attr = self.dir(txn, ino)?;
        if attr.nlink == 0 { Err(Fault::NotFound.into()) } else { Ok(attr) }
    }

    /// Attributes as other clients see them: with what the writers of the file report, if this
    /// client is not its only writer. Requests a glimpse if there is none yet.
    pub fn seen(&mut self, mut attr: Attr) -> Attr {
        let (written, by_others) = {
            let leases = self.server.leases.table();
            let others = leases.others(self.client, attr.ino).intersects(Rights::WRITES);
            (leases.written_elsewhere(self.client, attr.ino), others)
        };
        if attr.kind != FileKind::Regular || self.replay || !written {
            return attr;
        }
        match self.waited.glimpsed.get(&attr.ino) {
            Some(_) if planted(Bug::GlimpseIgnored) => {}
            Some(glimpsed) if glimpsed.is_valid_for(&attr) => glimpsed.complete(&mut attr),
            // If sizes change too fast to be read, take the right to write. For what the asking
            // client writes into its own ranges, glimpse once more.
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
        let rights = rights & applicable(attr.kind);
        if !rights.is_empty() {
            self.effects.wants.push((attr.ino, rights));
        }
    }

    /// Sets the directory's times for a change of its content at the operation's time, and stores
    /// them. A replayed change may come after later changes of other clients.
    ///
    /// # Errors
    /// As `set_attr`.
    pub fn touch_dir(&self, txn: &mut Txn<'_>, dir: &mut Attr) -> Result<(), Stop> {
        // A time that was set ahead lasts until the next change.
        let overtaken = self.now < dir.ctime;
        dir.mtime = if overtaken { dir.mtime.max(self.now) } else { self.now };
        dir.ctime = dir.ctime.max(self.now);
        dir.version += 1;
        txn.names().set_attr(dir)?;
        if let Some(stored) = txn.names().attr(dir.ino)? {
            *dir = stored;
        }
        Ok(())
    }
}

/// What this server can say of an inode that lives on another shard: its number and its kind. The
/// client asks that shard.
pub fn elsewhere(ino: Ino, kind: FileKind) -> Attr {
    let time = Timestamp::default();
    Attr {
        ino,
        kind,
        mode: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        spread: false,
        version: 0,
    }
}

/// Rights that make sense on an inode of this kind.
pub fn applicable(kind: FileKind) -> Rights {
    match kind {
        FileKind::Directory => Rights::ATTR | Rights::NAMES | Rights::OPEN,
        FileKind::Regular => Rights::ATTR | Rights::OPEN | Rights::WHOLE,
        _ => Rights::ATTR | Rights::OPEN,
    }
}
