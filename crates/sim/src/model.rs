//! The reference: a POSIX file system in memory, as one process on one machine sees it.
//!
//! [`State::step`] says whether an operation may have had the outcome that was seen, and
//! what follows from it. Where POSIX or SEMANTICS.md leave a choice, every choice is allowed.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use types::{Fault, FileKind, Ino};

use crate::call::{At, Call, FileNo, NameNo, Op, Outcome, Seen, TargetNo};
use crate::content::{Content, Dirty};

const NO_REPLACE: u32 = 1;
const EXCHANGE: u32 = 2;
/// Of a directory: what is made there has its group.
pub const SET_GID: u16 = 0o2000;
/// Permission bits that processes take from what they make.
pub const UMASK: u16 = 0o022;
/// Owners of locks of each client.
pub const OWNERS: u64 = 1_000_000;
/// Inodes without names and handles that are remembered.
const GONE_MAX: usize = 8;

/// What an inode holds.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Body {
    /// Bytes.
    File(Content),
    /// Names.
    Dir(BTreeMap<NameNo, Ino>),
    /// Where a symbolic link leads.
    Link(TargetNo),
    /// A pipe or the like.
    Other(FileKind),
}

/// An inode.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    /// Content.
    pub body: Body,
    /// Names that lead here; of a directory also its subdirectories and its dot.
    pub nlink: u32,
    /// Permission bits.
    pub mode: u16,
    /// Owner and group. Whoever makes something is root.
    pub owner: (u32, u32),
    /// Directory that holds a directory.
    pub parent: Ino,
    /// The extended attribute.
    pub xattr: Option<u32>,
    /// Locks that are held.
    pub locks: BTreeSet<Held>,
    /// Made by O_TMPFILE and without a name so far.
    pub unnamed: bool,
    /// What clients may lose of the content, each its own. Several only as long as they change
    /// different blocks: then each may hold its part of the file.
    pub dirty: Vec<Rc<Dirty>>,
    /// What a client that lost something had made of it, as long as it may be that still.
    pub loss: Option<Rc<Loss>>,
    /// What devices failed to replace, and what was lost with sessions.
    pub shaky: Option<Shaky>,
    /// What devices may still make of it that stand still with writes of evicted clients.
    pub late: Option<Content>,
}

/// What a file held when devices failed what was written to it, or was lost with a session. A part
/// of that may lie where it lay, and come back when what takes its place fails.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Shaky {
    /// Everything that it may have held.
    pub content: Content,
    /// A flush failed: it may come back at a power cut, too.
    pub flush: bool,
    /// A device carried out late what the server's flush should have made stable: as `flush`, until
    /// it is synced.
    pub late: bool,
}

/// Who has lost something of a file, perhaps.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Loss {
    /// Who.
    pub client: usize,
    /// The content if nothing was lost; `None`: something was.
    pub hope: Option<Content>,
    /// What the client had made of it: its kernel shows that until the client knows of the loss.
    pub before: Content,
}

/// A lock that is held: one by flock, or one unit of one by fcntl.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Held {
    /// By fcntl this unit.
    pub unit: Option<u8>,
    /// Who holds it.
    pub owner: u64,
    /// Against all others.
    pub exclusive: bool,
}

impl Node {
    /// Does anyone of this client hold a lock of it?
    pub(crate) fn is_locked_by(&self, client: usize) -> bool {
        self.locks.iter().any(|lock| owner_of(lock.owner) == client)
    }

    /// Does another one hold what is in the way of such a lock?
    fn is_locked_for(&self, owner: u64, units: &[Option<u8>], exclusive: bool) -> bool {
        self.locks.iter().any(|lock| {
            units.contains(&lock.unit) && lock.owner != owner && (lock.exclusive || exclusive)
        })
    }

    /// Does such a lock's owner hold anything that an unlock would free?
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
            unnamed: false,
            dirty: Vec::new(),
            loss: None,
            shaky: None,
            late: None,
        }
    }
}

