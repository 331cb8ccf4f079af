//! What each operation is. Server and client derive from it what they do with one.
//!
//! | operation | answer | class | kept | uncertain | repeated | sender | during grace |
//! |---|---|---|---|---|---|---|---|
//! | Lookup | Entry | read | – | – | always | client | waits |
//! | GetAttr | Attr | read | – | – | always | client | waits |
//! | ReadDir | Entries | read | – | – | always | client | waits |
//! | Create | Created | change, small | inode | attributes, a new name | – | client | waits |
//! | CreateTmpfile | Created | change, small | inode | – | – | client | waits |
//! | Link | Linked | change, small | inode | attributes, a new name | – | client | waits |
//! | Unlink | Removed | change, frees | inode | attributes, names | – | client | waits |
//! | Rmdir | Removed | change, frees | inode | attributes, names | – | client | waits |
//! | Rename | Renamed | change, frees; with a whiteout two small | inodes | attributes, names | – | client | waits |
//! | SetAttr | Attr | change, frees | done | attributes | – | client | waits |
//! | GetXattr | Bytes | read | – | – | always | client | waits |
//! | SetXattr | Attr | change, small | done | attributes | – | client | waits |
//! | ListXattr | Bytes | read | – | – | always | client | waits |
//! | RemoveXattr | Attr | change, frees | done | attributes | – | client | waits |
//! | ReadLink | Bytes | read | – | – | always | client | waits |
//! | Acquire | Acquired | read | – | – | always | client | waits |
//! | Layout | Layout | read | – | – | in session | client | waits |
//! | Commit | Attr | change, own | edits done | – | – | client | waits |
//! | Space | Space | change, own | blocks | – | – | client | waits |
//! | ReturnSpace | Done | change, frees | done | – | – | client | waits |
//! | Sync | Done | session | – | – | in session | client | waits |
//! | Statfs | Statfs | session | – | – | always | both | waits |
//! | Lock | Done | session | – | – | – | client | waits |
//! | Unlock | Done | session | – | – | – | client | waits |
//! | TestLock | Locked | session | – | – | always | client | waits |
//! | CancelLock | Done | session | – | – | – | client | waits |
//! | Return | Done | session | – | – | – | client | waits |
//! | Reclaim | Done | session | – | – | – | client | recovering clients |
//! | ReclaimDone | Done | session | – | – | – | client | recovering clients |
//! | Renew | Done | session | – | – | in session | both | served |
//! | Goodbye | Done | session | – | – | – | client | waits |
//! | Status | Text | session | – | – | always | both | served |
//! | Evict | Done | session | – | – | – | administrator | waits |
//! | Scrub | Done | session | – | – | – | administrator | waits |
//! | Why | Text | session | – | – | always | client | served |
//! | Zones | Zones | session | – | – | always | client | served |
//! | AddZone | Text | session | – | – | – | administrator | waits |
//! | SetZoneState | Text | session | – | – | – | administrator | waits |
//! | ZoneFiles | Text | session | – | – | – | administrator | waits |
//! | Place | Space | change, own | blocks | – | – | client | waits |
//! | EndPlacing | Done | session | – | – | in session | client | waits |
//! | SwapLayouts | Attr | change, a step | done | – | – | client | waits |
//! | Servers | Servers | session | – | – | always | client | served |
//! | Tell | Done | session | – | – | always | metadata server | served |
//! | Lend | Lent | session | – | – | always | metadata server | waits |
//! | Where | Where | session | – | – | always | client | waits |
//! | MoveDirectory | Moved | change, a step | done | attributes | – | client | waits |
//! | MoveFile | Moved | change, a step | done | attributes | – | client | waits |
//! | TakeBack | Done | change, a step | done | – | – | client | waits |
//!
//! - class: a *read* is one transaction that changes nothing. A *change* may need so much room at
//!   worst: *small* an ordinary transaction, *two small* twice that, *frees* more freed than taken,
//!   *a step* as much as a step of unbounded work. *Own* ones run in as many transactions as they
//!   take. *Session*: no transaction of this kind.
//! - kept: what the transaction keeps of the outcome, from which the answer is made again after a
//!   restart; the rest of the answer is the state at that time;
//! - uncertain: what its client asks the server for, in place of its caches, until the answer is
//!   there;
//! - repeated: may it be executed again when it was executed before? *In session*: only as long as
//!   the session lasts; *always*: in a later session too;
//! - during grace: who is served before all clients have recovered.
//!
//! Invariants:
//! - [`Op::spec`], [`Op::carried_bytes`] and the methods of [`OpReply`] name every variant: a new
//!   one does not compile before all of this is decided;
//! - no other code decides about all operations by a list of its own; it asks here.

