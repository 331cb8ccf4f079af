//! The kernel's cache of names and inodes.
//!
//! Invariants:
//! - a name is valid until its time runs out or an epoch begins after its request;
//! - attributes are valid until their time runs out or they are invalidated. An answer to a request
//!   from before the invalidation is not applied;
//! - a directory has one name here;
//! - an inode is known from the first answer about it until it is forgotten, together with all its
//!   lookups.

use std::collections::BTreeMap;

use types::{Attr, Duration, FileKind, Ino, Instant, Timestamp};

use crate::call::At;

/// A dentry.
#[derive(Clone, Copy, Debug)]
struct Dentry {
    /// The inode; `None`: a negative dentry.
    leads: Option<Ino>,
    until: Instant,
    epoch: u64,
}

/// An inode.
#[derive(Clone, Copy, Debug)]
struct Node {
    attr: Attr,
    until: Instant,
    invalid: bool,
    version: u64,
    lookups: u64,
    /// Size changes under way: attributes that arrive meanwhile are not applied.
    size_changing: u32,
    /// Number of this kernel's last change that left the version as it was.
    changed: u64,
    /// The generation of the first lookup.
    generation: u64,
    /// They were requested before that change, and applied after it.
    older: bool,
}

/// The state of the cache when a request was sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    epoch: u64,
    /// `None`: the answer is applied whatever happened since.
    version: Option<u64>,
    evictions: u64,
    changes: u64,
    /// When the answer was applied, if it was.
    applied: Option<Instant>,
}

impl Snapshot {
    /// The answer is applied now: its validity begins.
    pub fn applied(self, applied: Instant) -> Snapshot {
        Snapshot { applied: Some(applied), ..self }
    }

    /// The end of a validity of `time`.
    ///
    /// # Panics
    /// If the answer was not applied yet.
    pub fn until(self, time: Duration) -> Instant {
        self.applied.expect("an answer is applied before its validity is used") + time
    }

    /// The same, but attributes of the answer are always applied.
    pub fn accepted_always(self) -> Snapshot {
        Snapshot { version: None, ..self }
    }
}

/// Names and inodes that the kernel remembers.
#[derive(Default)]
pub struct Cache {
    names: BTreeMap<At, Dentry>,
    nodes: BTreeMap<Ino, Node>,
    epoch: u64,
    version: u64,
    evictions: u64,
    changes: u64,
    /// Number of this kernel's last change of an inode that it has forgotten since.
    forgotten: u64,
    counts_evictions: bool,
}

impl Cache {
    /// A newly mounted kernel. `counts_evictions`: for an unknown inode it rejects answers
    /// requested before it forgot an inode.
    pub fn new(counts_evictions: bool) -> Cache {
        Cache { counts_evictions, ..Cache::default() }
    }

    /// A mounted kernel always knows the root, without valid attributes.
    pub fn mounted(&mut self, root: Ino) {
        let attr = Attr {
            ino: root,
            kind: FileKind::Directory,
            mode: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            btime: Timestamp::default(),
            spread: false,
            version: 0,
        };
        self.looked_up(&attr, 0, Instant::default(), Snapshot::default().accepted_always());
    }

    /// A request is sent now.
    pub fn ask(&self) -> Snapshot {
        Snapshot {
            epoch: self.epoch,
            version: Some(self.version),
            evictions: self.evictions,
            changes: self.changes,
            applied: None,
        }
    }

    /// The inode of a name, if the name is valid.
    pub fn name(&self, at: At, now: Instant) -> Option<Option<Ino>> {
        let dentry = self.names.get(&at)?;
        (dentry.epoch >= self.epoch && now < dentry.until).then_some(dentry.leads)
    }

    /// Applies an answer about a name.
    pub fn enter(&mut self, at: At, leads: Option<Ino>, until: Instant, asked: Snapshot) {
        if let Some(ino) = leads.filter(|ino| self.kind(*ino) == Some(FileKind::Directory)) {
            self.names.retain(|_, dentry| dentry.leads != Some(ino));
        }
        self.names.insert(at, Dentry { leads, until, epoch: asked.epoch });
    }

