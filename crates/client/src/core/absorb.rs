//! How the answer to each operation changes the caches.

use std::rc::Rc;

use proto::mds::{LayoutSlice, Leased, Op, OpReply, Reply, Request};
use proto::wire::Bytes;
use types::{Attr, Bug, Fault, FileKind, Ino, Name, Rights, ShardId, planted};

use super::Core;
use crate::inode::{CAPABILITY, Inode, Xattrs, has_name};
use crate::ops::open::WANT_NEW;

/// The flag of renames that exchange two names.
const EXCHANGE: u32 = 2;

impl Core {
    /// Applies the result of an operation.
    pub(super) fn absorb_op(&self, op: &Op, reply: &OpReply) {
        match op {
            Op::Lookup { name, .. } => self.absorb_lookup(name, reply),
            Op::ReadDir { cookie, .. } => self.absorb_listing(*cookie, reply),
            Op::Create { name, node, want, .. } => {
                self.absorb_created(Some(name), node.kind, *want, reply);
            }
            Op::CreateTmpfile { node, want, .. } => {
                self.absorb_created(None, node.kind, *want, reply);
            }
            Op::Link { name, .. } => self.absorb_linked(name, reply),
            Op::Unlink { name, unused, .. } => self.absorb_removed(name, *unused, reply),
            Op::Rmdir { name, .. } => self.absorb_removed(name, None, reply),
            Op::Rename { name, new_name, flags, unused, .. } => {
                self.absorb_renamed((name, new_name, *flags), *unused, reply);
            }
            Op::GetAttr { .. } => {
                self.absorb_attr(reply);
            }
            Op::SetAttr { .. } | Op::Commit { .. } | Op::SwapLayouts { .. } => {
                self.absorb_changed_attr(reply);
            }
            Op::SetXattr { name, .. } => self.absorb_changed_xattr(&name.0, true, reply),
            Op::RemoveXattr { name, .. } => self.absorb_changed_xattr(&name.0, false, reply),
            Op::ListXattr { .. } => self.absorb_xattr_names(reply),
            Op::GetXattr { .. } | Op::ReadLink { .. } => {
                if let OpReply::Bytes { leased: Some(leased), .. } = reply {
                    self.apply_attr_and_lease(leased);
                }
            }
            Op::Acquire { .. } => self.absorb_acquired(reply),
            Op::Lock { .. } | Op::Unlock { .. } => self.absorb_lock(op, reply),
            Op::MoveDirectory { dir: ino, shard } | Op::MoveFile { ino, shard, .. } => {
                // If no server has this shard, the next request for the inode fails.
                let _ = self.rpc.note_home(*ino, ShardId(*shard));
            }
            // The operation that waits for the answer applies it, or there is nothing to apply.
            Op::Layout { .. }
            | Op::Space { .. }
            | Op::Place { .. }
            | Op::EndPlacing { .. }
            | Op::ReturnSpace { .. }
            | Op::TakeBack { .. }
            | Op::Sync {}
            | Op::Statfs {}
            | Op::TestLock { .. }
            | Op::CancelLock { .. }
            | Op::Return { .. }
            | Op::Reclaim { .. }
            | Op::ReclaimDone {}
            | Op::Renew {}
            | Op::Goodbye {}
            | Op::Status {}
            | Op::Evict { .. }
            | Op::Scrub { .. }
            | Op::Why { .. }
            | Op::Zones {}
            | Op::Servers {}
            | Op::Tell { .. }
            | Op::Lend { .. }
            | Op::Where { .. }
            | Op::AddZone { .. }
            | Op::SetZoneState { .. }
            | Op::ZoneFiles { .. } => {}
        }
    }

    fn absorb_lock(&self, op: &Op, reply: &OpReply) {
        match (op, reply) {
            (Op::Lock { ino, lock, .. }, OpReply::Done {}) => self.locks.granted(*ino, lock),
            (Op::Unlock { ino, lock }, OpReply::Done {}) => _ = self.locks.unlocked(*ino, lock),
            _ => {}
        }
    }

    fn absorb_lookup(&self, name: &Name, reply: &OpReply) {
        let OpReply::Entry { entry, dir } = reply else { return };
        let (dir, keep) = self.apply_dir(dir);
        match entry {
            Some(leased) => {
                self.apply_attr_and_lease(leased);
                self.note_parent(leased.attr.ino, dir.ino);
                if keep {
                    dir.names(|names| names.add(name, leased.attr.ino));
                }
            }
            None if keep => dir.names(|names| names.remove(name)),
            None => {}
        }
    }