use types::{ClientId, Ino, Name, Timestamp};

use self::{Answer as A, CostClass as C, Invalidates as I, Kept as K, Repeat as R};

use crate::mds::{Edit, LEAVE_WHITEOUT, Leased, Letter, Op, OpReply};

/// The declaration of an operation, with its operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spec<'a> {
    /// The result when it succeeds.
    pub answer: Answer,
    /// What it does to the store.
    pub class: Class<'a>,
    /// Inodes that have to be there for it, named by their numbers. What gives up something of an
    /// inode needs none.
    pub inodes: [Option<Ino>; 2],
    /// May it be executed again?
    pub repeat: Repeat,
    /// Who may ask for it.
    pub sender: Sender,
    /// Is it served during grace?
    pub grace: Grace,
}

/// What an operation does to the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class<'a> {
    /// One transaction that changes nothing. It may grant rights.
    Read,
    /// It changes the store, is kept with its outcome, and is replayed after a restart.
    Change(Change<'a>),
    /// It concerns what the server has in memory: sessions, leases, locks, its own state.
    Session,
}

/// A change of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change<'a> {
    /// The room that it needs.
    pub cost: CostClass,
    /// What is kept of its outcome.
    pub kept: Kept,
    /// What the client must not answer from its caches until it has the answer.
    pub invalidates: Invalidates<'a>,
}

/// The room in log and cache that a transaction needs at worst.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CostClass {
    /// An ordinary transaction.
    Small,
    /// Two ordinary ones in one.
    TwoSmall,
    /// It frees more than it allocates, or allocates nothing permanently.
    Frees,
    /// As much as a step of unbounded work.
    Step,
    /// It runs as many transactions as it takes, each with a cost of its own.
    Own,
}

/// What the transaction keeps of an outcome. The rest of the answer can be derived again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// That it is done.
    Done,
    /// The inode that it created, found or removed.
    Inode,
    /// The inode that it moved, a replaced one, and a whiteout.
    Moved,
    /// The blocks that it granted.
    Blocks,
    /// How many of its edits are done; in the end only that it is done.
    Edits,
}

/// A name in a directory.
pub type Place<'a> = (Ino, &'a Name);

/// What a change makes uncertain for its own client, from its sending to its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalidates<'a> {
    /// Nothing that a cache answers: the client holds the right to change it, or nobody caches it.
    Nothing,
    /// The attributes of [`Spec::inodes`].
    Attributes,
    /// These, and where a name leads that led nowhere.
    NewName(Place<'a>),
    /// These, where names lead, and the attributes of what they led to.
    Names([Option<Place<'a>>; 2]),
}

/// May an operation be executed again when it may have been executed before?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repeat {
    /// No: the answer to the first execution is kept.
    Never,
    /// As long as the session lasts: its answer is about the session, or rests on a right.
    InSession,
    /// In a later session too.
    Always,
}

/// Who may ask for an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sender {
    /// A client.
    Client,
    /// An administrator's tool.
    Administrator,
    /// Another metadata server.
    Server,
    /// Both.
    Anybody,
}

/// What becomes of an operation during grace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grace {
    /// It waits, unless its client replays it.
    Waits,
    /// It is served for a client that is recovering.
    Recovery,
    /// It is served.
    Served,
}