    /// Names are valid from now, whenever they were requested.
    pub fn as_of_now(&self, asked: Snapshot) -> Snapshot {
        Snapshot { epoch: self.epoch, ..asked }
    }

    /// Drops a name.
    pub fn drop_name(&mut self, at: At) {
        self.names.remove(&at);
    }

    /// An answer is about an inode of this generation. `true`: another inode had the number, and
    /// the kernel gives it up; the lookups of both are forgotten together.
    pub fn supersedes(&mut self, attr: &Attr, generation: u64) -> bool {
        let ino = attr.ino;
        let Some(node) = self.nodes.get_mut(&ino) else { return false };
        if node.generation == generation {
            return false;
        }
        self.version += 1;
        let fresh =
            Node { invalid: true, version: self.version, size_changing: 0, generation, ..*node };
        *node = Node { attr: *attr, older: false, changed: 0, ..fresh };
        self.names.retain(|at, dentry| at.dir != ino && dentry.leads != Some(ino));
        true
    }

    /// The generation of a known inode.
    pub fn generation(&self, ino: Ino) -> u64 {
        self.nodes.get(&ino).map_or(0, |node| node.generation)
    }

    /// The type of a known inode.
    pub fn kind(&self, ino: Ino) -> Option<FileKind> {
        self.nodes.get(&ino).map(|node| node.attr.kind)
    }

    /// Attributes, if they are valid.
    pub fn attr(&self, ino: Ino, now: Instant) -> Option<Attr> {
        let node = self.nodes.get(&ino)?;
        (!node.invalid && now < node.until).then_some(node.attr)
    }

