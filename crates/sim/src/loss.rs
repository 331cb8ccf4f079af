//! The part of the model that knows what is stable, and what is lost with a session.
//!
//! Invariants:
//! - a client that reads or writes blocks makes the server recall them from other clients; this
//!   makes the others' changes of the file stable. Clients that write different blocks of a file
//!   may each hold their range, and lose its changes (SEMANTICS 1.3);
//! - a size that another client only glimpsed makes nothing stable;
//! - a rename that replaces something commits the file first: nothing done to the file before the
//!   rename began is lost with a session;
//! - an open file through which data were lost fails once with EIO before it succeeds.

use std::rc::Rc;

use types::limits::BLOCK_U64;
use types::{Fault, Ino, ShardId};

use crate::call::{Call, FileNo, MAPPED, Op, Outcome, Until, is_of};
use crate::content::{Content, Dirty, Edit, blocks_of};
use crate::model::{Body, FsState, Node, NotDurable, OWNERS, Step, impossible};

/// The client of a lock owner.
pub(crate) fn owner_of(owner: u64) -> usize {
    (owner / OWNERS) as usize
}

/// A client that may have lost changes of a file.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ContentLoss {
    /// The client.
    pub client: usize,
    /// The content if nothing was lost; `None`: something was lost.
    pub if_nothing_lost: Option<Content>,
    /// The content with the client's changes, which its kernel shows until it knows of the loss.
    pub before: Content,
    /// Clients that may have lost changes of it earlier.
    pub earlier: Vec<usize>,
}

impl Node {
    /// An answer was seen: may the content without a loss still explain it?
    pub(crate) fn recheck_loss(&mut self, possible: impl FnOnce(&Content) -> bool) {
        let Some(loss) = &mut self.loss else { return };
        if loss.if_nothing_lost.as_ref().is_some_and(|intact| !possible(intact)) {
            Rc::make_mut(loss).if_nothing_lost = None;
        }
    }

    /// A client may have lost changes, after which the content is `before`.
    pub(crate) fn loses(&mut self, client: usize, intact: Option<Content>, before: Content) {
        let mut earlier = Vec::new();
        if let Some(loss) = self.loss.take() {
            earlier.extend(loss.earlier.iter().copied().chain([loss.client]));
            earlier.retain(|other| *other != client);
        }
        let loss = ContentLoss { client, if_nothing_lost: intact, before, earlier };
        self.loss = Some(Rc::new(loss));
    }

    pub(crate) fn is_dirty_of(&self, client: usize) -> bool {
        self.dirty.iter().any(|dirty| dirty.client == client)
    }

    /// The unsynced changes of a client that edits the file now; `stable` is the content before.
    fn dirtied_by(&mut self, client: usize, stable: &Content) -> &mut Dirty {
        let known = self.dirty.iter().position(|dirty| dirty.client == client);
        let at = known.unwrap_or_else(|| {
            self.dirty.push(Rc::new(Dirty::new(client, stable)));
            self.dirty.len() - 1
        });
        Rc::make_mut(&mut self.dirty[at])
    }

    fn synced(&mut self, client: usize, begun: u64) {
        if let Some(not_durable) = self.not_durable.as_mut().filter(|_| self.late_writes.is_none())
        {
            not_durable.late_write = false;
        }
        let mine = self.dirty.iter_mut().find(|dirty| dirty.client == client);
        if let Some(dirty) = mine {
            Rc::make_mut(dirty).synced(begun);
            self.dirty.retain(|dirty| dirty.client != client || !dirty.is_stable());
        }
    }

    /// Adds what the file held before a session was lost; it may still be on the device.
    /// `unflushed`: a flush for it had failed.
    fn add_lost_content(&mut self, lost: &Content, unflushed: bool, late: bool) {
        let any_of = |earlier: Option<&Content>| {
            Content::any_of(earlier.into_iter().chain([lost]).map(|content| (content, false)))
        };
        let not_durable = self.not_durable.take();
        let (flush, before) = not_durable.as_ref().map_or((false, false), |not_durable| {
            (not_durable.flush_failed, not_durable.late_write)
        });
        let content = any_of(not_durable.as_ref().map(|not_durable| &not_durable.content));
        self.not_durable = Some(NotDurable {
            content,
            flush_failed: flush || unflushed,
            late_write: late || before,
        });
        if late {
            self.late_writes = Some(any_of(self.late_writes.as_ref()));
        }
    }

