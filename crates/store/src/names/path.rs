//! From an inode number to a path: the reverse walk.
//!
//! Invariant: it goes from slot to directory, which each chunk names, so it costs a few reads for each
//! level and searches nothing.

use types::Ino;

use crate::error::Stop;
use crate::txn::Txn;

/// Directories on the way at most: a longer way goes in a circle.
const DEPTH_MAX: usize = 1 << 16;

impl Txn<'_> {
    /// A path from the root to `ino`, beginning with a slash. `None` if there is no such inode, or if it
    /// has no name, or its own slot has none (a file whose first name was removed while it had others).
    ///
    /// # Errors
    /// `Stop::Corrupt` if the way goes in a circle; `Stop` of the blocks read.
    pub fn path(&mut self, ino: Ino) -> Result<Option<Vec<u8>>, Stop> {
        if ino == Ino::NONE {
            return Ok(None);
        }
        let (mut at, mut names) = (ino, Vec::new());
        while at != Ino::ROOT {
            let Some((dir, name)) = self.entry_of(at)? else { return Ok(None) };
            names.push(name);
            if names.len() > DEPTH_MAX {
                return Err(Stop::Fault(types::Fault::Corrupt));
            }
            at = dir;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name.as_bytes());
        }
        Ok(Some(if path.is_empty() { b"/".to_vec() } else { path }))
    }
}

#[cfg(test)]
mod tests {
    use types::{Attr, FileKind, Ino, Name};

    use crate::testing::{formatted, new_inode, run};

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_number_leads_to_a_path_wherever_its_inode_went() {
        let mfs = formatted();
        let (tmp, out, deep) = run(&mfs, |txn| {
            let tmp = txn.create(Ino::ROOT, &name("tmp"), &new_inode(FileKind::Directory), None)?;
            let out = txn.create(Ino::ROOT, &name("out"), &new_inode(FileKind::Directory), None)?;
            Ok((tmp, out, txn.create(out, &name("deep"), &new_inode(FileKind::Directory), None)?))
        });
        let path = |ino: Ino| run(&mfs, |txn| txn.path(ino)).map(|p| String::from_utf8(p).unwrap());
        assert_eq!(path(Ino::ROOT).as_deref(), Some("/"));
        let mut files = Vec::new();
        for n in 0..500 {
            let text = format!("f{n}");
            let ino = run(&mfs, |txn| {
                let ino = txn.create(tmp, &name("new"), &new_inode(FileKind::Regular), None)?;
                txn.rename(tmp, &name("new"), deep, &name(&text))?;
                Ok(ino)
            });
            files.push((ino, format!("/out/deep/{text}")));
        }
        for (ino, wanted) in &files {
            assert_eq!(path(*ino).as_ref(), Some(wanted));
        }
        run(&mfs, |txn| txn.rename(out, &name("deep"), Ino::ROOT, &name("up")));
        assert_eq!(path(files[7].0).as_deref(), Some("/up/f7"));
        let gone = files[8].0;
        run(&mfs, |txn| {
            txn.remove_name(deep, &name("f8"))?;
            let attr = txn.attr(gone)?.unwrap();
            txn.set_attr(&Attr { nlink: 0, ..attr })
        });
        assert_eq!(path(gone), None, "without a name");
        while !run(&mfs, |txn| txn.free_inode_step(gone, 9)) {}
        assert_eq!((path(gone), path(Ino::NONE)), (None, None));
    }
}
