//! Reading the namespace: lookup, getattr, readdir, readlink.

use mfs::{Stop, Txn};
use proto::mds::{DirEntry, OpReply};
use proto::wire::Bytes;
use types::limits::READDIR_MAX;
use types::{Fault, FileKind, Ino, Name, Rights};

use crate::context::{OpContext, applicable, elsewhere};
use crate::uncommitted::MetaItem;

/// Looks up a name in a directory.
pub fn lookup(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    dir: Ino,
    name: &Name,
    want: Rights,
    want_dir: Rights,
) -> Result<OpReply, Stop> {
    let dir_attr = cx.dir(txn, dir)?;
    let found = match txn.names().entry(dir, name)? {
        Some((ino, kind)) if cx.is_elsewhere(ino) => Some(cx.leased(elsewhere(ino, kind))),
        Some((ino, _)) => {
            let attr = cx.attr(txn, ino)?;
            let attr = cx.seen(attr);
            cx.want(&attr, want);
            if want.contains(Rights::OPEN) && attr.kind != FileKind::Directory {
                cx.effects.found.push(ino);
            }
            cx.effects.reads.push(MetaItem::Attr(ino));
            Some(cx.leased(attr))
        }
        None => None,
    };
    cx.ready()?;
    cx.want(&dir_attr, want_dir);
    cx.effects.reads.push(MetaItem::Name(dir, name.clone()));
    Ok(OpReply::Entry { entry: found, dir: cx.leased(dir_attr) })
}

/// Reads the attributes of an inode.
pub fn get_attr(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    ino: Ino,
    want: Rights,
) -> Result<OpReply, Stop> {
    let attr = cx.attr(txn, ino)?;
    let attr = cx.seen(attr);
    cx.ready()?;
    cx.want(&attr, want);
    // Another server has named the file to the client, which may open it next.
    if want.contains(Rights::OPEN) && attr.nlink > 0 && attr.kind != FileKind::Directory {
        cx.effects.found.push(ino);
    }
    cx.effects.reads.push(MetaItem::Attr(ino));
    Ok(OpReply::Attr { leased: cx.leased(attr) })
}

/// Which entries a client requests.
#[derive(Clone, Copy)]
pub struct DirPage {
    pub cookie: u64,
    pub max: u32,
    pub plus: bool,
}

/// Lists a page of a directory, with attributes if `plus`.
pub fn read_dir(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    dir: Ino,
    page: DirPage,
    want: Rights,
    want_dir: Rights,
) -> Result<OpReply, Stop> {
    let dir_attr = cx.dir(txn, dir)?;
    let max = (page.max as usize).clamp(1, READDIR_MAX);
    let found = txn.names().readdir(dir, page.cookie, max)?;
    let end = found.len() < max;
    let mut entries = Vec::with_capacity(found.len());
    for entry in found {
        let mut leased = None;
        if page.plus {
            cx.is_open_to_readers(entry.ino)?;
            let attr = match entry.attr {
                Some(attr) => Some(attr),
                None => txn.names().attr(entry.ino)?,
            };
            // A file that another client is writing comes without attributes: the client looks it
            // up.
            let written = cx.server.leases.table().written_elsewhere(cx.client, entry.ino);
            let attr = attr.filter(|_| !written);
            if let Some(attr) = attr {
                if want.intersects(applicable(attr.kind)) {
                    cx.want(&attr, want);
                }
                cx.effects.reads.push(MetaItem::Attr(attr.ino));
                leased = Some(cx.leased(attr));
            }
        }
        let (cookie, name, ino, kind) = (entry.cookie, entry.name, entry.ino, entry.kind);
        entries.push(DirEntry { cookie, name, ino, kind, leased });
    }
    cx.want(&dir_attr, want_dir);
    cx.effects.reads.push(MetaItem::Names(dir));
    Ok(OpReply::Entries { entries, end, dir: cx.leased(dir_attr) })
}

/// Reads the target of a symlink.
pub fn read_link(cx: &mut OpContext<'_>, txn: &mut Txn<'_>, ino: Ino) -> Result<OpReply, Stop> {
    let attr = cx.attr(txn, ino)?;
    if attr.kind != FileKind::Symlink {
        return Err(Fault::Invalid.into());
    }
    let bytes = txn.names().symlink(ino)?;
    cx.effects.reads.push(MetaItem::Attr(ino));
    Ok(OpReply::Bytes { bytes: Bytes(bytes), leased: Some(cx.leased(attr)) })
}