    /// A device may carry out a late write at any moment: no observed content is final.
    fn apply_late_writes(&mut self) {
        if let (Some(late), Body::File(content)) = (&self.late_writes, &self.body) {
            let any = Content::any_of([(content, false), (late, false)].into_iter());
            self.body = Body::File(any.sized_as(content));
        }
    }

    /// A client uses these blocks: the server recalled them, so others' changes there are stable.
    fn recall_from_others(&mut self, client: usize, blocks: (u64, u64)) {
        self.dirty.retain(|dirty| dirty.client == client || !dirty.touches(blocks));
    }
}

impl FsState {
    /// Reads and edits of a file's content.
    pub(crate) fn content(
        &self,
        call: &Call,
        ino: Ino,
        content: &Content,
        outcome: &Outcome,
    ) -> Step {
        let mut step = self.content_now(call, ino, content, outcome);
        match &mut step {
            Step::Next(next) => next.apply_late_writes(ino),
            Step::Several(several) => {
                several.iter_mut().for_each(|next| next.apply_late_writes(ino))
            }
            Step::Same | Step::Impossible(_) => {}
        }
        step
    }

    /// Allows for late writes that a device has carried out or not.
    fn apply_late_writes(&mut self, ino: Ino) {
        if self.nodes.get(&ino).is_some_and(|node| node.late_writes.is_some()) {
            self.node(ino).apply_late_writes();
        }
    }

    /// Like [`FsState::content`], without late writes of devices.
    fn content_now(&self, call: &Call, ino: Ino, content: &Content, outcome: &Outcome) -> Step {
        if let Op::Read { offset, len, .. } = &call.op {
            let Outcome::Bytes(read) = outcome else { return impossible("bytes") };
            let seen = match content.read(*offset, *len, read) {
                Err(want) => impossible(want),
                Ok(new) => self.was_read(call, ino, new, *offset, *len, read),
            };
            return self
                .or_stale_view(call, ino, seen, |old| old.read(*offset, *len, read).is_ok());
        }
        if let Op::End(_, at) = call.op {
            let seen = match content.read(at, 1, &[]) {
                Err(want) => impossible(want),
                Ok(new) => self.end_was_seen(ino, new, at),
            };
            return self.or_stale_view(call, ino, seen, |old| old.read(at, 1, &[]).is_ok());
        }
        let Some(edit) = Edit::of(&call.op).filter(|_| *outcome == Outcome::Done) else {
            return impossible("success");
        };
        // A store does not extend the file: its kernel may not know yet what a lost session took.
        let store = matches!(call.op, Op::Write { file: MAPPED, .. });
        let mut next: Vec<FsState> = content
            .edit(edit)
            .into_iter()
            .map(|new| if store { new.no_longer_than(content) } else { new })
            .map(|new| {
                let mut next = self.clone();
                next.edited(call, ino, content, new, edit);
                next
            })
            .collect();
        match next.len() {
            1 => next.pop().map_or(Step::Same, Step::Next),
            _ => Step::Several(next),
        }
    }

    /// The step `seen`, or a stale read: until a client knows of its lost session, its kernel shows
    /// the content from before.
    fn or_stale_view(
        &self,
        call: &Call,
        ino: Ino,
        seen: Step,
        was_there: impl FnOnce(&Content) -> bool,
    ) -> Step {
        let loss = self.nodes[&ino].loss.as_ref().filter(|loss| loss.client == call.client);
        let before = loss.filter(|_| self.is_unaware(call)).map(|loss| &loss.before);
        if !before.is_some_and(was_there) {
            return seen;
        }
        match seen {
            Step::Next(next) => Step::Several(vec![next, self.clone()]),
            Step::Impossible(_) => Step::Same,
            seen => seen,
        }
    }

    fn was_read(
        &self,
        call: &Call,
        ino: Ino,
        new: Option<Content>,
        offset: u64,
        len: u32,
        read: &[u8],
    ) -> Step {
        let node = &self.nodes[&ino];
        let others = node.dirty.iter().any(|dirty| dirty.client != call.client);
        if new.is_none() && !others && node.loss.is_none() {
            return Step::Same;
        }
        let mut next = self.clone();
        let node = next.node(ino);
        if let Some(new) = new {
            node.body = Body::File(new);
        }
        // A read to the end needs the whole file.
        let all = read.len() < len as usize;
        node.recall_from_others(
            call.client,
            if all { (0, u64::MAX) } else { blocks_of(offset, len) },
        );
        for other in node.dirty.iter_mut().filter(|dirty| dirty.client != call.client) {
            Rc::make_mut(other).was_read(offset, len, read);
        }
        node.recheck_loss(|intact| intact.read(offset, len, read).is_ok());
        Step::Next(next)
    }

