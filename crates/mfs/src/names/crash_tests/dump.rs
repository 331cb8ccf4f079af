//! What the sweeps compare of an inode.

use std::fmt::Write;

use types::{Fault, FileBlock, FileKind, Ino};

use crate::txn::Txn;
use engine::error::Stop;

/// Everything that can be read of an inode.
pub fn dump_inode(txn: &mut Txn<'_>, ino: Ino, out: &mut String) -> Result<(), Stop> {
    let attr = txn.names().attr(ino)?.ok_or(Stop::Fault(Fault::Stale))?;
    let value = txn.names().xattr(ino, b"user.a")?;
    writeln!(out, "  {attr:?} {:?}", value.map(|v| (v.len(), v.first().copied()))).unwrap();
    match attr.kind {
        FileKind::Symlink => writeln!(out, "  {}", txn.names().symlink(ino)?.len()).unwrap(),
        FileKind::Regular => {
            writeln!(out, "  {:?}", txn.layouts().layout(ino, FileBlock(0), 1000)?).unwrap();
            writeln!(out, "  {:?}", txn.layouts().object(ino)?).unwrap();
            let content = txn.layouts().content(ino)?;
            writeln!(out, "  {} {:x}", content.len(), types::crc32c(&content)).unwrap();
        }
        _ => {}
    }
    Ok(())
}
