//! The reference: a POSIX file system in memory, as one process on one machine sees it.
//!
//! [`FsState::step`] says whether an operation may have had the observed outcome, and which states
//! may follow. Where POSIX or SEMANTICS.md leave a choice, it allows every choice.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use types::{Fault, FileKind, Ino, ShardId};

use crate::call::{At, Call, FileNo, NameNo, Op, Outcome, Seen, TargetNo, are_apart};
use crate::content::{Content, Dirty};
use crate::loss::{ContentLoss, owner_of};

const NO_REPLACE: u32 = 1;
const EXCHANGE: u32 = 2;
/// Set-group-ID bit of a directory: new entries inherit its group.
pub const SET_GID: u16 = 0o2000;
/// The umask of all processes.
pub const UMASK: u16 = 0o022;
/// The range of lock owner numbers of each client.
pub const OWNERS: u64 = 1_000_000;
/// How many orphans that no client has open the model remembers.
const ORPHANS_MAX: usize = 8;

/// The content of an inode.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Body {
    /// The bytes of a regular file.
    File(Content),
    /// The entries of a directory.
    Dir(BTreeMap<NameNo, Ino>),
    /// The target of a symbolic link.
    Link(TargetNo),
    /// A FIFO, socket or device.
    Other(FileKind),
}

/// An inode.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    /// What it contains.
    pub body: Body,
    /// Link count: names, and for a directory its subdirectories and its dot.
    pub nlink: u32,
    /// Permission bits.
    pub mode: u16,
    /// Owner and group. All processes run as root.
    pub owner: (u32, u32),
    /// The parent directory of a directory.
    pub parent: Ino,
    /// The extended attribute.
    pub xattr: Option<u32>,
    /// Locks held on it.
    pub locks: BTreeSet<HeldLock>,
    /// Created by O_TMPFILE and not linked yet.
    pub tmpfile: bool,
    /// Unsynced changes of each client. Several clients have some only while they change different
    /// blocks: then each may hold its range of the file.
    pub dirty: Vec<Rc<Dirty>>,
    /// The possible loss of a client, as long as it is unknown what was lost.
    pub loss: Option<Rc<ContentLoss>>,
    /// Earlier content that may come back.
    pub not_durable: Option<NotDurable>,
    /// Writes of evicted clients that stalled devices may still carry out.
    pub late_writes: Option<Content>,
}

/// Earlier content of a file whose replacement a device failed or a lost session took along. It may
/// still be on the device, and come back if a later write of the same place fails.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NotDurable {
    /// Everything that the file may have held.
    pub content: Content,
    /// A flush failed: a power cut may bring it back as well.
    pub flush_failed: bool,
    /// A device carried out a write after the server's flush: like `flush_failed`, until a sync.
    pub late_write: bool,
}

/// A held lock: one flock lock, or one unit of an fcntl lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HeldLock {
    /// The unit of an fcntl lock; `None`: a flock lock.
    pub unit: Option<u8>,
    /// The lock owner.
    pub owner: u64,
    /// Exclusive or shared.
    pub exclusive: bool,
}

impl Node {
    /// Does any lock owner of this client hold a lock on it?
    pub(crate) fn is_locked_by(&self, client: usize) -> bool {
        self.locks.iter().any(|lock| owner_of(lock.owner) == client)
    }

    /// Does another owner hold a conflicting lock?
    fn is_locked_for(&self, owner: u64, units: &[Option<u8>], exclusive: bool) -> bool {
        self.locks.iter().any(|lock| {
            units.contains(&lock.unit) && lock.owner != owner && (lock.exclusive || exclusive)
        })
    }

    /// Does the owner hold anything that this unlock would free?
    fn holds(&self, owner: u64, units: &[Option<u8>]) -> bool {
        self.locks.iter().any(|lock| lock.owner == owner && units.contains(&lock.unit))
    }

    fn kind(&self) -> FileKind {
        match &self.body {
            Body::File(_) => FileKind::Regular,
            Body::Dir(_) => FileKind::Directory,
            Body::Link(_) => FileKind::Symlink,
            Body::Other(kind) => *kind,
        }
    }

    fn new(kind: FileKind, parent: Ino) -> Node {
        let (body, nlink) = match kind {
            FileKind::Regular => (Body::File(Content::default()), 1),
            FileKind::Directory => (Body::Dir(BTreeMap::new()), 2),
            other => (Body::Other(other), 1),
        };
        Node {
            body,
            nlink,
            mode: mode_of_new(kind),
            owner: (0, 0),
            parent,
            xattr: None,
            locks: BTreeSet::new(),
            tmpfile: false,
            dirty: Vec::new(),
            loss: None,
            not_durable: None,
            late_writes: None,
        }
    }
}

