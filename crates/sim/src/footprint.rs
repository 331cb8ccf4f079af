//! What operations read and write of the state, to decide whether the order of two can matter.

use std::collections::BTreeSet;

use types::{FileKind, Ino};

use crate::call::{At, Call, Op, Outcome};
use crate::model::{FsState, Node};

/// A part of the state that operations may share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Key {
    Name(At),
    /// The existence of a directory.
    Alive(Ino),
    /// The set of names of a directory.
    Names(Ino),
    Node(Ino),
    /// Group and mode of a directory, as new entries inherit them.
    Heritage(Ino),
    /// The tree of directories.
    Tree,
    /// A client's locks, opens and unsynced changes.
    Session(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Read,
    /// Changes that commute.
    Add,
    Write,
}

/// What an operation reads and writes.
#[derive(Default)]
pub struct Footprint(Vec<(Key, Mode)>);

impl Footprint {
    /// Do the two conflict?
    pub fn meets(&self, other: &Footprint) -> bool {
        self.0.iter().any(|(key, mode)| {
            other.0.iter().any(|(its, how)| {
                key == its
                    && !matches!((mode, how), (Mode::Read, Mode::Read) | (Mode::Add, Mode::Add))
            })
        })
    }

    /// Adds another footprint.
    pub fn join(&mut self, other: Footprint) {
        self.0.extend(other.0);
    }

    fn add(&mut self, key: Key, mode: Mode) {
        self.0.push((key, mode));
    }

    fn changes_name(&mut self, at: At) {
        self.add(Key::Name(at), Mode::Write);
        self.add(Key::Alive(at.dir), Mode::Read);
        self.add(Key::Names(at.dir), Mode::Add);
    }

    fn loses_name(&mut self, state: &FsState, ino: Option<Ino>) {
        let Some(ino) = ino else { return };
        self.add(Key::Node(ino), Mode::Write);
        if state.is_dir(ino) {
            self.add(Key::Alive(ino), Mode::Write);
            self.add(Key::Names(ino), Mode::Write);
        }
    }
}

impl FsState {
    /// What `call` may read and write here.
    pub fn footprint(&self, call: &Call) -> Footprint {
        let mut all = Footprint::default();
        if self.may_crash && !call.op.only_looks() {
            let lost = matches!(call.op, Op::Lost { .. });
            all.add(Key::Session(call.client), if lost { Mode::Write } else { Mode::Add });
        }
        match &call.op {
            Op::Lookup(at) => {
                all.add(Key::Name(*at), Mode::Read);
                all.add(Key::Alive(at.dir), Mode::Read);
            }
            Op::Make(at, kind) => {
                all.changes_name(*at);
                if *kind == FileKind::Directory {
                    all.add(Key::Node(at.dir), Mode::Write);
                }
                self.made(call, at.dir, &mut all);
            }
            Op::Create { at, .. } | Op::Symlink(at, _) => {
                all.changes_name(*at);
                self.made(call, at.dir, &mut all);
            }
            Op::TmpFile(dir, _) => {
                all.add(Key::Alive(*dir), Mode::Read);
                self.made(call, *dir, &mut all);
            }
            Op::Link(ino, at) => {
                all.changes_name(*at);
                all.add(Key::Node(*ino), Mode::Write);
            }
            Op::Unlink(at) => {
                all.changes_name(*at);
                all.loses_name(self, self.find(*at));
            }
            Op::Rmdir(at) => {
                all.changes_name(*at);
                all.add(Key::Node(at.dir), Mode::Write);
                all.loses_name(self, self.find(*at));
            }
            Op::Rename { from, to, .. } => {
                all.changes_name(*from);
                all.changes_name(*to);
                let (moved, over) = (self.find(*from), self.find(*to));
                if moved.into_iter().chain(over).any(|ino| self.is_dir(ino)) {
                    all.add(Key::Tree, Mode::Write);
                    all.add(Key::Node(from.dir), Mode::Write);
                    all.add(Key::Node(to.dir), Mode::Write);
                }
                all.loses_name(self, over);
                if let Some(moved) = moved {
                    all.add(Key::Node(moved), Mode::Write);
                }
            }
            Op::GetAttr(ino)
            | Op::Read { ino, .. }
            | Op::End(ino, _)
            | Op::GetXattr(ino)
            | Op::ReadLink(ino) => all.add(Key::Node(*ino), Mode::Read),
            Op::Open(ino, _)
            | Op::Close(ino, _)
            | Op::Left(ino, _)
            | Op::GivenBack(ino, _)
            | Op::Tried { ino, .. }
            | Op::Write { ino, .. }
            | Op::Truncate(ino, _)
            | Op::Allocate { ino, .. }
            | Op::SetXattr(ino, _)
            | Op::Lock { ino, .. } => all.add(Key::Node(*ino), Mode::Write),
            Op::SetMode(ino, _) | Op::SetOwner { ino, .. } => {
                all.add(Key::Node(*ino), Mode::Write);
                if self.is_dir(*ino) {
                    all.add(Key::Heritage(*ino), Mode::Write);
                }
            }
            Op::Damaged { ino, .. } | Op::Unwritten(ino) => all.add(Key::Node(*ino), Mode::Write),
            Op::Settled => {
                let late = self.nodes.iter().filter(|(_, node)| node.late_writes.is_some());
                late.for_each(|(ino, _)| all.add(Key::Node(*ino), Mode::Write));
            }
            Op::LostPower { .. } => {
                let may_lose = |node: &Node| {
                    node.not_durable.as_ref().is_some_and(|it| it.flush_failed || it.late_write)
                };
                let may_lose = self.nodes.iter().filter(|(_, node)| may_lose(node));
                may_lose.for_each(|(ino, _)| all.add(Key::Node(*ino), Mode::Write));
            }
            Op::Fsync(ino, _) => {
                if self.may_crash {
                    all.add(Key::Node(*ino), Mode::Write);
                }
            }
            Op::SyncNames(_) => {}
            Op::SyncAll => self.add_all_of(call.client, &mut all),
            Op::Lost { edits, .. } => {
                self.add_all_of(call.client, &mut all);
                let edited = edits.iter().filter_map(Op::edited);
                edited.for_each(|ino| all.add(Key::Node(ino), Mode::Write));
            }
        }
        all
    }

    /// Everything that a client may lose, and what it holds.
    fn add_all_of(&self, client: usize, all: &mut Footprint) {
        let opened = self.opens.range((client, Ino(0))..=(client, Ino(u64::MAX)));
        let mut inos: BTreeSet<Ino> = opened.map(|((_, ino), _)| *ino).collect();
        for (ino, node) in &self.nodes {
            let dirty = node.dirty.iter().any(|dirty| dirty.client == client);
            if dirty || node.is_locked_by(client) {
                inos.insert(*ino);
            }
        }
        inos.into_iter().for_each(|ino| all.add(Key::Node(ino), Mode::Write));
    }

    fn made(&self, call: &Call, dir: Ino, all: &mut Footprint) {
        all.add(Key::Heritage(dir), Mode::Read);
        if let Some(Outcome::Found(Some(ino))) = &call.outcome {
            all.add(Key::Node(*ino), Mode::Write);
            all.add(Key::Alive(*ino), Mode::Write);
        }
    }
}