    fn absorb_listing(&self, cookie: u64, reply: &OpReply) {
        let OpReply::Entries { entries, end, dir } = reply else { return };
        let (dir, keep) = self.apply_dir(dir);
        for entry in entries {
            if let Some(leased) = &entry.leased {
                self.apply_attr_and_lease(leased);
            }
        }
        if keep {
            dir.names(|names| {
                for entry in entries {
                    names.add(&entry.name, entry.ino);
                }
                let next = entries.last().map_or(cookie, |entry| entry.cookie);
                names.listed(cookie, next, *end);
            });
        }
    }

    /// `name`: none if it was created as an orphan.
    fn absorb_created(&self, name: Option<&Name>, kind: FileKind, want: Rights, reply: &OpReply) {
        let OpReply::Created { leased, dir, inline_max, placement, object } = reply else {
            return;
        };
        let applied = self.apply_attr_and_lease(leased);
        self.apply_dir_change(dir, name.map(|name| (name, Some(leased.attr.ino))));
        let Some((inode, newer)) = applied else { return };
        let empty = LayoutSlice {
            to: u64::MAX,
            inline_max: *inline_max,
            placement: placement.clone(),
            object: object.clone(),
            ..LayoutSlice::default()
        };
        self.apply_created(&inode, &leased.attr, newer, want, empty);
        if kind == FileKind::Directory {
            let fresh = inode.holds(Rights::NAMES);
            inode.names(|names| {
                if fresh {
                    names.begin_empty();
                }
                names.parent = Some(dir.attr.ino);
            });
        }
    }

    fn apply_created(
        &self,
        inode: &Rc<Inode>,
        attr: &Attr,
        newer: bool,
        want: Rights,
        empty: LayoutSlice,
    ) {
        if want.contains(WANT_NEW) {
            // Counts as open from here on: a recall may come before the creating operation goes on.
            inode.count_open(1);
        }
        let inherits = !empty.placement.0.is_empty();
        inode.cache_xattrs(attr, if inherits { Xattrs::Unknown } else { Xattrs::OnlyAcls });
        if want.intersects(Rights::DATA_S | Rights::DATA_X) {
            self.apply_whole_grant(inode, newer, empty);
            if inode.holds(Rights::DATA_X)
                && let Some(data_lease) = inode.data_lease()
            {
                data_lease.created(self.rpc.order());
            }
        }
    }

    fn absorb_linked(&self, name: &Name, reply: &OpReply) {
        let OpReply::Linked { leased, dir } = reply else { return };
        if self.apply_attr_and_lease(leased).is_none() {
            self.void(leased.attr.ino, Rights::ATTR);
        }
        self.apply_dir_change(dir, Some((name, Some(leased.attr.ino))));
    }

    fn absorb_removed(&self, name: &Name, unused: Option<Ino>, reply: &OpReply) {
        let OpReply::Removed { attr, dir, kept, .. } = reply else { return };
        self.apply_dir_change(dir, Some((name, None)));
        if self.is_elsewhere(attr) {
            return self.void_after_removal(attr.ino, attr.kind == FileKind::Directory);
        }
        let given_up = unused == Some(attr.ino) && !kept;
        self.apply_name_removed(attr, given_up || attr.kind == FileKind::Directory);
    }

    fn absorb_renamed(
        &self,
        (name, new_name, flags): (&Name, &Name, u32),
        unused: Option<Ino>,
        reply: &OpReply,
    ) {
        let OpReply::Renamed { moved, replaced, from, to, kept, whiteout } = reply else { return };
        self.apply_rename((name, new_name, flags), moved, replaced.as_ref(), from, to);
        if let Some(whiteout) = &whiteout.0 {
            self.apply_attr_and_lease(whiteout);
            self.apply_dir_change(from, Some((name, Some(whiteout.attr.ino))));
        }
        if let Some(attr) = replaced.as_ref().filter(|attr| self.is_elsewhere(attr)) {
            let stays = flags & EXCHANGE != 0 || attr.ino == moved.attr.ino;
            self.void_after_removal(attr.ino, !stays && attr.kind == FileKind::Directory);
        } else if let Some(attr) = replaced {
            self.apply_name_removed(attr, unused == Some(attr.ino) && !kept);
        }
    }