/// The possible results of an operation with the observed outcome.
pub enum Step {
    /// The outcome is impossible here; the text says what the model expects.
    Impossible(String),
    /// Possible, and the state does not change.
    Same,
    /// Possible, and this state follows.
    Next(FsState),
    /// Possible, and one of these states follows.
    Several(Vec<FsState>),
}

/// The state of the file system at one moment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FsState {
    /// All inodes that have a name or are open, and some orphans.
    pub nodes: BTreeMap<Ino, Rc<Node>>,
    /// The open files of each client on each inode.
    pub opens: BTreeMap<(usize, Ino), Opens>,
    /// Open files that must report a loss at the next sync or close.
    pub must_report_loss: BTreeSet<(usize, FileNo)>,
    /// Open files that may report a loss, and how many times.
    pub may_report_loss: BTreeMap<(usize, FileNo), u8>,
    /// Open files of live clients whose file was lost before it became durable, by inode.
    pub stale_handles: BTreeMap<(usize, Ino), Vec<FileNo>>,
    /// Inodes that clients created and that may have been lost with their sessions.
    pub uncertain: BTreeSet<(usize, Ino)>,
    /// For each client and shard the position at which it knew of its last lost session.
    pub learned: BTreeMap<(usize, ShardId), u64>,
    /// For each client and shard the position of its last failed flush in its current session.
    pub failed_flushes: Rc<BTreeMap<(usize, ShardId), u64>>,
    /// Lock requests whose process stopped waiting.
    pub abandoned_locks: Rc<AbandonedLocks>,
    /// Clients may crash or be evicted, and lose unsynced changes.
    pub may_crash: bool,
    /// The order in which the remembered orphans were released.
    pub orphans: OrphanOrder,
}

/// Lock requests whose process stopped waiting, by number.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct AbandonedLocks {
    /// The locks they took, and the locks that their owner held there before.
    pub taken: BTreeMap<u64, (Ino, Vec<HeldLock>, Vec<HeldLock>)>,
    /// The requests that have ended.
    pub over: BTreeSet<u64>,
}

/// Orphans in the order in which they lost their last name or open file. States that differ only in
/// this order are equal.
#[derive(Clone, Debug, Default)]
pub struct OrphanOrder(Vec<Ino>);

impl PartialEq for OrphanOrder {
    fn eq(&self, _: &OrphanOrder) -> bool {
        true
    }
}

impl Eq for OrphanOrder {}

impl Hash for OrphanOrder {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// The open files of one client on one inode.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Opens {
    /// Their numbers.
    pub files: Vec<FileNo>,
    /// The session in which they were opened is lost: they no longer keep the inode alive.
    pub session_lost: bool,
}

impl Default for FsState {
    fn default() -> FsState {
        let root = Node::new(FileKind::Directory, Ino::ROOT);
        FsState {
            nodes: BTreeMap::from([(Ino::ROOT, Rc::new(root))]),
            opens: BTreeMap::new(),
            must_report_loss: BTreeSet::new(),
            may_report_loss: BTreeMap::new(),
            stale_handles: BTreeMap::new(),
            uncertain: BTreeSet::new(),
            learned: BTreeMap::new(),
            failed_flushes: Rc::default(),
            abandoned_locks: Rc::default(),
            may_crash: false,
            orphans: OrphanOrder::default(),
        }
    }
}

pub(crate) fn impossible(text: impl Into<String>) -> Step {
    Step::Impossible(text.into())
}

/// [`Step::Same`] if `possible`.
fn same_if(possible: bool, text: impl FnOnce() -> String) -> Step {
    if possible { Step::Same } else { impossible(text()) }
}

impl FsState {
    /// The inode of a name.
    pub fn find(&self, at: At) -> Option<Ino> {
        match &self.nodes.get(&at.dir)?.body {
            Body::Dir(names) => names.get(&at.name).copied(),
            _ => None,
        }
    }