/// What may follow from an operation with the outcome that was seen.
pub enum Step {
    /// It cannot have had this outcome here; what it would have had.
    Impossible(String),
    /// Nothing changes.
    Same,
    /// This follows.
    Next(State),
    /// One of these follows.
    Several(Vec<State>),
}

/// The file system at one moment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// All inodes that have a name or are open.
    pub nodes: BTreeMap<Ino, Rc<Node>>,
    /// What each client has open of each inode.
    pub opens: BTreeMap<(usize, Ino), Opens>,
    /// Open files that have yet to tell of a loss.
    pub owed: BTreeSet<(usize, FileNo)>,
    /// Open files that may tell of a loss, and how often.
    pub perhaps_owed: BTreeMap<(usize, FileNo), u8>,
    /// Open files of clients that live whose making was lost, by the number that the file had.
    pub ghosts: BTreeMap<(usize, Ino), Vec<FileNo>>,
    /// Inodes that clients made with what may have been lost with their sessions.
    pub doubted: BTreeSet<(usize, Ino)>,
    /// Positions at which clients knew of the last loss of their sessions.
    pub learned: BTreeMap<usize, u64>,
    /// Positions at which the last failed flushes of clients were told, in the sessions that they
    /// have.
    pub unflushed: Rc<BTreeMap<usize, u64>>,
    /// Waits for locks that were given up.
    pub tries: Rc<Tries>,
    /// Clients may lose what they did.
    pub mortal: bool,
    /// Which inodes without names and handles are remembered.
    pub gone: Gone,
}

/// Waits for locks that were given up, by their numbers.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tries {
    /// What they took, and what their owner had held there.
    pub taken: BTreeMap<u64, (Ino, Vec<Held>, Vec<Held>)>,
    /// Those that are over.
    pub over: BTreeSet<u64>,
}

/// Inodes in the order in which they lost their last name or handle. States that differ only in
/// that order are the same.
#[derive(Clone, Debug, Default)]
pub struct Gone(Vec<Ino>);

impl PartialEq for Gone {
    fn eq(&self, _: &Gone) -> bool {
        true
    }
}

impl Eq for Gone {}

impl Hash for Gone {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// Open files of one inode of one client.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Opens {
    /// Their numbers.
    pub files: Vec<FileNo>,
    /// The session in which they were opened is lost: they hold nothing any more.
    pub weak: bool,
}

impl Default for State {
    fn default() -> State {
        let root = Node::new(FileKind::Directory, Ino::ROOT);
        State {
            nodes: BTreeMap::from([(Ino::ROOT, Rc::new(root))]),
            opens: BTreeMap::new(),
            owed: BTreeSet::new(),
            perhaps_owed: BTreeMap::new(),
            ghosts: BTreeMap::new(),
            doubted: BTreeSet::new(),
            learned: BTreeMap::new(),
            unflushed: Rc::default(),
            tries: Rc::default(),
            mortal: false,
            gone: Gone::default(),
        }
    }
}

pub(crate) fn impossible(text: impl Into<String>) -> Step {
    Step::Impossible(text.into())
}

/// `true`: nothing changes.
fn same_if(possible: bool, text: impl FnOnce() -> String) -> Step {
    if possible { Step::Same } else { impossible(text()) }
}

/// The client of a lock's owner.
pub(crate) fn owner_of(owner: u64) -> usize {
    (owner / OWNERS) as usize
}

impl State {
    /// Where a name leads.
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