    fn apply_rename(
        &self,
        (name, new_name, flags): (&Name, &Name, u32),
        moved: &Leased,
        replaced: Option<&Attr>,
        from: &Leased,
        to: &Leased,
    ) {
        let exchanged = replaced.filter(|_| flags & EXCHANGE != 0).map(|attr| attr.ino);
        if self.apply_attr_and_lease(moved).is_none() {
            self.void(moved.attr.ino, Rights::ATTR);
        }
        // A rename between two names of one inode changes nothing.
        let same = flags & EXCHANGE == 0 && replaced.is_some_and(|attr| attr.ino == moved.attr.ino);
        if !same || planted(Bug::SameFileRename) {
            self.apply_dir_change(from, Some((name, exchanged)));
            self.apply_dir_change(to, Some((new_name, Some(moved.attr.ino))));
        }
        self.note_parent(moved.attr.ino, to.attr.ino);
        if let Some(exchanged) = exchanged {
            self.note_parent(exchanged, from.attr.ino);
        }
    }

    fn absorb_attr(&self, reply: &OpReply) -> Option<Rc<Inode>> {
        let OpReply::Attr { leased } = reply else { return None };
        Some(self.apply_attr_and_lease(leased)?.0)
    }

    /// Applies the attributes after a change.
    fn absorb_changed_attr(&self, reply: &OpReply) -> Option<Rc<Inode>> {
        let inode = self.absorb_attr(reply)?;
        // While several clients write, a reply to a change has the server's size and times.
        if inode.data_lease().is_some_and(|data| data.holds_ranges()) {
            inode.mark_size_stale();
        }
        Some(inode)
    }

    fn absorb_changed_xattr(&self, name: &[u8], set: bool, reply: &OpReply) {
        if let Some(inode) = self.absorb_changed_attr(reply) {
            inode.forget_xattrs();
            self.changed_xattr(inode.ino, name, set);
        }
    }

    /// Applies a change of an extended attribute to the cached list of the mounted directory.
    fn changed_xattr(&self, ino: Ino, name: &[u8], set: bool) {
        let mut known = self.root_xattrs.borrow_mut();
        let Some(names) = known.as_mut().filter(|_| ino == self.root.get()) else { return };
        let others = names.split_inclusive(|byte| *byte == 0).filter(|n| n[..n.len() - 1] != *name);
        let mut changed = others.flatten().copied().collect::<Vec<u8>>();
        if set {
            changed.extend_from_slice(name);
            changed.push(0);
        }
        *names = changed;
    }

    fn absorb_xattr_names(&self, reply: &OpReply) {
        let OpReply::Bytes { bytes, leased: Some(leased) } = reply else { return };
        let Some((inode, newer)) = self.apply_attr_and_lease(leased) else { return };
        if inode.ino == self.root.get() {
            *self.root_xattrs.borrow_mut() = Some(bytes.0.clone());
        }
        if newer {
            inode.cache_xattrs(&leased.attr, Xattrs::Names(bytes.0.as_slice().into()));
        }
    }

    /// Applies what a reply says about `security.capability`, for a client that may write the file.
    pub(super) fn absorb_capability(&self, request: &Request, reply: &Reply, order: u64) {
        let is_cap = |name: &Bytes| name.0 == CAPABILITY;
        let data_lease = |ino: &Ino| self.inodes.get(*ino).and_then(|inode| inode.data_lease());
        match (&request.ops[..], &reply.results[..]) {
            (
                [Op::Acquire { ino, .. }, Op::ListXattr { .. }],
                [Ok(_), Ok(OpReply::Bytes { bytes, .. })],
            ) => {
                if let Some(data_lease) = data_lease(ino) {
                    data_lease.capability_reply(!has_name(&bytes.0, CAPABILITY), order, true);
                }
            }
            ([Op::RemoveXattr { ino, name }], [Ok(_) | Err(Fault::NoAttribute)])
                if is_cap(name) =>
            {
                if let Some(data_lease) = data_lease(ino) {
                    data_lease.capability_reply(true, order, false);
                }
            }
            ([Op::SetXattr { ino, name, .. }], [Ok(_)]) if is_cap(name) => {
                if let Some(data_lease) = data_lease(ino) {
                    data_lease.set_capability(self.rpc.order());
                }
            }
            _ => {}
        }
    }

    fn absorb_acquired(&self, reply: &OpReply) {
        let OpReply::Acquired { leased, layout, ranges, .. } = reply else { return };
        let Some((inode, newer)) = self.apply_attr_and_lease(leased) else { return };
        if ranges.is_empty() || !inode.holds(Rights::DATA_P) {
            // Without a layout the reply grants no right on content: another one does.
            if let Some(layout) = layout {
                self.apply_whole_grant(&inode, newer, layout.clone());
            }
        } else if newer {
            self.apply_range_grant(&inode, &leased.attr, ranges, layout.as_ref());
        }
    }
}