    pub(crate) fn is_dir(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|node| matches!(node.body, Body::Dir(_)))
    }

    fn names(&self, dir: Ino) -> Option<&BTreeMap<NameNo, Ino>> {
        match &self.nodes.get(&dir)?.body {
            Body::Dir(names) => Some(names),
            _ => None,
        }
    }

    /// Is `dir` the directory `of` or a descendant?
    fn is_inside(&self, mut dir: Ino, of: Ino) -> bool {
        for _ in 0..1000 {
            if dir == of {
                return true;
            }
            match self.nodes.get(&dir) {
                Some(node) if dir != Ino::ROOT => dir = node.parent,
                _ => return false,
            }
        }
        true
    }

    pub(crate) fn node(&mut self, ino: Ino) -> &mut Node {
        Rc::make_mut(self.nodes.get_mut(&ino).expect("the caller found the inode"))
    }

    fn is_open(&self, ino: Ino) -> bool {
        self.opens.range((0, Ino(0))..).any(|((_, open), _)| *open == ino)
    }

    /// Sets or removes a name, and updates the link counts of its old and new inode.
    fn bind(&mut self, at: At, ino: Option<Ino>) {
        let Body::Dir(names) = &mut self.node(at.dir).body else { return };
        let old = match ino {
            Some(ino) => names.insert(at.name, ino),
            None => names.remove(&at.name),
        };
        if let Some(old) = old {
            if self.is_dir(old) {
                self.node(at.dir).nlink -= 1;
            } else {
                self.node(old).nlink -= 1;
            }
        }
        if let Some(ino) = ino {
            if self.is_dir(ino) {
                self.node(at.dir).nlink += 1;
                self.node(ino).parent = at.dir;
            } else {
                self.node(ino).nlink += 1;
            }
        }
    }

    /// Forgets all but the newest orphans: a client that looked one up before may still open it.
    pub(crate) fn drop_old_orphans(&mut self) {
        let gone: BTreeSet<Ino> = self
            .nodes
            .iter()
            .filter(|(ino, node)| node.nlink == 0 && !self.is_open(**ino))
            .map(|(ino, _)| *ino)
            .collect();
        let order = &mut self.orphans.0;
        order.retain(|ino| gone.contains(ino));
        let new: Vec<Ino> = gone.into_iter().filter(|ino| !order.contains(ino)).collect();
        order.extend(new);
        let surplus = order.len().saturating_sub(ORPHANS_MAX);
        for ino in order.drain(..surplus) {
            self.nodes.remove(&ino);
        }
    }

    /// A new inode of root in a directory. It has root's group; in a set-group-ID directory it
    /// inherits the directory's group, and a directory inherits the bit too.
    fn new_in(&self, dir: Ino, kind: FileKind) -> Node {
        let mut node = Node::new(kind, dir);
        if let Some(parent) = self.nodes.get(&dir).filter(|parent| parent.mode & SET_GID != 0) {
            node.owner.1 = parent.owner.1;
            if kind == FileKind::Directory {
                node.mode |= SET_GID;
            }
        }
        node
    }

    /// Creates the inode `made` under `at`.
    fn make(&self, at: At, kind: FileKind, made: Ino) -> FsState {
        let mut next = self.clone();
        let mut node = self.new_in(at.dir, kind);
        if kind != FileKind::Directory {
            node.nlink = 0;
        }
        next.nodes.insert(made, Rc::new(node));
        next.bind(at, Some(made));
        next
    }

    fn open(&mut self, client: usize, ino: Ino, file: FileNo) {
        let opens = self.opens.entry((client, ino)).or_default();
        opens.files.push(file);
        opens.session_lost = false;
    }

    /// Is this an unlock of locks that its owner does not hold? At exit the kernel unlocks every
    /// open file.
    pub fn unlocks_nothing(&self, call: &Call) -> bool {
        let Op::Lock { ino, owner, exclusive: None, range } = call.op else { return false };
        call.outcome == Some(Outcome::Done)
            && self.nodes.get(&ino).is_some_and(|node| !node.holds(owner, &units_of(range)))
    }

    /// May `call` have had its outcome here, and what follows?
    pub fn step(&self, call: &Call) -> Step {
        let Some(outcome) = &call.outcome else { return impossible("an answer") };
        let refused = matches!(outcome, Outcome::Failed(Fault::Stale | Fault::NotFound));
        let edited = call.op.edited().filter(|_| refused && self.is_unaware(call));
        let Some(ino) = edited else { return self.step_answered(call, outcome) };
        match self.step_answered(call, outcome) {
            // The session was lost during the call. The edit may have been done before that, so any
            // open file of the client may report a loss.
            Step::Same => {
                let mut next = self.clone();
                next.add_possible_report(call.client, ino);
                Step::Next(next)
            }
            step => step,
        }
    }

    fn step_answered(&self, call: &Call, outcome: &Outcome) -> Step {
        if let Op::Left(ino, file) = call.op {
            return Step::Next(self.left(call.client, file, ino));
        }
        if *outcome == Outcome::DeviceFailed || self.is_late_report(call) {
            return self.device_failed(call);
        }
        if *outcome == Outcome::NoRoom {
            return self.no_room(call);
        }
        if let Some(file) = call.op.file()
            && self.must_report_loss.contains(&(call.client, file))
            && let Some(step) = self.report_loss(call, file, outcome)
        {
            return step;
        }
        if let Some(step) = self.by_stale_handle(call, outcome) {
            return step;
        }
        if *outcome == Outcome::Failed(Fault::Stale) && self.is_uncertain(call) {
            return Step::Same;
        }
        match &call.op {
            Op::Lookup(at) => self.lookup(*at, outcome),
            Op::GetAttr(ino) => self.getattr(call.client, *ino, outcome),
            Op::Make(at, kind) => self.step_make(*at, *kind, outcome),
            Op::Symlink(at, target) => self.step_symlink(*at, *target, outcome),
            Op::Create { at, exclusive, file } => {
                self.create((call.client, *file), *at, *exclusive, outcome)
            }
            Op::TmpFile(dir, file) => self.tmpfile((call.client, *file), *dir, outcome),
            Op::Link(ino, at) => self.link(*ino, *at, outcome),
            Op::Unlink(at) => self.unlink(*at, outcome),
            Op::Rmdir(at) => self.rmdir(*at, outcome),
            Op::Rename { from, to, flags } => self.rename(call, (*from, *to), *flags, outcome),
            Op::Open(ino, file) => self.step_open((call.client, *file), *ino, outcome),
            Op::Close(ino, file) => self.close((call.client, *file), *ino, outcome),
            Op::Fsync(ino, _) => self.synced(call, Some(*ino), outcome),
            Op::SyncAll => self.synced(call, None, outcome),
            Op::SyncNames(_) => self.synced(call, Some(Ino::NONE), outcome),
            Op::Lost { dead, edits, learned, late, shard, .. } => {
                let mut next = self.lost((call.client, *shard), *dead, edits, *late);
                if !dead {
                    next.learned.insert((call.client, *shard), *learned);
                }
                Step::Next(next)
            }
            Op::Damaged { ino, flush, told } => self.damaged(call, *ino, *flush, told),
            Op::Unwritten(ino) => self.unwritten(call, *ino),
            Op::LostPower { stuck } => self.lost_power(*stuck),
            Op::Settled => self.settled(),
            Op::Tried { ino, owner, exclusive, range, number } => {
                self.lock_abandoned(*ino, (*owner, *exclusive, *range), *number)
            }
            Op::GivenBack(_, number) => self.lock_given_back(*number),
            _ => self.step_content(call, outcome),
        }
    }

    /// The answer to an operation in a directory that is gone.
    fn dir_gone(&self, dir: Ino, outcome: &Outcome) -> Option<Step> {
        if self.names(dir).is_some() {
            return None;
        }
        let fits = matches!(outcome, Outcome::Failed(Fault::NotFound) | Outcome::Found(None));
        Some(same_if(fits, || format!("directory {dir} is gone")))
    }

    fn lookup(&self, at: At, outcome: &Outcome) -> Step {
        if let Some(step) = self.dir_gone(at.dir, outcome) {
            return step;
        }
        let found = self.find(at);
        if let (Some(ino), Outcome::Listed(..)) = (found, outcome) {
            let kind = self.nodes.get(&ino).map(|node| node.kind());
            let listed = kind.map_or(Outcome::Found(found), |kind| Outcome::Listed(ino, kind));
            return same_if(*outcome == listed, || format!("{listed:?}"));
        }
        same_if(*outcome == Outcome::Found(found), || format!("{:?}", Outcome::Found(found)))
    }

    fn getattr(&self, client: usize, ino: Ino, outcome: &Outcome) -> Step {
        let Some(node) = self.nodes.get(&ino) else {
            let fits = match outcome {
                Outcome::Failed(Fault::Stale | Fault::NotFound) => true,
                Outcome::Attr(seen) => seen.nlink == 0,
                _ => false,
            };
            return same_if(fits, || "the inode is gone".to_owned());
        };
        let unlinked = node.nlink == 0;
        let Outcome::Attr(seen) = outcome else {
            let fits =
                unlinked && matches!(outcome, Outcome::Failed(Fault::Stale | Fault::NotFound));
            return same_if(fits, || format!("attributes of {ino}, {} links", node.nlink));
        };
        let sized = match &node.body {
            Body::File(content) => content.sized(seen.size),
            _ => Ok(None),
        };
        let (uid, gid) = node.owner;
        let (kind, mode, nlink) = (node.kind(), node.mode, node.nlink);
        let want = Seen { kind, mode, uid, gid, nlink, size: seen.size };
        // A client that has it not open may see an orphan's attributes as they were.
        let open = self.opens.get(&(client, ino)).is_some_and(|opens| !opens.session_lost);
        if unlinked && !open && seen.nlink == 0 && (*seen != want || sized.is_err()) {
            return Step::Same;
        }
        let (true, Ok(sized)) = (*seen == want, &sized) else {
            let size = sized.err().unwrap_or_default();
            return impossible(format!("{:?} {size}", Outcome::Attr(want)));
        };
        let Some(sized) = sized else { return Step::Same };
        let mut next = self.clone();
        let node = next.node(ino);
        node.body = Body::File(sized.clone());
        node.recheck_loss(|intact| intact.sized(seen.size).is_ok());
        Step::Next(next)
    }

    fn step_make(&self, at: At, kind: FileKind, outcome: &Outcome) -> Step {
        if let Some(step) = self.dir_gone(at.dir, outcome) {
            return step;
        }
        match (self.find(at), outcome) {
            (Some(_), Outcome::Failed(Fault::Exists)) => Step::Same,
            (None, Outcome::Found(Some(made))) if !self.nodes.contains_key(made) => {
                Step::Next(self.make(at, kind, *made))
            }
            (Some(ino), _) => impossible(format!("the name exists and leads to {ino}")),
            (None, _) => impossible("a new inode"),
        }
    }

    fn step_symlink(&self, at: At, target: TargetNo, outcome: &Outcome) -> Step {
        let mut step = self.step_make(at, FileKind::Symlink, outcome);
        if let (Step::Next(next), Outcome::Found(Some(made))) = (&mut step, outcome) {
            next.node(*made).body = Body::Link(target);
        }
        step
    }

    fn create(
        &self,
        (client, file): (usize, FileNo),
        at: At,
        exclusive: bool,
        outcome: &Outcome,
    ) -> Step {
        if let Some(step) = self.dir_gone(at.dir, outcome) {
            return step;
        }
        match (self.find(at), outcome) {
            (Some(_), Outcome::Failed(Fault::Exists)) if exclusive => Step::Same,
            // The kernel repeats the lookup.
            (_, Outcome::Failed(Fault::Stale)) if !exclusive => Step::Same,
            (Some(ino), Outcome::Found(Some(opened)))
                if !exclusive && ino == *opened && !self.is_dir(ino) =>
            {
                let mut next = self.clone();
                next.open(client, ino, file);
                Step::Next(next)
            }
            (Some(ino), Outcome::Failed(Fault::IsDirectory)) if self.is_dir(ino) => Step::Same,
            (None, Outcome::Found(Some(made))) if !self.nodes.contains_key(made) => {
                let mut next = self.make(at, FileKind::Regular, *made);
                next.open(client, *made, file);
                Step::Next(next)
            }
            (Some(ino), _) => impossible(format!("the name exists and leads to {ino}")),
            (None, _) => impossible("a new file"),
        }
    }

    fn tmpfile(&self, (client, file): (usize, FileNo), dir: Ino, outcome: &Outcome) -> Step {
        if let Some(step) = self.dir_gone(dir, outcome) {
            return step;
        }
        let Outcome::Found(Some(made)) = outcome else { return impossible("a new file") };
        if self.nodes.contains_key(made) {
            return impossible("a new inode number");
        }
        let mut next = self.clone();
        let node = Node { nlink: 0, tmpfile: true, ..self.new_in(dir, FileKind::Regular) };
        next.nodes.insert(*made, Rc::new(node));
        next.open(client, *made, file);
        Step::Next(next)
    }

    fn link(&self, ino: Ino, at: At, outcome: &Outcome) -> Step {
        let gone = matches!(outcome, Outcome::Failed(Fault::Stale | Fault::NotFound));
        let unlinked = self.nodes.get(&ino).is_none_or(|node| node.nlink == 0);
        if gone {
            let fits = unlinked || self.names(at.dir).is_none();
            return same_if(fits, || "the inode and the directory exist".to_owned());
        }
        if self.names(at.dir).is_none() {
            return impossible("the directory is gone");
        }
        match (self.find(at), outcome) {
            (Some(_), Outcome::Failed(Fault::Exists)) => Step::Same,
            _ if unlinked && !self.is_tmpfile(ino) => impossible("the inode is gone"),
            (None, Outcome::Failed(Fault::CrossDevice)) if are_apart(ino, at.dir) => Step::Same,
            (None, Outcome::Failed(Fault::NotPermitted)) if self.is_dir(ino) => Step::Same,
            (None, Outcome::Done) if !self.is_dir(ino) => {
                let mut next = self.clone();
                next.bind(at, Some(ino));
                next.node(ino).tmpfile = false;
                Step::Next(next)
            }
            (found, _) => impossible(format!("the name leads to {found:?}")),
        }
    }

    /// Was it created by O_TMPFILE and not linked yet?
    fn is_tmpfile(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|node| node.tmpfile)
    }

    fn unlink(&self, at: At, outcome: &Outcome) -> Step {
        if let Some(step) = self.dir_gone(at.dir, outcome) {
            return step;
        }
        match (self.find(at), outcome) {
            (None, Outcome::Failed(Fault::NotFound)) => Step::Same,
            (Some(ino), Outcome::Failed(Fault::IsDirectory)) if self.is_dir(ino) => Step::Same,
            (Some(ino), Outcome::Done) if !self.is_dir(ino) => {
                let mut next = self.clone();
                next.bind(at, None);
                next.drop_old_orphans();
                Step::Next(next)
            }
            (found, _) => impossible(format!("the name leads to {found:?}")),
        }
    }

    fn rmdir(&self, at: At, outcome: &Outcome) -> Step {
        if let Some(step) = self.dir_gone(at.dir, outcome) {
            return step;
        }
        let Some(ino) = self.find(at) else {
            let fits = *outcome == Outcome::Failed(Fault::NotFound);
            return same_if(fits, || "no such name".to_owned());
        };
        let Some(names) = self.names(ino) else {
            let fits = *outcome == Outcome::Failed(Fault::NotDirectory);
            return same_if(fits, || "not a directory".to_owned());
        };
        match outcome {
            Outcome::Failed(Fault::NotEmpty) if !names.is_empty() => Step::Same,
            Outcome::Done if names.is_empty() => {
                let mut next = self.clone();
                next.bind(at, None);
                next.nodes.remove(&ino);
                Step::Next(next)
            }
            _ => impossible(format!("directory {ino} has {} names", names.len())),
        }
    }

    /// Every error that POSIX allows for this rename.
    fn rename_errors(&self, from: At, to: At, flags: u32) -> Vec<Fault> {
        let mut errors = Vec::new();
        if self.names(from.dir).is_none() || self.names(to.dir).is_none() {
            errors.push(Fault::NotFound);
        }
        let (Some(moved), over) = (self.find(from), self.find(to)) else {
            errors.push(Fault::NotFound);
            return errors;
        };
        let exchange = flags & EXCHANGE != 0;
        match over {
            None if exchange => errors.push(Fault::NotFound),
            Some(_) if flags & NO_REPLACE != 0 => errors.push(Fault::Exists),
            _ => {}
        }
        if self.is_dir(moved) && self.is_inside(to.dir, moved) {
            errors.push(Fault::Invalid);
        }
        let Some(over) = over.filter(|over| *over != moved) else { return errors };
        if self.is_dir(over) && self.is_inside(from.dir, over) {
            errors.extend([if exchange { Fault::Invalid } else { Fault::NotEmpty }]);
        }
        if !exchange {
            match (self.is_dir(moved), self.is_dir(over)) {
                (true, false) => errors.push(Fault::NotDirectory),
                (false, true) => errors.push(Fault::IsDirectory),
                _ => {}
            }
            if self.names(over).is_some_and(|names| !names.is_empty()) {
                errors.push(Fault::NotEmpty);
            }
        }
        errors
    }

    fn rename(&self, call: &Call, (from, to): (At, At), flags: u32, outcome: &Outcome) -> Step {
        let errors = self.rename_errors(from, to, flags);
        let (moved, over) = (self.find(from), self.find(to));
        // A rename between two names of the same inode does nothing.
        let onto_itself = moved.is_some() && moved == over;
        match outcome {
            Outcome::Failed(Fault::Io) if self.lost_before(call, moved, over) => Step::Same,
            Outcome::Failed(fault) => {
                same_if(errors.contains(fault), || format!("one of {errors:?}, or done"))
            }
            Outcome::Done if onto_itself && flags & NO_REPLACE == 0 => Step::Same,
            Outcome::Done if errors.is_empty() => {
                let mut next = self.clone();
                if flags & EXCHANGE != 0 {
                    // Both names are unbound first, so that the link counts stay right.
                    next.bind(from, None);
                    next.bind(to, None);
                    next.bind(from, over);
                } else {
                    next.bind(from, None);
                    next.bind(to, None);
                }
                next.bind(to, moved);
                if over.is_some() {
                    let other = over.filter(|_| flags & EXCHANGE != 0);
                    next.replaced(moved.into_iter().chain(other), call.begun);
                }
                if let Some(over) = over.filter(|_| flags & EXCHANGE == 0) {
                    if next.is_dir(over) {
                        next.nodes.remove(&over);
                    } else {
                        next.drop_old_orphans();
                    }
                }
                Step::Next(next)
            }
            _ => impossible(format!("one of {errors:?}")),
        }
    }

    fn step_open(&self, (client, file): (usize, FileNo), ino: Ino, outcome: &Outcome) -> Step {
        let node = self.nodes.get(&ino);
        let unlinked = node.is_none_or(|node| node.nlink == 0);
        match outcome {
            Outcome::Failed(Fault::Stale | Fault::NotFound) => {
                same_if(unlinked, || format!("inode {ino} has a name and can be opened"))
            }
            Outcome::Failed(Fault::IsDirectory) if self.is_dir(ino) => Step::Same,
            // When the name was looked up, the number belonged to a file that is lost now.
            Outcome::Failed(Fault::NotSupported)
                if node.is_some_and(|node| node.kind() == FileKind::Symlink) =>
            {
                Step::Same
            }
            Outcome::Found(Some(_)) if node.is_some() => {
                let mut next = self.clone();
                next.open(client, ino, file);
                Step::Next(next)
            }
            // Freed long ago, yet a client opened it.
            Outcome::Found(Some(_)) => impossible(format!("inode {ino} is gone")),
            _ => impossible("an open file"),
        }
    }

    fn close(&self, (client, file): (usize, FileNo), ino: Ino, outcome: &Outcome) -> Step {
        if *outcome != Outcome::Done {
            return impossible("closed");
        }
        let mut next = self.clone();
        next.closed(client, file, ino);
        Step::Next(next)
    }

    /// The kernel closes a file of a killed process.
    fn left(&self, client: usize, file: FileNo, ino: Ino) -> FsState {
        let mut next = self.clone();
        next.drop_stale_handle(client, file, ino);
        next.closed(client, file, ino);
        next
    }

    /// A lock request without a waiting process takes the lock before the request ends.
    fn lock_abandoned(
        &self,
        ino: Ino,
        (owner, exclusive, range): (u64, bool, Option<(u8, u8)>),
        number: u64,
    ) -> Step {
        let Some(node) =
            self.nodes.get(&ino).filter(|_| !self.abandoned_locks.over.contains(&number))
        else {
            return impossible("the request has ended");
        };
        let units = units_of(range);
        if node.is_locked_for(owner, &units, exclusive) {
            return impossible(format!("held by {:?}", node.locks));
        }
        let mut next = self.clone();
        let locks = &mut next.node(ino).locks;
        let mine = |lock: &HeldLock| lock.owner == owner && units.contains(&lock.unit);
        let before: Vec<HeldLock> = locks.iter().filter(|lock| mine(lock)).copied().collect();
        locks.retain(|lock| !mine(lock));
        let taken: Vec<HeldLock> =
            units.iter().map(|&unit| HeldLock { unit, owner, exclusive }).collect();
        locks.extend(&taken);
        Rc::make_mut(&mut next.abandoned_locks).taken.insert(number, (ino, taken, before));
        Step::Next(next)
    }

    /// The request has ended: the owner holds what it held before.
    fn lock_given_back(&self, number: u64) -> Step {
        let mut next = self.clone();
        let abandoned_locks = Rc::make_mut(&mut next.abandoned_locks);
        abandoned_locks.over.insert(number);
        if let Some((ino, taken, before)) = abandoned_locks.taken.remove(&number)
            && next.nodes.contains_key(&ino)
        {
            let locks = &mut next.node(ino).locks;
            locks.retain(|lock| !taken.contains(lock));
            locks.extend(before);
        }
        Step::Next(next)
    }

    pub(crate) fn closed(&mut self, client: usize, file: FileNo, ino: Ino) {
        if let Some(opens) = self.opens.get_mut(&(client, ino)) {
            opens.files.retain(|other| *other != file);
            if opens.files.is_empty() {
                self.opens.remove(&(client, ino));
            }
        }
        self.must_report_loss.remove(&(client, file));
        self.may_report_loss.remove(&(client, file));
        self.drop_old_orphans();
    }

    /// An operation on one inode.
    fn step_content(&self, call: &Call, outcome: &Outcome) -> Step {
        let ino = match &call.op {
            Op::Read { ino, .. }
            | Op::End(ino, _)
            | Op::Write { ino, .. }
            | Op::Truncate(ino, _)
            | Op::Allocate { ino, .. }
            | Op::SetMode(ino, _)
            | Op::SetOwner { ino, .. }
            | Op::SetXattr(ino, _)
            | Op::GetXattr(ino)
            | Op::ReadLink(ino)
            | Op::Lock { ino, .. } => *ino,
            _ => return impossible("an operation on one inode"),
        };
        let node = self.nodes.get(&ino);
        let unlinked = node.is_none_or(|node| node.nlink == 0);
        let mine = self.opens.get(&(call.client, ino)).is_some_and(|opens| !opens.session_lost);
        if matches!(outcome, Outcome::Failed(Fault::Stale | Fault::NotFound)) {
            return same_if(unlinked && !mine, || format!("inode {ino} exists"));
        }
        let Some(node) = node else {
            // A client that looked a freed inode up before may still use it.
            let lingers = match &call.op {
                Op::SetXattr(_, None) => {
                    matches!(outcome, Outcome::Done | Outcome::Failed(Fault::NoAttribute))
                }
                Op::SetMode(..) | Op::SetOwner { .. } | Op::SetXattr(..) | Op::Truncate(..) => {
                    *outcome == Outcome::Done
                }
                Op::GetXattr(_) => matches!(outcome, Outcome::Xattr(_)),
                Op::ReadLink(_) => matches!(outcome, Outcome::Target(_)),
                _ => false,
            };
            return same_if(lingers, || format!("inode {ino} is gone"));
        };
        let change = |change: &dyn Fn(&mut Node)| {
            let mut next = self.clone();
            change(next.node(ino));
            Step::Next(next)
        };
        match (&call.op, outcome) {
            (Op::SetMode(_, mode), Outcome::Done) => change(&|node| node.mode = *mode),
            (Op::SetOwner { uid, gid, .. }, Outcome::Done) => change(&|node| {
                node.owner = (uid.unwrap_or(node.owner.0), gid.unwrap_or(node.owner.1));
            }),
            (Op::SetXattr(_, value), Outcome::Done) if value.is_some() || node.xattr.is_some() => {
                change(&|node| node.xattr = *value)
            }
            (Op::SetXattr(_, None), Outcome::Failed(Fault::NoAttribute)) => {
                same_if(node.xattr.is_none(), || "the attribute exists".to_owned())
            }
            (Op::GetXattr(_), Outcome::Xattr(seen)) => {
                same_if(*seen == node.xattr, || format!("attribute {:?}", node.xattr))
            }
            // When the name was looked up, the number belonged to a lost symbolic link.
            (Op::ReadLink(_), Outcome::Failed(Fault::Invalid)) => {
                same_if(!matches!(node.body, Body::Link(_)), || format!("{:?}", node.body))
            }
            (Op::ReadLink(_), Outcome::Target(seen)) => {
                same_if(node.body == Body::Link(*seen), || format!("{:?}", node.body))
            }
            (Op::Lock { owner, exclusive, range, .. }, _) => {
                lock(node, *owner, (*range, *exclusive), outcome, &change)
            }
            _ => match &node.body {
                Body::File(content) => self.content(call, ino, content, outcome),
                _ => impossible("a regular file"),
            },
        }
    }
}