    /// Is `dir` the directory `of`, or inside it?
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
        Rc::make_mut(self.nodes.get_mut(&ino).expect("the caller has found it"))
    }

    fn is_open(&self, ino: Ino) -> bool {
        self.opens.range((0, Ino(0))..).any(|((_, open), _)| *open == ino)
    }

    /// Changes what a name leads to, and the link counts of its old and new inode.
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

    /// An inode lost a name, or was closed. Who had found it before may open it still, so
    /// the last ones are remembered.
    pub(crate) fn perhaps_gone(&mut self) {
        let gone: BTreeSet<Ino> = self
            .nodes
            .iter()
            .filter(|(ino, node)| node.nlink == 0 && !self.is_open(**ino))
            .map(|(ino, _)| *ino)
            .collect();
        let order = &mut self.gone.0;
        order.retain(|ino| gone.contains(ino));
        let new: Vec<Ino> = gone.into_iter().filter(|ino| !order.contains(ino)).collect();
        order.extend(new);
        let surplus = order.len().saturating_sub(GONE_MAX);
        for ino in order.drain(..surplus) {
            self.nodes.remove(&ino);
        }
    }

    /// What root makes in a directory: it has root's group, unless the directory hands its own
    /// down, and to directories that they do so, too.
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

    /// The node `made` comes to be under `at`.
    fn make(&self, at: At, kind: FileKind, made: Ino) -> State {
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
        opens.weak = false;
    }

    /// Is this an unlock of what its owner does not hold here? The kernel unlocks whatever a
    /// process had open when that ends.
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
            // It was refused because its session was lost under way, and had perhaps been done
            // until then: whoever has the file open may be told.
            Step::Same => {
                let mut next = self.clone();
                next.perhaps_tells(call.client, ino);
                Step::Next(next)
            }
            step => step,
        }
    }

    fn step_answered(&self, call: &Call, outcome: &Outcome) -> Step {
        if let Op::Left(ino, file) = call.op {
            return Step::Next(self.left(call.client, file, ino));
        }
        if *outcome == Outcome::DeviceFailed || self.tells_late(call) {
            return self.device_failed(call);
        }
        if *outcome == Outcome::NoRoom {
            return self.no_room(call);
        }
        if let Some(file) = call.op.file()
            && self.owed.contains(&(call.client, file))
            && let Some(step) = self.tell_loss(call, file, outcome)
        {
            return step;
        }
        if let Some(step) = self.of_a_ghost(call, outcome) {
            return step;
        }
        if *outcome == Outcome::Failed(Fault::Stale) && self.is_doubted(call) {
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
            Op::Rename { from, to, flags } => {
                self.rename(call.begun, (*from, *to), *flags, outcome)
            }
            Op::Open(ino, file) => self.step_open((call.client, *file), *ino, outcome),
            Op::Close(ino, file) => self.close((call.client, *file), *ino, outcome),
            Op::Fsync(ino, _) => self.synced(call, Some(*ino), outcome),
            Op::SyncAll => self.synced(call, None, outcome),
            Op::SyncNames => self.synced(call, Some(Ino::NONE), outcome),
            Op::Lost { dead, edits, learned, late, .. } => {
                let mut next = self.lost(call.client, *dead, edits, *late);
                if !dead {
                    next.learned.insert(call.client, *learned);
                }
                Step::Next(next)
            }
            Op::Damaged { ino, flush, told } => self.damaged(call, *ino, *flush, told),
            Op::Unwritten(ino) => self.unwritten(call, *ino),
            Op::LostPower { stuck } => self.lost_power(*stuck),
            Op::Settled => self.settled(),
            Op::Tried { ino, owner, exclusive, range, number } => {
                self.tried(*ino, (*owner, *exclusive, *range), *number)
            }
            Op::GivenBack(_, number) => self.given_back(*number),
            _ => self.step_content(call, outcome),
        }
    }

    /// The answer that a name is not there, right where the directory is gone.
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
        let nameless = node.nlink == 0;
        let Outcome::Attr(seen) = outcome else {
            let fits =
                nameless && matches!(outcome, Outcome::Failed(Fault::Stale | Fault::NotFound));
            return same_if(fits, || format!("attributes of {ino}, {} links", node.nlink));
        };
        let sized = match &node.body {
            Body::File(content) => content.sized(seen.size),
            _ => Ok(None),
        };
        let (uid, gid) = node.owner;
        let (kind, mode, nlink) = (node.kind(), node.mode, node.nlink);
        let want = Seen { kind, mode, uid, gid, nlink, size: seen.size };
        // Without a name or handle of one's own an inode may be seen as it was.
        let open = self.opens.get(&(client, ino)).is_some_and(|opens| !opens.weak);
        if nameless && !open && seen.nlink == 0 && (*seen != want || sized.is_err()) {
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
        node.doubt(|hope| hope.sized(seen.size).is_ok());
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
            // The kernel looks the name up again.
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
            return impossible("a new number");
        }
        let mut next = self.clone();
        let node = Node { nlink: 0, unnamed: true, ..self.new_in(dir, FileKind::Regular) };
        next.nodes.insert(*made, Rc::new(node));
        next.open(client, *made, file);
        Step::Next(next)
    }

    fn link(&self, ino: Ino, at: At, outcome: &Outcome) -> Step {
        let gone = matches!(outcome, Outcome::Failed(Fault::Stale | Fault::NotFound));
        let nameless = self.nodes.get(&ino).is_none_or(|node| node.nlink == 0);
        if gone {
            let fits = nameless || self.names(at.dir).is_none();
            return same_if(fits, || "both are there".to_owned());
        }
        if self.names(at.dir).is_none() {
            return impossible("the directory is gone");
        }
        match (self.find(at), outcome) {
            (Some(_), Outcome::Failed(Fault::Exists)) => Step::Same,
            _ if nameless && !self.is_unnamed(ino) => impossible("it is gone"),
            (None, Outcome::Failed(Fault::NotPermitted)) if self.is_dir(ino) => Step::Same,
            (None, Outcome::Done) if !self.is_dir(ino) => {
                let mut next = self.clone();
                next.bind(at, Some(ino));
                next.node(ino).unnamed = false;
                Step::Next(next)
            }
            (found, _) => impossible(format!("the name leads to {found:?}")),
        }
    }

    /// Was it made without a name, and has not had one yet?
    fn is_unnamed(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|node| node.unnamed)
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
                next.perhaps_gone();
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
            return same_if(fits, || "no directory".to_owned());
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

    /// Every error that POSIX lets a rename give here.
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

    fn rename(&self, begun: u64, (from, to): (At, At), flags: u32, outcome: &Outcome) -> Step {
        let errors = self.rename_errors(from, to, flags);
        let (moved, over) = (self.find(from), self.find(to));
        // A directory that moves onto itself stays where it is.
        let onto_itself = moved.is_some() && moved == over;
        match outcome {
            Outcome::Failed(fault) => {
                same_if(errors.contains(fault), || format!("one of {errors:?}, or done"))
            }
            Outcome::Done if onto_itself && flags & NO_REPLACE == 0 => Step::Same,
            Outcome::Done if errors.is_empty() => {
                let mut next = self.clone();
                if flags & EXCHANGE != 0 {
                    // Bound anew one after the other, so that the counts stay right.
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
                    next.replaced(moved.into_iter().chain(other), begun);
                }
                if let Some(over) = over.filter(|_| flags & EXCHANGE == 0) {
                    if next.is_dir(over) {
                        next.nodes.remove(&over);
                    } else {
                        next.perhaps_gone();
                    }
                }
                Step::Next(next)
            }
            _ => impossible(format!("one of {errors:?}")),
        }
    }

    fn step_open(&self, (client, file): (usize, FileNo), ino: Ino, outcome: &Outcome) -> Step {
        let node = self.nodes.get(&ino);
        let nameless = node.is_none_or(|node| node.nlink == 0);
        match outcome {
            Outcome::Failed(Fault::Stale | Fault::NotFound) => {
                same_if(nameless, || format!("inode {ino} has a name and can be opened"))
            }
            Outcome::Failed(Fault::IsDirectory) if self.is_dir(ino) => Step::Same,
            // Its number was that of a file that is lost, when the name was looked up.
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
            // Long gone, yet somebody kept it.
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
    fn left(&self, client: usize, file: FileNo, ino: Ino) -> State {
        let mut next = self.clone();
        next.no_ghost(client, file, ino);
        next.closed(client, file, ino);
        next
    }

    /// A wait for a lock that was given up took it, before that is over.
    fn tried(
        &self,
        ino: Ino,
        (owner, exclusive, range): (u64, bool, Option<(u8, u8)>),
        number: u64,
    ) -> Step {
        let Some(node) = self.nodes.get(&ino).filter(|_| !self.tries.over.contains(&number)) else {
            return impossible("nobody tries");
        };
        let units = units_of(range);
        if node.is_locked_for(owner, &units, exclusive) {
            return impossible(format!("held by {:?}", node.locks));
        }
        let mut next = self.clone();
        let locks = &mut next.node(ino).locks;
        let mine = |lock: &Held| lock.owner == owner && units.contains(&lock.unit);
        let before: Vec<Held> = locks.iter().filter(|lock| mine(lock)).copied().collect();
        locks.retain(|lock| !mine(lock));
        let taken: Vec<Held> = units.iter().map(|&unit| Held { unit, owner, exclusive }).collect();
        locks.extend(&taken);
        Rc::make_mut(&mut next.tries).taken.insert(number, (ino, taken, before));
        Step::Next(next)
    }

    /// What was tried is over: of what it took nothing is held.
    fn given_back(&self, number: u64) -> Step {
        let mut next = self.clone();
        let tries = Rc::make_mut(&mut next.tries);
        tries.over.insert(number);
        if let Some((ino, taken, before)) = tries.taken.remove(&number)
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
        self.owed.remove(&(client, file));
        self.perhaps_owed.remove(&(client, file));
        self.perhaps_gone();
    }

    /// What is done to one inode.
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
        let nameless = node.is_none_or(|node| node.nlink == 0);
        let mine = self.opens.get(&(call.client, ino)).is_some_and(|opens| !opens.weak);
        if matches!(outcome, Outcome::Failed(Fault::Stale | Fault::NotFound)) {
            return same_if(nameless && !mine, || format!("inode {ino} is there"));
        }
        let Some(node) = node else {
            // What is removed is there until those who found it before have given it up.
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
                same_if(node.xattr.is_none(), || "the attribute is there".to_owned())
            }
            (Op::GetXattr(_), Outcome::Xattr(seen)) => {
                same_if(*seen == node.xattr, || format!("attribute {:?}", node.xattr))
            }
            // Its number was that of a link that is lost, when the name was looked up.
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
                _ => impossible("no regular file"),
            },
        }
    }
}