/// The result of an operation, as a kind of [`OpReply`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the variants are those of OpReply")]
pub enum Answer {
    Done,
    Entry,
    Attr,
    Entries,
    Created,
    Linked,
    Removed,
    Renamed,
    Acquired,
    Layout,
    Bytes,
    Space,
    Statfs,
    Locked,
    Text,
    Zones,
    Servers,
    Lent,
    Where,
    Moved,
}

impl Op {
    /// The operation's declaration.
    #[inline]
    pub fn spec(&self) -> Spec<'_> {
        match self {
            Op::Lookup { dir, .. } => read(A::Entry, *dir),
            Op::GetAttr { ino, .. } => read(A::Attr, *ino),
            Op::ReadDir { dir, .. } => read(A::Entries, *dir),
            Op::GetXattr { ino, .. } | Op::ListXattr { ino, .. } => read(A::Bytes, *ino),
            Op::ReadLink { ino } => read(A::Bytes, *ino),
            Op::Acquire { ino, .. } => read(A::Acquired, *ino),
            Op::Layout { ino, .. } => Spec { repeat: R::InSession, ..read(A::Layout, *ino) },
            Op::Create { dir, name, .. } => {
                change(A::Created, one(*dir), C::Small, K::Inode, I::NewName((*dir, name)))
            }
            Op::CreateTmpfile { dir, .. } => {
                change(A::Created, one(*dir), C::Small, K::Inode, I::Nothing)
            }
            Op::Link { ino, dir, name, .. } => {
                let inodes = [Some(*ino), Some(*dir)];
                change(A::Linked, inodes, C::Small, K::Inode, I::NewName((*dir, name)))
            }
            Op::Unlink { dir, name, .. } | Op::Rmdir { dir, name } => {
                let names = I::Names([Some((*dir, name)), None]);
                change(A::Removed, one(*dir), C::Frees, K::Inode, names)
            }
            Op::Rename { from, name, to, new_name, flags, .. } => {
                // Of the two operations in one, only one needs space.
                let cost = if flags & LEAVE_WHITEOUT != 0 { C::TwoSmall } else { C::Frees };
                let names = I::Names([Some((*from, name)), Some((*to, new_name))]);
                change(A::Renamed, [Some(*from), Some(*to)], cost, K::Moved, names)
            }
            Op::SetAttr { ino, .. } | Op::RemoveXattr { ino, .. } => {
                change(A::Attr, one(*ino), C::Frees, K::Done, I::Attributes)
            }
            Op::SetXattr { ino, .. } => {
                change(A::Attr, one(*ino), C::Small, K::Done, I::Attributes)
            }
            Op::Commit { ino, .. } => change(A::Attr, one(*ino), C::Own, K::Edits, I::Nothing),
            Op::SwapLayouts { ino, spare } => {
                change(A::Attr, [Some(*ino), Some(*spare)], C::Step, K::Done, I::Nothing)
            }
            Op::Space { .. } | Op::Place { .. } => {
                change(A::Space, NONE, C::Own, K::Blocks, I::Nothing)
            }
            Op::ReturnSpace { .. } => change(A::Done, NONE, C::Frees, K::Done, I::Nothing),
            Op::Sync {} | Op::EndPlacing { .. } => session(A::Done, NONE, R::InSession),
            Op::Lock { ino, .. } => session(A::Done, one(*ino), R::Never),
            Op::TestLock { ino, .. } => session(A::Locked, one(*ino), R::Always),
            Op::Unlock { .. } | Op::CancelLock { .. } => session(A::Done, NONE, R::Never),
            Op::Return { .. } | Op::Goodbye {} => session(A::Done, NONE, R::Never),
            Op::Reclaim { .. } | Op::ReclaimDone {} => {
                Spec { grace: Grace::Recovery, ..session(A::Done, NONE, R::Never) }
            }
            Op::Renew {} => anybody(A::Done, R::InSession, Grace::Served),
            Op::Status {} => anybody(A::Text, R::Always, Grace::Served),
            Op::Statfs {} => anybody(A::Statfs, R::Always, Grace::Waits),
            Op::Why { ino, .. } => served(A::Text, one(*ino)),
            Op::Evict { .. } | Op::Scrub { .. } => administrator(A::Done),
            Op::Zones {} => served(A::Zones, NONE),
            Op::Servers {} => served(A::Servers, NONE),
            Op::Tell { .. } => server(A::Done, Grace::Served),
            Op::Lend { .. } => server(A::Lent, Grace::Waits),
            Op::Where { .. } => session(A::Where, NONE, R::Always),
            Op::MoveDirectory { dir: ino, .. } | Op::MoveFile { ino, .. } => {
                change(A::Moved, one(*ino), C::Step, K::Done, I::Attributes)
            }
            Op::TakeBack { at, .. } => change(A::Done, one(*at), C::Step, K::Done, I::Nothing),
            Op::AddZone { .. } | Op::SetZoneState { .. } | Op::ZoneFiles { .. } => {
                administrator(A::Text)
            }
        }
    }

    /// An inode by whose number its client finds the server that executes it; `None`: it concerns
    /// no inode, or several servers.
    pub fn executed_at(&self) -> Option<Ino> {
        if let Op::Return { ino, .. } | Op::Unlock { ino, .. } | Op::CancelLock { ino, .. } = self {
            return Some(*ino);
        }
        // The name is new, not the file, which another server may have.
        if let Op::Link { dir, .. } = self {
            return Some(*dir);
        }
        self.spec().inodes.into_iter().flatten().next()
    }

    /// Bytes of memory that it holds beside itself, of fields that may be large.
    pub fn carried_bytes(&self) -> usize {
        match self {
            Op::Commit { edits, .. } => edits.iter().map(edit_bytes).sum(),
            Op::SetXattr { name, value, .. } => name.0.len() + value.0.len(),
            Op::Create { node, .. } => node.symlink.0.len(),
            Op::CreateTmpfile { node, placement, .. } => {
                node.symlink.0.len() + placement.0.as_ref().map_or(0, |bytes| bytes.0.len())
            }
            Op::ReturnSpace { runs } => size_of_val(&runs[..]),
            Op::Space { unreachable, .. } => size_of_val(&unreachable[..]),
            Op::Place { pieces, unreachable, .. } => {
                size_of_val(&pieces[..]) + size_of_val(&unreachable[..])
            }
            Op::AddZone { path, .. } => path.len(),
            Op::Tell { letters } => {
                let body = |letter: &Letter| size_of::<Letter>() + letter.body.0.len();
                letters.iter().map(body).sum()
            }
            Op::Reclaim { leases, locks } => size_of_val(&leases[..]) + size_of_val(&locks[..]),
            Op::Lookup { .. }
            | Op::GetAttr { .. }
            | Op::ReadDir { .. }
            | Op::GetXattr { .. }
            | Op::ListXattr { .. }
            | Op::RemoveXattr { .. }
            | Op::ReadLink { .. }
            | Op::Acquire { .. }
            | Op::Layout { .. }
            | Op::Link { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::SetAttr { .. }
            | Op::Sync {}
            | Op::Statfs {}
            | Op::Lock { .. }
            | Op::Unlock { .. }
            | Op::TestLock { .. }
            | Op::CancelLock { .. }
            | Op::Return { .. }
            | Op::ReclaimDone {}
            | Op::Renew {}
            | Op::Goodbye {}
            | Op::Status {}
            | Op::Evict { .. }
            | Op::Scrub { .. }
            | Op::Why { .. }
            | Op::Zones {}
            | Op::Servers {}
            | Op::Lend { .. }
            | Op::Where { .. }
            | Op::MoveDirectory { .. }
            | Op::MoveFile { .. }
            | Op::TakeBack { .. }
            | Op::SetZoneState { .. }
            | Op::ZoneFiles { .. }
            | Op::EndPlacing { .. }
            | Op::SwapLayouts { .. } => 0,
        }
    }
}

