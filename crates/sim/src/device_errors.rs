//! The part of the model that knows what failing devices do.
//!
//! Invariants:
//! - a client that reports lost writes of a file has lost only what nobody had made stable, and
//!   reports it by every open file of that inode;
//! - what a failed flush should have made stable may be lost at a power cut; until then it is
//!   there. This holds also for files that the client did not report before its session was lost;
//! - bytes that a failed write should have replaced, or zeroed behind a new end, may be seen again
//!   if a later write of the same place fails too;
//! - an error that a device returns at once changes nothing, or a part of the request.

use std::rc::Rc;

use types::{Fault, Ino};

use crate::call::{Call, FileNo, Op, Outcome, Until};
use crate::content::{Content, Dirty, Edit};
use crate::model::{Body, FsState, NotDurable, Step, impossible};

impl FsState {
    /// A device failed a client's write to a file, or with `flush` the flush after it.
    pub(crate) fn damaged(
        &self,
        call: &Call,
        ino: Ino,
        flush: bool,
        reported: &[(FileNo, bool)],
    ) -> Step {
        let mut next = self.clone();
        let of = (call.client, ino.shard());
        next.learned.insert(of, call.ended);
        if flush {
            Rc::make_mut(&mut next.failed_flushes).insert(of, call.ended);
        }
        let opens = self.opens.get(&(call.client, ino)).map(|opens| opens.files.as_slice());
        for &file in opens.unwrap_or_default() {
            let place = (call.client, file);
            match reported.iter().find(|(reported, _)| *reported == file) {
                Some((_, true)) => {}
                Some((_, false)) => *next.may_report_loss.entry(place).or_default() += 1,
                None => _ = next.must_report_loss.insert(place),
            }
        }
        if !self.nodes.contains_key(&ino) {
            return Step::Next(next);
        }
        let node = next.node(ino);
        if let Body::File(content) = &node.body {
            let before = content.clone();
            node.loses(call.client, None, before);
        }
        let mine = node.dirty.iter().position(|dirty| dirty.client == call.client);
        if let (Some(mine), Body::File(content)) = (mine, &node.body) {
            let mut dirty = node.dirty.remove(mine);
            let dirty = Rc::make_mut(&mut dirty);
            // The size stays: only bytes are lost.
            let (before, lost) = (node.not_durable.take(), dirty.lost());
            let all = before.iter().map(|before| &before.content).chain([&lost]);
            let all = Content::any_of(all.map(|content| (content, false)));
            let left = all.clone().sized_as(content);
            dirty.replace_versions(&lost, &left, call.ended);
            let late = before.as_ref().is_some_and(|before| before.late_write);
            let flush = flush || before.is_some_and(|before| before.flush_failed);
            for other in &mut node.dirty {
                Rc::make_mut(other).other_lost(dirty, &left);
            }
            node.dirty.push(Rc::new(dirty.clone()));
            node.not_durable =
                Some(NotDurable { content: all, flush_failed: flush, late_write: late });
            node.body = Body::File(left);
        }
        Step::Next(next)
    }

    /// A kernel could not write back stores into mappings. Every open file of the client on this
    /// inode may report it: once by the kernel and once by the client.
    pub(crate) fn unwritten(&self, call: &Call, ino: Ino) -> Step {
        let mut next = self.clone();
        let opens = self.opens.get(&(call.client, ino)).map(|opens| opens.files.as_slice());
        for &file in opens.unwrap_or_default() {
            // No matter how many pages were lost since its last report.
            let times = next.may_report_loss.entry((call.client, file)).or_default();
            *times = (*times).max(2);
        }
        if !self.nodes.contains_key(&ino) {
            return Step::Next(next);
        }
        let node = next.node(ino);
        if let Some(loss) = node.loss.as_mut().filter(|loss| loss.client == call.client) {
            Rc::make_mut(loss).if_nothing_lost = None;
        }
        let mine = node.dirty.iter().position(|dirty| dirty.client == call.client);
        if let (Some(mine), Body::File(content)) = (mine, &node.body) {
            let mut dirty = Dirty::clone(&node.dirty.remove(mine));
            // The size stays: stores do not extend a file.
            let lost = dirty.lost();
            let left = lost.clone().sized_as(content);
            dirty.replace_versions(&lost, &left, call.ended);
            for other in &mut node.dirty {
                Rc::make_mut(other).other_lost(&dirty, &left);
            }
            node.dirty.push(Rc::new(dirty));
            node.body = Body::File(left);
        }
        Step::Next(next)
    }

    /// Every open file of the client on this inode may report a loss once.
    pub(crate) fn add_possible_report(&mut self, client: usize, ino: Ino) {
        let opens = self.opens.get(&(client, ino)).map(|opens| opens.files.clone());
        for file in opens.unwrap_or_default() {
            let times = self.may_report_loss.entry((client, file)).or_default();
            *times = (*times).max(1);
        }
    }

    /// An open file used one of its possible reports.
    fn use_possible_report(&mut self, client: usize, file: FileNo) {
        if let Some(times) = self.may_report_loss.get_mut(&(client, file)) {
            *times -= 1;
            if *times == 0 {
                self.may_report_loss.remove(&(client, file));
            }
        }
    }