/// The permission bits that processes ask for, before the umask.
pub fn mode_asked(kind: FileKind) -> u16 {
    if kind == FileKind::Directory { 0o777 } else { 0o666 }
}

fn mode_of_new(kind: FileKind) -> u16 {
    match kind {
        // Symbolic links have no modes of their own.
        FileKind::Symlink => 0o777,
        kind => mode_asked(kind) & !UMASK,
    }
}

/// The units of a lock; one `None` for flock.
fn units_of(range: Option<(u8, u8)>) -> Vec<Option<u8>> {
    range.map_or(vec![None], |(a, b)| (a..b).map(Some).collect())
}

/// Applies a change to the node and gives the step.
type Change<'a> = &'a dyn Fn(&dyn Fn(&mut Node)) -> Step;

fn lock(
    node: &Node,
    owner: u64,
    (range, exclusive): (Option<(u8, u8)>, Option<bool>),
    outcome: &Outcome,
    change: Change<'_>,
) -> Step {
    let units = units_of(range);
    let mine = |lock: &HeldLock| lock.owner == owner && units.contains(&lock.unit);
    let Some(exclusive) = exclusive else {
        return match outcome {
            Outcome::Done => change(&|node| node.locks.retain(|lock| !mine(lock))),
            _ => impossible("the lock is freed"),
        };
    };
    let conflict = node.is_locked_for(owner, &units, exclusive);
    match outcome {
        Outcome::Failed(Fault::WouldBlock) if conflict => Step::Same,
        Outcome::Done if !conflict => change(&|node| {
            node.locks.retain(|lock| !mine(lock));
            node.locks.extend(units.iter().map(|&unit| HeldLock { unit, owner, exclusive }));
        }),
        _ => impossible(format!("held by {:?}", node.locks)),
    }
}
