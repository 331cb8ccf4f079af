//! Directories that move between shards, in the sweeps.

use std::fmt::Write;

use types::{DirNo, FileKind, Ino, Name, ShardId};

use super::{links, new};
use crate::format::number::{SlotPlace, ino_of};
use crate::format::outside::Outside;
use crate::names::{Arrival, PlacedName};
use crate::txn::Txn;
use engine::error::Stop;

/// The shard that directories go to.
const THERE: ShardId = ShardId(9);

/// The `n`-th directory of that shard.
fn far(n: u64) -> Ino {
    ino_of(SlotPlace { chunk: DirNo::of(THERE, 2), slot: n as u32 }, 0)
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// One of the operations of moves, with the directory of this name in the root.
pub fn step(txn: &mut Txn<'_>, dir: Option<Ino>, which: u64, n: u64) -> Result<(), Stop> {
    // An operation before may have failed.
    let dir = match (which, dir) {
        (0..=1, Some(dir)) if txn.names().is_here(dir)? => Some(dir),
        (2, Some(dir)) if !txn.names().is_here(dir)? && txn.names().locate(dir)?.is_none() => {
            Some(dir)
        }
        _ => None,
    };
    match (which, dir) {
        (0, Some(dir)) if txn.names().is_empty(dir)? => {
            txn.names().create(dir, &name("below"), &new(FileKind::Directory), None)?;
            links(txn, dir, 1)?;
            let file = txn.names().create(dir, &name("file"), &new(FileKind::Fifo), None)?;
            txn.names().link(Ino::ROOT, &name("other name"), file)?;
            links(txn, file, 1).map(drop)
        }
        (1, Some(dir)) => {
            let names = txn.names().departure(dir, 9)?.names;
            txn.names().leave(dir, THERE, &names)
        }
        (2, Some(dir)) => come_back(txn, dir),
        (3, _) if txn.names().is_here(far(n))? => Ok(()),
        (3, _) => {
            let Some(mut attr) = txn.names().attr(Ino::ROOT)? else { return Ok(()) };
            (attr.ino, attr.nlink) = (far(n), 2);
            let placed = |at| PlacedName {
                at,
                name: name(&format!("f{at}")),
                ino: far(50 + u64::from(at)),
                kind: FileKind::Symlink,
            };
            txn.names().arrive(&Arrival {
                attr,
                parent: far(100 + n),
                stream: 5,
                xattrs: vec![(b"user.x".to_vec(), vec![1; 200])],
                annexes: vec![false],
                names: vec![placed(8), placed(24)],
            })
        }
        _ => Ok(()),
    }
}

/// A directory that went comes back, with those names whose inodes are here.
fn come_back(txn: &mut Txn<'_>, dir: Ino) -> Result<(), Stop> {
    let guests = txn.names().guests(Ino::NONE, 1000)?.into_iter();
    let below = guests.filter(|(_, it)| *it == Outside::Parent(dir)).map(|(ino, _)| ino);
    let names: Vec<PlacedName> = (0..)
        .map(|n| 8 * n)
        .zip(below)
        .map(|(at, ino)| PlacedName {
            at,
            name: name(&format!("d{at}")),
            ino,
            kind: FileKind::Directory,
        })
        .collect();
    let Some(mut attr) = txn.names().attr(Ino::ROOT)? else { return Ok(()) };
    (attr.ino, attr.nlink) = (dir, 2 + names.len() as u32);
    let (parent, annexes, xattrs) = (Ino::ROOT, vec![false], Vec::new());
    txn.names().arrive(&Arrival { attr, parent, stream: 7, xattrs, annexes, names })
}

/// All directories that have moved; empty if there are none.
pub fn describe(txn: &mut Txn<'_>) -> Result<String, Stop> {
    let mut out = String::new();
    for (ino, home) in txn.names().homes(Ino::NONE, 1000)? {
        writeln!(out, "home of {ino}: {home}").unwrap();
    }
    Ok(out)
}
