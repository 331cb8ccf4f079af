use types::{Ahead, ClientId, FileBlock, FileKind, LockOwner, Rights};

use super::*;
use crate::mds::{Lock, NewNode, SetAttr, UnplacedPiece};
use crate::prealloc::Policy;
use crate::wire::{Appended, Bytes, Malformed, Reader, Wire};

/// One of each, in the order of their numbers.
fn all() -> Vec<Op> {
    let (dir, ino, want) = (Ino(2), Ino(3), Rights::empty());
    let name = || Name::new(b"n").unwrap();
    let bytes = || Bytes(vec![1; 5]);
    let node = || NewNode { kind: FileKind::Symlink, mode: 0, umask: 0, rdev: 0, symlink: bytes() };
    let (mode, uid, gid, atime, mtime) = (None, None, None, None, None);
    let set = SetAttr { mode, uid, gid, atime, mtime, kill_setid: false, judged_by: 0 };
    let (flock, owner) = (true, LockOwner(1));
    let lock = || Lock { flock, owner, pid: 1, exclusive: true, start: 0, end: 0 };
    let (size, ctime, from, ahead) = (None, None, FileBlock(0), Ahead::default());
    let written = None;
    let edits = vec![Edit::Content { bytes: bytes() }];
    vec![
        Op::Lookup { dir, name: name(), want, want_dir: want },
        Op::GetAttr { ino, want },
        Op::ReadDir { dir, cookie: 0, max: 1, plus: false, want, want_dir: want },
        Op::Create { dir, name: name(), node: node(), want },
        Op::CreateTmpfile { dir, node: node(), want, placement: Appended(None) },
        Op::Link { ino, dir, name: name(), tmpfile: false },
        Op::Unlink { dir, name: name(), unused: None },
        Op::Rmdir { dir, name: name() },
        Op::Rename { from: dir, name: name(), to: ino, new_name: name(), flags: 0, unused: None },
        Op::SetAttr { ino, set },
        Op::GetXattr { ino, name: bytes(), want },
        Op::SetXattr { ino, name: bytes(), value: bytes(), flags: 0, kill_setgid: false },
        Op::ListXattr { ino, want },
        Op::RemoveXattr { ino, name: bytes() },
        Op::ReadLink { ino },
        Op::Acquire { ino, rights: want, from, range: None, ahead },
        Op::Layout { ino, from },
        Op::Commit { ino, edits, size, mtime: written, ctime, merge: false, tail_zero: false },
        Op::Space { hint: None, blocks: 1, unreachable: Vec::new() },
        Op::ReturnSpace { runs: Vec::new() },
        Op::Sync {},
        Op::Statfs {},
        Op::Lock { ino, lock: lock(), wait: false },
        Op::Unlock { ino, lock: lock() },
        Op::TestLock { ino, lock: lock() },
        Op::CancelLock { ino, lock: lock() },
        Op::Return { ino, seq: 0, give: want, still_open: false, range: None },
        Op::Reclaim { leases: Vec::new(), locks: Vec::new() },
        Op::ReclaimDone {},
        Op::Renew {},
        Op::Goodbye {},
        Op::Status {},
        Op::Evict { client: ClientId(1) },
        Op::Scrub { rate: None },
        Op::Why { ino: Ino(1), lock: None },
        Op::Zones {},
        Op::AddZone { path: "/dev/sdz".into(), overwrite: false, number: Appended(None) },
        Op::SetZoneState { pag: types::PagId(1), state: 2, only_from: vec![0, 1] },
        Op::ZoneFiles { pag: types::PagId(1), from: 0, to: 9, at: (0, 0) },
        Op::Place {
            ino,
            pieces: vec![UnplacedPiece { block: from, len: 1, before: None, part: None }],
            writer: Some((1, 2)),
            policy: Policy::Vanilla,
            hint: None,
            unreachable: Vec::new(),
        },
        Op::EndPlacing { ino, handle: Some(1) },
        Op::SwapLayouts { ino, spare: dir },
        Op::Servers {},
        Op::Tell { letters: Vec::new() },
        Op::Lend { shard: 1, sequence: 1, blocks: 1 },
        Op::Where { ino },
        Op::MoveDirectory { dir, shard: 1 },
        Op::MoveFile { ino, dir, name: name(), shard: 1 },
        Op::TakeBack { at: dir, pag: types::PagId(1), shard: 1 },
    ]
}