fn edit_bytes(edit: &Edit) -> usize {
    let content = match edit {
        Edit::Content { bytes } => bytes.0.len(),
        Edit::Map { .. } | Edit::Unmap { .. } | Edit::Written { .. } => 0,
    };
    size_of::<Edit>() + content
}

/// No inode.
const NONE: [Option<Ino>; 2] = [None; 2];

fn one(ino: Ino) -> [Option<Ino>; 2] {
    [Some(ino), None]
}

#[inline]
fn read(answer: Answer, ino: Ino) -> Spec<'static> {
    Spec { class: Class::Read, ..session(answer, one(ino), Repeat::Always) }
}

#[inline]
fn change(
    answer: Answer,
    inodes: [Option<Ino>; 2],
    cost: CostClass,
    kept: Kept,
    invalidates: Invalidates<'_>,
) -> Spec<'_> {
    let class = Class::Change(Change { cost, kept, invalidates });
    let (sender, grace) = (Sender::Client, Grace::Waits);
    Spec { answer, class, inodes, repeat: Repeat::Never, sender, grace }
}

#[inline]
fn session(answer: Answer, inodes: [Option<Ino>; 2], repeat: Repeat) -> Spec<'static> {
    let (sender, grace) = (Sender::Client, Grace::Waits);
    Spec { answer, class: Class::Session, inodes, repeat, sender, grace }
}