/// The permission bits with which processes ask for something new of this kind.
pub fn mode_asked(kind: FileKind) -> u16 {
    if kind == FileKind::Directory { 0o777 } else { 0o666 }
}

fn mode_of_new(kind: FileKind) -> u16 {
    match kind {
        // They have no modes of their own.
        FileKind::Symlink => 0o777,
        kind => mode_asked(kind) & !UMASK,
    }
}

/// The units of a lock, by fcntl or by flock.
fn units_of(range: Option<(u8, u8)>) -> Vec<Option<u8>> {
    range.map_or(vec![None], |(a, b)| (a..b).map(Some).collect())
}

/// What follows if a node is changed.
type Change<'a> = &'a dyn Fn(&dyn Fn(&mut Node)) -> Step;

fn lock(
    node: &Node,
    owner: u64,
    (range, exclusive): (Option<(u8, u8)>, Option<bool>),
    outcome: &Outcome,
    change: Change<'_>,
) -> Step {
    let units = units_of(range);
    let mine = |lock: &Held| lock.owner == owner && units.contains(&lock.unit);
    let Some(exclusive) = exclusive else {
        return match outcome {
            Outcome::Done => change(&|node| node.locks.retain(|lock| !mine(lock))),
            _ => impossible("freed"),
        };
    };
    let conflict = node.is_locked_for(owner, &units, exclusive);
    match outcome {
        Outcome::Failed(Fault::WouldBlock) if conflict => Step::Same,
        Outcome::Done if !conflict => change(&|node| {
            node.locks.retain(|lock| !mine(lock));
            node.locks.extend(units.iter().map(|&unit| Held { unit, owner, exclusive }));
        }),
        _ => impossible(format!("held by {:?}", node.locks)),
    }
}
