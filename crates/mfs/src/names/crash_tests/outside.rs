//! Names on other shards in the sweeps.

use std::fmt::Write;

use types::{DirNo, FileKind, Ino, Name, ShardId};

use super::{links, new};
use crate::format::number::{SlotPlace, ino_of};
use crate::format::outside::Outside;
use crate::names::Within;
use crate::txn::Txn;
use engine::error::Stop;

/// The `n`-th inode of another shard.
fn far(n: u64) -> Ino {
    ino_of(SlotPlace { chunk: DirNo::of(ShardId(9), 1), slot: n as u32 % 100 }, 0)
}

/// Is the inode another shard's?
pub fn is_far(txn: &mut Txn<'_>, ino: Ino) -> Result<bool, Stop> {
    Ok(!txn.names().is_here(ino)?)
}

/// Directories whose names are on other shards.
pub fn directories(txn: &mut Txn<'_>) -> Result<Vec<Ino>, Stop> {
    let all = txn.names().guests(Ino::NONE, 1000)?.into_iter();
    Ok(all.filter(|(_, it)| matches!(it, Outside::Parent(_))).map(|(ino, _)| ino).collect())
}

/// Does operation `kind` with a name that leads to another shard: removes it or moves it to
/// another name, or nothing.
pub fn with_name(
    txn: &mut Txn<'_>,
    kind: u64,
    (dir, name): (Ino, &Name),
    (to, second): (Ino, &Name),
) -> Result<(), Stop> {
    let Some((_, of)) = txn.names().entry(dir, name)? else { return Ok(()) };
    let links_of = i32::from(of == FileKind::Directory);
    match kind {
        5..=6 => {
            txn.names().remove_name(dir, name)?;
            links(txn, dir, -links_of).map(drop)
        }
        8..=9 if txn.names().entry(to, second)?.is_none() => {
            txn.names().rename(dir, name, to, second)?;
            links(txn, dir, -links_of)?;
            links(txn, to, links_of).map(drop)
        }
        8..=9 => {
            let Some((_, other)) = txn.names().entry(to, second)? else { return Ok(()) };
            // Only names of which nothing can become its own ancestor are exchanged.
            if other == FileKind::Directory {
                return Ok(());
            }
            txn.names().exchange((dir, name), (to, second))?;
            links(txn, dir, -links_of)?;
            links(txn, to, links_of).map(drop)
        }
        _ => Ok(()),
    }
}

/// One of the operations that only file systems of several shards have.
pub fn step(txn: &mut Txn<'_>, (dir, name): (Ino, &Name), which: u64, n: u64) -> Result<(), Stop> {
    let old = match txn.names().entry(dir, name)? {
        Some((ino, kind)) if !is_far(txn, ino)? => Some((ino, kind)),
        _ => None,
    };
    let directory = n % 2 == 1;
    match which {
        0 => {
            if old.is_some() {
                return Ok(());
            }
            let kind = if directory { FileKind::Directory } else { FileKind::Regular };
            txn.names().link_outside(dir, name, far(n), kind)?;
            links(txn, dir, i32::from(directory)).map(drop)
        }
        1 => {
            let kind = if directory { FileKind::Directory } else { FileKind::Symlink };
            txn.names().create_guest(far(n), &new(kind), None).map(drop)
        }
        2 => {
            let Some((ino, FileKind::Directory)) = old else { return Ok(()) };
            txn.names().remove_name(dir, name)?;
            txn.names().set_outside(ino, Some(Outside::Parent(far(n))))?;
            links(txn, dir, -1).map(drop)
        }
        3 => {
            let Some(&ino) = directories(txn)?.first() else { return Ok(()) };
            if old.is_some() || txn.names().is_within(dir, ino)? == Within::Yes {
                return Ok(());
            }
            txn.names().bring_home(dir, name, ino)?;
            txn.names().set_outside(ino, None)?;
            links(txn, dir, 1).map(drop)
        }
        4..=5 => {
            let Some((ino, _)) = old.filter(|&(_, kind)| kind != FileKind::Directory) else {
                return Ok(());
            };
            let had = txn.names().outside(ino)?.map_or(0, Outside::names);
            let has = if which == 4 { had + 1 } else { had.saturating_sub(1) };
            txn.names().set_outside(ino, Some(Outside::Names(has)))?;
            links(txn, ino, has as i32 - had as i32).map(drop)
        }
        _ => {
            let Some(&ino) = directories(txn)?.first() else { return Ok(()) };
            if !txn.names().is_empty(ino)? {
                return Ok(());
            }
            txn.names().set_outside(ino, None)?;
            links(txn, ino, -2).map(drop)
        }
    }
}

/// Takes its names on other shards from one inode; `false`: none has any. Directories are empty.
pub fn remove_one(txn: &mut Txn<'_>) -> Result<bool, Stop> {
    let Some(&(ino, outside)) = txn.names().guests(Ino::NONE, 1)?.first() else {
        return Ok(false);
    };
    txn.names().set_outside(ino, None)?;
    let counted = match outside {
        Outside::Parent(_) => 2,
        Outside::Names(names) => names as i32,
    };
    links(txn, ino, -counted)?;
    Ok(true)
}

/// All inodes with names on other shards; empty if there are none.
pub fn describe(txn: &mut Txn<'_>) -> Result<String, Stop> {
    let mut out = String::new();
    for (ino, outside) in txn.names().guests(Ino::NONE, 1000)? {
        writeln!(out, "{ino} {outside:?}").unwrap();
        super::dump_inode(txn, ino, &mut out)?;
    }
    Ok(out)
}