#[inline]
fn served(answer: Answer, inodes: [Option<Ino>; 2]) -> Spec<'static> {
    Spec { grace: Grace::Served, ..session(answer, inodes, Repeat::Always) }
}

#[inline]
fn anybody(answer: Answer, repeat: Repeat, grace: Grace) -> Spec<'static> {
    Spec { sender: Sender::Anybody, grace, ..session(answer, NONE, repeat) }
}

#[inline]
fn server(answer: Answer, grace: Grace) -> Spec<'static> {
    Spec { sender: Sender::Server, ..anybody(answer, Repeat::Always, grace) }
}

#[inline]
fn administrator(answer: Answer) -> Spec<'static> {
    Spec { sender: Sender::Administrator, ..session(answer, NONE, Repeat::Never) }
}

impl<'a> Spec<'a> {
    /// Does it change the store?
    pub fn is_change(&self) -> bool {
        matches!(self.class, Class::Change(_))
    }

    /// What its client must not answer from its caches until the answer is there.
    pub fn invalidates(&self) -> Invalidates<'a> {
        match self.class {
            Class::Change(change) => change.invalidates,
            Class::Read | Class::Session => Invalidates::Nothing,
        }
    }
}

impl Sender {
    /// Is `client` among them? 0 is the number of an administrator's tool.
    pub fn is(self, client: ClientId) -> bool {
        match self {
            Sender::Client => client != ClientId(0),
            Sender::Administrator | Sender::Server => client == ClientId(0),
            Sender::Anybody => true,
        }
    }
}

impl<'a> Invalidates<'a> {
    /// The names that may lead elsewhere after the change.
    pub fn names(&self) -> [Option<Place<'a>>; 2] {
        match *self {
            Invalidates::Nothing | Invalidates::Attributes => [None; 2],
            Invalidates::NewName(place) => [Some(place), None],
            Invalidates::Names(names) => names,
        }
    }
}

impl OpReply {
    /// What kind of result it is, or was to be: a commit that stopped early and a return that gave
    /// nothing up have results of their own.
    pub fn answer(&self) -> Answer {
        match self {
            OpReply::Done {} | OpReply::StaleReturn { .. } => Answer::Done,
            OpReply::Entry { .. } => Answer::Entry,
            OpReply::Attr { .. } | OpReply::Partial { .. } => Answer::Attr,
            OpReply::Entries { .. } => Answer::Entries,
            OpReply::Created { .. } => Answer::Created,
            OpReply::Linked { .. } => Answer::Linked,
            OpReply::Removed { .. } => Answer::Removed,
            OpReply::Renamed { .. } => Answer::Renamed,
            OpReply::Acquired { .. } => Answer::Acquired,
            OpReply::Layout { .. } => Answer::Layout,
            OpReply::Bytes { .. } => Answer::Bytes,
            OpReply::Space { .. } => Answer::Space,
            OpReply::Statfs { .. } => Answer::Statfs,
            OpReply::Locked { .. } => Answer::Locked,
            OpReply::Text { .. } => Answer::Text,
            OpReply::Zones { .. } => Answer::Zones,
            OpReply::Servers { .. } => Answer::Servers,
            OpReply::Lent { .. } => Answer::Lent,
            OpReply::Where { .. } => Answer::Where,
            OpReply::Moved { .. } => Answer::Moved,
        }
    }