/// The operation's row in the table of the module's documentation.
fn row(op: &Op) -> String {
    let spec = op.spec();
    let (class, kept) = match spec.class {
        Class::Read => ("read", "–"),
        Class::Session => ("session", "–"),
        Class::Change(change) => {
            let class = match change.cost {
                CostClass::Small => "change, small",
                CostClass::TwoSmall => "change, two small",
                CostClass::Frees if matches!(op, Op::Rename { .. }) => {
                    "change, frees; with a whiteout two small"
                }
                CostClass::Frees => "change, frees",
                CostClass::Step => "change, a step",
                CostClass::Own => "change, own",
            };
            let kept = match change.kept {
                Kept::Done => "done",
                Kept::Inode => "inode",
                Kept::Moved => "inodes",
                Kept::Blocks => "blocks",
                Kept::Edits => "edits done",
            };
            (class, kept)
        }
    };
    let uncertain = match spec.invalidates() {
        Invalidates::Nothing => "–",
        Invalidates::Attributes => "attributes",
        Invalidates::NewName(_) => "attributes, a new name",
        Invalidates::Names(_) => "attributes, names",
    };
    let repeat = match spec.repeat {
        Repeat::Never => "–",
        Repeat::InSession => "in session",
        Repeat::Always => "always",
    };
    let sender = match spec.sender {
        Sender::Client => "client",
        Sender::Administrator => "administrator",
        Sender::Server => "metadata server",
        Sender::Anybody => "both",
    };
    let grace = match spec.grace {
        Grace::Waits => "waits",
        Grace::Recovery => "recovering clients",
        Grace::Served => "served",
    };
    let name = format!("{op:?}");
    let name = name.split_whitespace().next().unwrap_or_default();
    let answer = spec.answer;
    let last = format!("{repeat} | {sender} | {grace}");
    format!("//! | {name} | {answer:?} | {class} | {kept} | {uncertain} | {last} |")
}

#[test]
fn every_operation_has_its_row_in_the_table() {
    let ids: Vec<u16> =
        all().iter().map(|op| u16::get(&mut Reader::new(&op.to_bytes())).unwrap()).collect();
    let next = ids.len() as u16 + 1;
    assert!(ids.into_iter().eq(1..next));
    let after = [next.to_le_bytes().as_slice(), &[0; 4]].concat();
    assert_eq!(Op::get(&mut Reader::new(&after)), Err(Malformed("unknown Op")), "a new one");
    let rows: Vec<String> = all().iter().map(row).collect();
    let source = include_str!("../operation.rs");
    let table: Vec<&str> = source.lines().filter(|line| line.starts_with("//! | ")).collect();
    assert_eq!(table[1..], rows, "the table should be\n{}", rows.join("\n"));
}

#[test]
fn whiteout_doubles_the_cost_of_a_rename() {
    let (from, to, name) = (Ino(2), Ino(3), Name::new(b"n").unwrap());
    let rename = |flags| {
        let (name, new_name) = (name.clone(), name.clone());
        Op::Rename { from, name, to, new_name, flags, unused: None }
    };
    let cost = |op: Op| match op.spec().class {
        Class::Change(change) => Some(change.cost),
        Class::Read | Class::Session => None,
    };
    assert_eq!(cost(rename(2)), Some(CostClass::Frees));
    assert_eq!(cost(rename(LEAVE_WHITEOUT)), Some(CostClass::TwoSmall));
}

#[test]
fn what_changes_the_store_is_never_repeated_and_waits_for_grace() {
    for op in all() {
        let spec = op.spec();
        if spec.is_change() {
            assert_eq!((spec.repeat, spec.grace), (Repeat::Never, Grace::Waits), "{op:?}");
            assert_eq!(spec.sender, Sender::Client, "{op:?}");
        } else {
            assert_eq!(spec.invalidates(), Invalidates::Nothing, "{op:?}");
        }
        let names = spec.invalidates().names();
        for (dir, _) in names.iter().flatten() {
            assert!(
                spec.inodes.contains(&Some(*dir)),
                "a change of a name is one in its directory"
            );
        }
    }
}