    /// Knowing the end makes nothing stable: the client may have only glimpsed the size.
    fn end_was_seen(&self, ino: Ino, new: Option<Content>, at: u64) -> Step {
        if new.is_none() && self.nodes[&ino].loss.is_none() {
            return Step::Same;
        }
        let mut next = self.clone();
        let node = next.node(ino);
        if let Some(new) = new {
            node.body = Body::File(new);
        }
        node.recheck_loss(|intact| intact.read(at, 1, &[]).is_ok());
        Step::Next(next)
    }

    fn edited(&mut self, call: &Call, ino: Ino, old: &Content, new: Content, edit: Edit) {
        let may_crash = self.may_crash;
        let node = self.node(ino);
        if let Some(loss) = node.loss.as_mut().map(Rc::make_mut) {
            loss.if_nothing_lost =
                loss.if_nothing_lost.take().and_then(|intact| intact.edited(edit));
            if loss.client == call.client
                && let Some(before) = loss.before.edited(edit)
            {
                loss.before = before;
            }
        }
        if may_crash {
            node.recall_from_others(call.client, edit.blocks());
            for other in node.dirty.iter_mut().filter(|dirty| dirty.client != call.client) {
                Rc::make_mut(other).wrote_through(edit);
            }
            let dirty = node.dirtied_by(call.client, old);
            let through =
                matches!(&call.op, Op::Write { until: Until::Durable, offset: Some(_), .. });
            if through && !call.guessed {
                dirty.wrote_through(edit);
                // None of it may be lost, whatever other clients lose.
                node.dirty.retain(|dirty| dirty.client != call.client || !dirty.is_stable());
            } else {
                dirty.changes(edit.blocks());
                dirty.add(&new, call.ended, matches!(edit, Edit::Write { .. }));
            }
        }
        node.body = Body::File(new);
    }

    /// fsync, syncfs and fsync of a directory.
    pub(crate) fn synced(&self, call: &Call, ino: Option<Ino>, outcome: &Outcome) -> Step {
        if *outcome == Outcome::Failed(Fault::Io) && self.is_unaware(call) {
            // The session was lost during the sync, perhaps with data.
            return Step::Same;
        }
        if *outcome != Outcome::Done {
            return impossible("durable");
        }
        let of = |(at, node): &(&Ino, &Rc<Node>)| {
            ino.is_none_or(|ino| ino == **at) && node.is_dirty_of(call.client)
        };
        let dirty: Vec<Ino> = self.nodes.iter().filter(of).map(|(ino, _)| *ino).collect();
        if dirty.is_empty() {
            return Step::Same;
        }
        let mut next = self.clone();
        for ino in dirty {
            next.node(ino).synced(call.client, call.begun);
        }
        Step::Next(next)
    }

    /// These inodes replaced something by a rename that began then: earlier changes of them by any
    /// client are committed (SEMANTICS 2.4).
    pub(crate) fn replaced(&mut self, inos: impl Iterator<Item = Ino>, begun: u64) {
        for ino in inos {
            if self.nodes.get(&ino).is_none_or(|node| node.dirty.is_empty()) {
                continue;
            }
            let node = self.node(ino);
            for dirty in &mut node.dirty {
                Rc::make_mut(dirty).synced(begun);
            }
            node.dirty.retain(|dirty| !dirty.is_stable());
        }
    }

    /// Did the call begin before its client knew of its lost session?
    pub(crate) fn is_unaware(&self, call: &Call) -> bool {
        let of = (call.client, ShardId(0))..=(call.client, ShardId(u8::MAX));
        self.learned.range(of).any(|(_, learned)| call.begun < *learned)
    }

    /// The open files of a client on these inodes.
    pub(crate) fn open_of(&self, client: usize, inos: &[Ino]) -> Vec<(Ino, FileNo)> {
        let of = |ino: &Ino| self.opens.get(&(client, *ino)).map(|opens| (*ino, &opens.files));
        let open = inos.iter().filter_map(of);
        open.flat_map(|(ino, files)| files.iter().map(move |file| (ino, *file))).collect()
    }