    /// May its attributes be from before a change by this kernel?
    pub fn is_older(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|node| node.older)
    }

    /// The size of a known inode, valid or not.
    pub fn size(&self, ino: Ino) -> u64 {
        self.nodes.get(&ino).map_or(0, |node| node.attr.size)
    }

    /// Counts a lookup, and applies its attributes.
    pub fn looked_up(&mut self, attr: &Attr, generation: u64, until: Instant, asked: Snapshot) {
        if let Some(node) = self.nodes.get_mut(&attr.ino) {
            node.lookups += 1;
            self.apply_attr(attr, until, asked);
            return;
        }
        self.version += 1;
        let invalid =
            self.counts_evictions && asked.version.is_some() && asked.evictions < self.evictions;
        let node = Node {
            attr: *attr,
            until,
            invalid,
            version: self.version,
            lookups: 1,
            size_changing: 0,
            changed: 0,
            generation,
            // The change may have invalidated an earlier entry of this inode.
            older: asked.changes < self.forgotten,
        };
        self.nodes.insert(attr.ino, node);
    }

    /// Applies attributes of a known inode. `false`: they are not applied.
    pub fn apply_attr(&mut self, attr: &Attr, until: Instant, asked: Snapshot) -> bool {
        let Some(node) = self.nodes.get_mut(&attr.ino) else { return false };
        if node.size_changing > 0 || asked.version.is_some_and(|version| node.version > version) {
            return false;
        }
        self.version += 1;
        let older = asked.changes < node.changed;
        *node = Node { attr: *attr, until, invalid: false, version: self.version, older, ..*node };
        true
    }

    /// The answer to a SETATTR is always applied; it is valid until `until` unless the attributes
    /// were invalidated since the request.
    pub fn set(&mut self, attr: &Attr, until: Instant, asked: Snapshot) {
        let Some(node) = self.nodes.get_mut(&attr.ino) else { return };
        let overtaken = asked.version.is_some_and(|version| node.version > version);
        self.version += 1;
        let until = if overtaken { Instant::default() } else { until };
        let older = asked.changes < node.changed;
        // An older answer may be applied if the inode has been forgotten meanwhile.
        self.changes += 1;
        let changed = self.changes;
        *node = Node {
            attr: *attr,
            until,
            invalid: false,
            version: self.version,
            older,
            changed,
            ..*node
        };
    }

    /// A change of the size begins (`by` 1) or ends (-1).
    pub fn size_changing(&mut self, ino: Ino, by: i32) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.size_changing = node.size_changing.saturating_add_signed(by);
        }
    }

    /// This kernel changed an inode: its attributes are requested again.
    pub fn changed(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            self.changes += 1;
            node.changed = self.changes;
            node.invalid = true;
        }
    }

    /// Like [`Cache::changed`]; answers to earlier requests are not applied.
    pub fn invalidate(&mut self, ino: Ino) -> bool {
        let Some(node) = self.nodes.get_mut(&ino) else { return false };
        self.version += 1;
        node.version = self.version;
        node.invalid = true;
        true
    }

    /// A write, or a read at the end, shows the size.
    pub fn set_size(&mut self, ino: Ino, size: u64) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            self.version += 1;
            node.version = self.version;
            node.attr.size = size;
        }
    }

    /// Are the attributes newer than the request?
    pub fn is_newer(&self, ino: Ino, asked: Snapshot) -> bool {
        let node = self.nodes.get(&ino);
        node.is_none_or(|node| {
            node.size_changing > 0 || asked.version.is_some_and(|version| node.version > version)
        })
    }

    /// Invalidates all known names.
    pub fn begin_epoch(&mut self) {
        self.epoch += 1;
    }

    /// A name was removed.
    pub fn unlinked(&mut self, at: At) {
        let gone = self.names.remove(&at).and_then(|dentry| dentry.leads);
        if let Some(ino) = gone {
            self.invalidate(ino);
            self.names.retain(|other, _| other.dir != ino);
        }
        self.changed(at.dir);
    }

    /// A name was moved, or two exchanged: dentries move along while valid.
    pub fn renamed(&mut self, from: At, to: At, exchange: bool) {
        let (moved, over) = (self.names.remove(&from), self.names.remove(&to));
        if let Some(ino) = moved.and_then(|dentry| dentry.leads) {
            self.changed(ino);
        }
        if let Some(ino) = over.and_then(|dentry| dentry.leads) {
            if exchange { self.changed(ino) } else { _ = self.invalidate(ino) }
        }
        if let Some(moved) = moved {
            self.names.insert(to, moved);
        }
        if let Some(over) = over.filter(|_| exchange) {
            self.names.insert(from, over);
        }
        self.changed(from.dir);
        self.changed(to.dir);
    }

    /// All names and their inodes.
    pub fn names(&self) -> Vec<(At, Option<Ino>)> {
        self.names.iter().map(|(at, dentry)| (*at, dentry.leads)).collect()
    }

    /// Drops all names of an inode.
    pub fn drop_names_of(&mut self, ino: Ino) {
        self.names.retain(|_, dentry| dentry.leads != Some(ino));
    }

    /// Is it an inode without a dentry to it, or in it?
    pub fn has_no_dentry(&self, ino: Ino) -> bool {
        let named =
            self.names.iter().any(|(at, dentry)| at.dir == ino || dentry.leads == Some(ino));
        ino != Ino::ROOT && !named && self.nodes.contains_key(&ino)
    }

    /// Inodes without a dentry to them, or in them.
    pub fn without_dentry(&self) -> Vec<Ino> {
        let named = |ino: Ino| {
            self.names.iter().any(|(at, dentry)| at.dir == ino || dentry.leads == Some(ino))
        };
        self.nodes.keys().copied().filter(|&ino| ino != Ino::ROOT && !named(ino)).collect()
    }

    /// Forgets an inode; returns its count of lookups.
    pub fn forget(&mut self, ino: Ino) -> u64 {
        self.evictions += 1;
        let Some(node) = self.nodes.remove(&ino) else { return 0 };
        self.forgotten = self.forgotten.max(node.changed);
        node.lookups
    }
}