    /// Calls `f` for all attributes with leases in it.
    pub fn each_leased(&mut self, f: &mut dyn FnMut(&mut Leased)) {
        match self {
            OpReply::Entry { entry, dir } => {
                entry.iter_mut().for_each(&mut *f);
                f(dir);
            }
            OpReply::Attr { leased } | OpReply::Acquired { leased, .. } => f(leased),
            OpReply::Entries { entries, dir, .. } => {
                entries.iter_mut().filter_map(|entry| entry.leased.as_mut()).for_each(&mut *f);
                f(dir);
            }
            OpReply::Created { leased, dir, .. } | OpReply::Linked { leased, dir } => {
                f(leased);
                f(dir);
            }
            OpReply::Removed { dir, .. } => f(dir),
            OpReply::Renamed { moved, from, to, whiteout, .. } => {
                f(moved);
                f(from);
                f(to);
                whiteout.0.iter_mut().for_each(f);
            }
            OpReply::Bytes { leased, .. } => leased.iter_mut().for_each(f),
            OpReply::Done {}
            | OpReply::Layout { .. }
            | OpReply::Space { .. }
            | OpReply::Statfs { .. }
            | OpReply::Locked { .. }
            | OpReply::Text { .. }
            | OpReply::Zones { .. }
            | OpReply::Servers { .. }
            | OpReply::Lent { .. }
            | OpReply::Where { .. }
            | OpReply::Moved { .. }
            | OpReply::Partial { .. }
            | OpReply::StaleReturn { .. } => {}
        }
    }

    /// The inodes that the operation created, those that it changed, and the time of the change.
    pub fn changed(&self) -> Changed {
        let of = |leased: &Leased| Some(leased.attr.ino);
        match self {
            OpReply::Attr { leased } => {
                Changed { inodes: [of(leased), None, None, None], ..at(leased) }
            }
            OpReply::Linked { leased, dir } => {
                Changed { inodes: [of(leased), of(dir), None, None], ..at(leased) }
            }
            OpReply::Created { leased, dir, .. } => {
                let inodes = [of(leased), of(dir), None, None];
                Changed { created: of(leased), inodes, ..at(leased) }
            }
            OpReply::Removed { attr, dir, .. } => {
                Changed { inodes: [Some(attr.ino), of(dir), None, None], ..at(dir) }
            }
            OpReply::Renamed { moved, replaced, from, to, whiteout, .. } => {
                let replaced = replaced.as_ref().map(|attr| attr.ino);
                let inodes = [of(moved), of(from), of(to), replaced];
                Changed { created: whiteout.0.as_ref().and_then(of), inodes, ..at(moved) }
            }
            OpReply::Done {}
            | OpReply::Entry { .. }
            | OpReply::Entries { .. }
            | OpReply::Acquired { .. }
            | OpReply::Layout { .. }
            | OpReply::Bytes { .. }
            | OpReply::Space { .. }
            | OpReply::Statfs { .. }
            | OpReply::Locked { .. }
            | OpReply::Text { .. }
            | OpReply::Zones { .. }
            | OpReply::Servers { .. }
            | OpReply::Lent { .. }
            | OpReply::Where { .. }
            | OpReply::Moved { .. }
            | OpReply::Partial { .. }
            | OpReply::StaleReturn { .. } => Changed::default(),
        }
    }
}

/// What a result says of a change. That of [`Op::GetAttr`] looks like that of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Changed {
    /// An inode that exists since.
    pub created: Option<Ino>,
    /// The inodes whose attributes or names it changed.
    pub inodes: [Option<Ino>; 4],
    /// The time of the change.
    pub time: Option<Timestamp>,
}

fn at(leased: &Leased) -> Changed {
    Changed { time: Some(leased.attr.ctime), ..Changed::default() }
}

#[cfg(test)]
mod tests;