    /// A client gives up these open files: their files were lost before they became durable, or the
    /// client assumes so.
    pub(crate) fn give_up_handles(&mut self, client: usize, files: &[(Ino, FileNo)]) {
        for &(ino, file) in files {
            let times = self.may_report_loss.get(&(client, file)).copied().unwrap_or(0);
            self.closed(client, file, ino);
            // An open file reports the loss of writes even if the file itself is lost.
            self.may_report_loss.insert((client, file), times.saturating_add(1));
            self.stale_handles.entry((client, ino)).or_default().push(file);
        }
    }

    /// A client may assume that these inodes are lost.
    pub(crate) fn mark_uncertain(&mut self, client: usize, inos: &[Ino]) {
        self.uncertain.extend(inos.iter().map(|ino| (client, *ino)));
    }

    /// Does it name an inode that its client must assume lost, or a directory so, before the client
    /// knew of the loss? An interrupted replay may have made the inode durable. The client cannot
    /// know this, and meant the lost one. (Open files report the loss:
    /// [`FsState::give_up_handles`].)
    pub(crate) fn is_uncertain(&self, call: &Call) -> bool {
        let by = match &call.op {
            Op::Lookup(at) | Op::Make(at, _) | Op::Create { at, .. } => [at.dir; 2],
            Op::Symlink(at, _) => [at.dir; 2],
            Op::Unlink(at) | Op::Rmdir(at) => [at.dir; 2],
            Op::Rename { from, to, .. } => [from.dir, to.dir],
            Op::Link(ino, at) => [*ino, at.dir],
            Op::GetAttr(ino) | Op::Open(ino, _) | Op::TmpFile(ino, _) => [*ino; 2],
            Op::Truncate(ino, _) | Op::SetMode(ino, _) | Op::SetOwner { ino, .. } => [*ino; 2],
            Op::SetXattr(ino, _) | Op::GetXattr(ino) | Op::ReadLink(ino) => [*ino; 2],
            _ => return false,
        };
        let uncertain = by.iter().any(|ino| self.uncertain.contains(&(call.client, *ino)));
        uncertain && self.is_unaware(call)
    }

    /// May a rename of one inode over another fail because content of them is lost (SEMANTICS 2.4)?
    pub(crate) fn lost_before(&self, call: &Call, moved: Option<Ino>, over: Option<Ino>) -> bool {
        over.is_some() && [moved, over].iter().flatten().any(|ino| self.may_have_lost(call, *ino))
    }

    /// May the client have lost content of the file without a report to a process of it?
    fn may_have_lost(&self, call: &Call, ino: Ino) -> bool {
        let reports = |file: &FileNo| {
            let place = (call.client, *file);
            self.must_report_loss.contains(&place) || self.may_report_loss.contains_key(&place)
        };
        let loss = self.nodes.get(&ino).and_then(|node| node.loss.as_ref());
        let client = call.client;
        loss.is_some_and(|loss| loss.client == client || loss.earlier.contains(&client))
            || self.opens.get(&(call.client, ino)).is_some_and(|o| o.files.iter().any(reports))
    }

    /// The first operation by an open file that must report a loss. `None`: no special case.
    pub(crate) fn report_loss(&self, call: &Call, file: FileNo, outcome: &Outcome) -> Option<Step> {
        let ino = match &call.op {
            Op::Fsync(ino, _) | Op::Close(ino, _) => *ino,
            Op::Write { ino, .. } | Op::Allocate { ino, .. } => *ino,
            _ => return None,
        };
        let mut next = self.clone();
        next.must_report_loss.remove(&(call.client, file));
        if *outcome == Outcome::Failed(Fault::Io) {
            if let Op::Close(..) = &call.op {
                next.closed(call.client, file, ino);
            }
            // A synchronous write fails after it took effect.
            if matches!(&call.op, Op::Write { until, .. } if until.is_later()) {
                let written = Call { outcome: Some(Outcome::Done), ..call.clone() };
                return Some(match next.step(&written) {
                    Step::Next(other) => Step::Several(vec![next, other]),
                    Step::Several(mut others) => {
                        others.push(next);
                        Step::Several(others)
                    }
                    _ => Step::Next(next),
                });
            }
            return Some(Step::Next(next));
        }
        if *outcome != Outcome::Done || self.is_unaware(call) {
            return None;
        }
        let node = next.nodes.get(&ino)?;
        let loss = node.loss.as_ref().filter(|loss| loss.client == call.client)?;
        let Some(intact) = loss.if_nothing_lost.clone() else {
            return Some(impossible("EIO: data were lost"));
        };
        // No loss is reported: nothing was lost.
        next.node(ino).body = Body::File(intact);
        Some(match next.step(call) {
            Step::Same => Step::Next(next),
            step => step,
        })
    }