    /// The data devices and all hosts lost power. What failed flushes should have made stable may
    /// be gone, if some of that is `stuck`, and so may late writes.
    pub(crate) fn lost_power(&self, stuck: bool) -> Step {
        let mut next = self.clone();
        for (ino, node) in &self.nodes {
            let not_durable = node
                .not_durable
                .as_ref()
                .filter(|not_durable| not_durable.flush_failed && stuck || not_durable.late_write);
            let (Some(not_durable), Body::File(content)) = (not_durable, &node.body) else {
                continue;
            };
            let lost = node.dirty.iter().map(|dirty| dirty.lost());
            let all: Vec<Content> =
                lost.chain([not_durable.content.clone(), content.clone()]).collect();
            let node = next.node(*ino);
            let content = Content::any_of(all.iter().map(|all| (all, false)));
            node.body = Body::File(content.clone());
            // Zeros behind its end may be gone as well. Nobody sees that before the file grows and
            // that write fails.
            node.not_durable = Some(NotDurable { content, flush_failed: false, late_write: false });
            node.dirty = Vec::new();
        }
        Step::Next(next)
    }

    /// The data devices have carried out everything that they had when they stalled.
    pub(crate) fn settled(&self) -> Step {
        let late = self.nodes.iter().filter(|(_, node)| node.late_writes.is_some());
        let late: Vec<Ino> = late.map(|(ino, _)| *ino).collect();
        if late.is_empty() {
            return Step::Same;
        }
        let mut next = self.clone();
        for ino in late {
            next.node(ino).late_writes = None;
        }
        Step::Next(next)
    }

    /// A device failed this operation.
    pub(crate) fn device_failed(&self, call: &Call) -> Step {
        // A replacing rename that could not commit the content changes no name. What it was to
        // replace another client may have removed while it waited for the device.
        if let Op::Rename { from, .. } = call.op {
            return match self.find(from).and_then(|ino| self.nodes.get(&ino)) {
                Some(node) if matches!(node.body, Body::File(_)) => Step::Same,
                _ => impossible("no EIO: the rename moves no file with content"),
            };
        }
        let asks = matches!(
            call.op,
            Op::Read { .. } | Op::Fsync(..) | Op::SyncAll | Op::Close(..) | Op::Write { .. }
        ) || call.op.edited().is_some();
        if !asks {
            return impossible("no EIO: this needs no data device");
        }
        let mut next = self.clone();
        next.partly_edited(call);
        if let Op::Close(ino, file) = call.op {
            next.closed(call.client, file, ino);
        }
        if let Some(file) = call.op.file() {
            // An error of the device also serves as the report of an earlier loss.
            next.must_report_loss.remove(&(call.client, file));
            next.use_possible_report(call.client, file);
        }
        Step::Next(next)
    }

    /// There was no space. Nothing is done, or a part of an allocation; a synchronous write may be
    /// done without being durable.
    pub(crate) fn no_room(&self, call: &Call) -> Step {
        let mut next = self.clone();
        next.partly_edited(call);
        Step::Next(next)
    }

    /// Is it EIO from an open file that may report a loss, or from a rename of such a file?
    pub(crate) fn is_late_report(&self, call: &Call) -> bool {
        if call.outcome != Some(Outcome::Failed(Fault::Io)) {
            return false;
        }
        let may = |file| self.may_report_loss.contains_key(&(call.client, file));
        let must = |file| self.must_report_loss.contains(&(call.client, file));
        if let Op::Rename { from, .. } = call.op {
            let opens = self.find(from).and_then(|ino| self.opens.get(&(call.client, ino)));
            let mut files = opens.iter().flat_map(|opens| opens.files.iter().copied());
            return files.any(|file| may(file) || must(file));
        }
        call.op.file().is_some_and(may)
    }

    /// A failed edit may have been done in part.
    fn partly_edited(&mut self, call: &Call) {
        // An asynchronous write fails before it changes anything.
        let half = call
            .op
            .edited()
            .filter(|_| !matches!(call.op, Op::Write { until: Until::Accepted, .. }));
        let Some(ino) = half.filter(|ino| self.nodes.contains_key(ino)) else { return };
        let node = self.node(ino);
        let (Body::File(content), Some(edit)) = (&node.body, Edit::of(&call.op)) else { return };
        let edited = content.edit(edit);
        // Any part of a write may have moved the end.
        let by_write = matches!(edit, Edit::Write { .. });
        let edited = edited.iter().map(|edited| (edited, by_write));
        let perhaps = Content::any_of(std::iter::once((content, false)).chain(edited));
        if !node.is_dirty_of(call.client) {
            node.dirty.push(Rc::new(Dirty::new(call.client, content)));
        }
        for dirty in node.dirty.iter_mut().map(Rc::make_mut) {
            // Another client's changes of these blocks are unsynced still if nothing was done, and
            // stable if a part was.
            if dirty.client == call.client || dirty.touches(edit.blocks()) {
                dirty.changes(edit.blocks());
                dirty.add(&perhaps, call.ended, false);
            }
        }
        node.body = Body::File(perhaps);
    }
}