    /// The steps, each with an answer, that an operation without an answer may have done.
    pub(crate) fn possible_answers(
        &self,
        call: &Call,
        unmade: &[Ino],
        index: usize,
    ) -> Vec<Rc<Call>> {
        let with = |outcome: Outcome| {
            Rc::new(Call { outcome: Some(outcome), guessed: true, ..call.clone() })
        };
        match &call.op {
            Op::Make(..) | Op::Symlink(..) | Op::Create { .. } => {
                // No client needs to have seen its number.
                let unseen = Ino(u64::MAX - 1000 - index as u64);
                let made = unmade.iter().copied().chain([unseen]);
                made.filter(|ino| !self.nodes.contains_key(ino))
                    .map(|ino| with(Outcome::Found(Some(ino))))
                    .collect()
            }
            // A part of a synchronous write may be stable before it ends.
            Op::Write { offset: Some(offset), len, until, .. } => {
                // Through the page cache a write goes out in several requests, and only the first
                // may have gone.
                let (first, end) = (*offset, offset + u64::from(*len));
                let pages =
                    (first / BLOCK_U64 + 1..end.div_ceil(BLOCK_U64)).map(|at| at * BLOCK_U64);
                let part = |to: u64| {
                    let mut call = Call::clone(&with(Outcome::Done));
                    if let Op::Write { len, .. } = &mut call.op {
                        *len = (to - first) as u32;
                    }
                    Rc::new(call)
                };
                let failed = until.is_later().then(|| with(Outcome::DeviceFailed));
                pages.chain([end]).map(part).chain(failed).collect()
            }
            Op::Write { until, .. } if until.is_later() => {
                vec![with(Outcome::Done), with(Outcome::DeviceFailed)]
            }
            // It may be done in part.
            Op::Allocate { .. } => vec![with(Outcome::Done), with(Outcome::NoRoom)],
            _ => vec![with(Outcome::Done)],
        }
    }

    /// An operation by an open file whose file was lost, or perhaps lost: it fails for good,
    /// whatever inode has the number now. `None`: no special case.
    pub(crate) fn by_stale_handle(&self, call: &Call, outcome: &Outcome) -> Option<Step> {
        let ino = match &call.op {
            Op::Fsync(ino, _) | Op::Close(ino, _) | Op::Truncate(ino, _) | Op::GetAttr(ino) => *ino,
            Op::Write { ino, .. } | Op::Allocate { ino, .. } | Op::Read { ino, .. } => *ino,
            Op::SetMode(ino, _) | Op::SetXattr(ino, _) | Op::GetXattr(ino) => *ino,
            Op::SetOwner { ino, .. } | Op::ReadLink(ino) | Op::Lock { ino, .. } => *ino,
            _ => return None,
        };
        let files = self.stale_handles.get(&(call.client, ino))?;
        let refused =
            matches!(outcome, Outcome::Failed(Fault::Stale | Fault::NotFound | Fault::Io));
        let freed =
            matches!(call.op, Op::Lock { exclusive: None, .. }) && *outcome == Outcome::Done;
        let Some(file) = call.op.file() else {
            return (refused || freed && !self.nodes.contains_key(&ino)).then_some(Step::Same);
        };
        if !files.contains(&file) {
            return None;
        }
        if let Op::Close(..) = call.op {
            let mut next = self.clone();
            next.drop_stale_handle(call.client, file, ino);
            next.may_report_loss.remove(&(call.client, file));
            return Some(Step::Next(next));
        }
        let unaware = self.is_unaware(call) && *outcome == Outcome::Done;
        Some(match refused || unaware {
            true => Step::Same,
            false => impossible("an error: the file itself was lost"),
        })
    }

    /// The descriptor is closed.
    pub(crate) fn drop_stale_handle(&mut self, client: usize, file: FileNo, ino: Ino) {
        if let Some(files) = self.stale_handles.get_mut(&(client, ino)) {
            files.retain(|other| *other != file);
            if files.is_empty() {
                self.stale_handles.remove(&(client, ino));
            }
        }
    }

    /// The session of a client with the server of a shard is over; `late`: devices may still carry
    /// out its writes.
    pub(crate) fn lost(
        &self,
        (client, shard): (usize, ShardId),
        dead: bool,
        edits: &[Op],
        late: bool,
    ) -> FsState {
        let mut next = self.clone();
        for op in edits {
            next.may_have_edited(client, op);
        }
        // Abandoned lock requests end with the session.
        if !next.abandoned_locks.taken.is_empty() {
            let all = Rc::make_mut(&mut next.abandoned_locks).taken.values_mut();
            for (_, taken, before) in all.filter(|(ino, ..)| is_of(shard, *ino)) {
                taken.retain(|lock| owner_of(lock.owner) != client);
                before.retain(|lock| owner_of(lock.owner) != client);
            }
        }
        let inos: Vec<Ino> = self.nodes.keys().copied().filter(|ino| is_of(shard, *ino)).collect();
        for ino in inos {
            if self.nodes[&ino].is_locked_by(client) {
                next.node(ino).locks.retain(|lock| owner_of(lock.owner) != client);
            }
            if next.nodes[&ino].is_dirty_of(client) {
                next.lose_content(client, ino, dead, late);
            }
        }
        if next.failed_flushes.contains_key(&(client, shard)) {
            Rc::make_mut(&mut next.failed_flushes).remove(&(client, shard));
        }
        let is_its = |(holder, ino): &(usize, Ino)| *holder == client && is_of(shard, *ino);
        if dead {
            next.opens.retain(|of, _| !is_its(of));
            next.must_report_loss.retain(|(holder, _)| *holder != client);
            next.may_report_loss.retain(|(holder, _), _| *holder != client);
            next.stale_handles.retain(|of, _| !is_its(of));
            next.drop_old_orphans();
        } else {
            let of = next.opens.iter_mut().filter(|(of, _)| is_its(of));
            of.for_each(|(_, opens)| opens.session_lost = true);
        }
        next
    }

    /// The client was editing a file when it ended.
    fn may_have_edited(&mut self, client: usize, op: &Op) {
        let Some(ino) = op.edited().filter(|ino| self.nodes.contains_key(ino)) else { return };
        let node = self.node(ino);
        let (Body::File(content), Some(edit)) = (&node.body, Edit::of(op)) else { return };
        let (content, edited) = (content.clone(), content.edit(edit));
        let meets = |dirty: &Rc<Dirty>| dirty.client != client && dirty.touches(edit.blocks());
        let Some(met) = node.dirty.iter().position(meets) else {
            let dirty = node.dirtied_by(client, &content);
            dirty.changes(edit.blocks());
            for edited in edited {
                dirty.add(&edited, u64::MAX, matches!(op, Op::Write { .. }));
            }
            return;
        };
        // Either the edit had not begun, or the other client's changes were stable before.
        let perhaps = Content::any_of(
            std::iter::once((&content, false)).chain(edited.iter().map(|edited| (edited, true))),
        );
        let dirty = Rc::make_mut(&mut node.dirty[met]);
        dirty.add(&perhaps, u64::MAX, false);
        node.body = Body::File(perhaps);
    }

    fn lose_content(&mut self, client: usize, ino: Ino, dead: bool, late: bool) {
        let failed = self.failed_flushes.get(&(client, ino.shard())).copied().unwrap_or(0);
        let node = self.node(ino);
        let Some(at) = node.dirty.iter().position(|dirty| dirty.client == client) else { return };
        let dirty = node.dirty.remove(at);
        let Body::File(intact) = &node.body else { return };
        if dirty.is_stable() {
            return;
        }
        if !dead {
            let (intact, before) = (Some(intact.clone()), intact.clone());
            node.loses(client, intact, before);
        }
        let left = dirty.lost();
        node.add_lost_content(&left, dirty.has_unsynced_before(failed), late);
        for other in &mut node.dirty {
            Rc::make_mut(other).other_lost(&dirty, &left);
        }
        if let Some(earlier) = node.loss.as_mut().filter(|earlier| earlier.client != client)
            && let Some(intact) = earlier.if_nothing_lost.clone()
        {
            // A client with an earlier possible loss has not lost these changes.
            let either = Content::any_of([(&intact, false), (&left, false)].into_iter());
            Rc::make_mut(earlier).if_nothing_lost = Some(either);
        }
        node.body = Body::File(left);
        if !dead && let Some(opens) = self.opens.get(&(client, ino)) {
            self.must_report_loss.extend(opens.files.iter().map(|file| (client, *file)));
        }
    }
}
