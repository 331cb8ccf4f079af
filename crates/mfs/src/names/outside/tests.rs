use std::collections::BTreeSet;

use types::{Attr, DirNo, ShardId};

use super::*;
use crate::format::number::{SlotPlace, ino_of, orphan_dir, root_dir};
use crate::handle::Mfs;
use crate::names::{Top, Within};
use crate::testing::{formatted, links, new_dir, new_inode, now, run};
use crate::trees::{INODES, ORPHANS};
use crate::txn::Txn;
use engine::cost::Cost;
use engine::error::StoreError;

const OTHER: ShardId = ShardId(3);

/// The `n`-th inode of the other shard.
fn foreign(n: u32) -> Ino {
    ino_of(SlotPlace { chunk: DirNo::of(OTHER, 5), slot: n }, 0)
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn shards() -> Mfs {
    let mfs = formatted();
    now(mfs.add_shards()).unwrap();
    mfs
}

fn fault<T>(mfs: &Mfs, body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> Fault {
    match now(mfs.run(Cost::STEP, body)) {
        Err(StoreError::Fault(fault)) => fault,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("no fault"),
    }
}

fn guest(mfs: &Mfs, parent: Ino, kind: FileKind) -> Ino {
    run(mfs, |txn| txn.names().create_guest(parent, &new_inode(kind), None))
}

fn list(mfs: &Mfs, dir: Ino) -> Vec<(String, Ino, FileKind, bool)> {
    let entries = run(mfs, |txn| txn.names().readdir(dir, 0, 1000));
    let text = |name: &Name| String::from_utf8_lossy(name.as_bytes()).into_owned();
    entries.iter().map(|it| (text(&it.name), it.ino, it.kind, it.attr.is_some())).collect()
}

fn set_nlink(txn: &mut Txn<'_>, ino: Ino, nlink: u32) -> Result<(), Stop> {
    let attr = txn.names().attr(ino)?.expect("an inode");
    txn.names().set_attr(&Attr { nlink, ..attr })
}

fn is_orphan(mfs: &Mfs, ino: Ino) -> bool {
    run(mfs, |txn| ORPHANS.get(txn, &ino.0.to_be_bytes())).is_some()
}

#[test]
fn name_of_an_inode_of_another_shard_is_found_listed_moved_and_removed() {
    let mfs = shards();
    let dir = run(&mfs, |txn| new_dir(txn, Ino::ROOT, "dir"));
    let (there, file) = (foreign(1), foreign(2));
    run(&mfs, |txn| {
        txn.names().link_outside(Ino::ROOT, &name("there"), there, FileKind::Directory)?;
        txn.names().link_outside(dir, &name("file"), file, FileKind::Regular)
    });
    let entry = |dir, text: &str| run(&mfs, |txn| txn.names().entry(dir, &name(text)));
    assert_eq!(entry(Ino::ROOT, "there"), Some((there, FileKind::Directory)));
    assert_eq!(entry(dir, "file"), Some((file, FileKind::Regular)));
    assert_eq!(entry(Ino::ROOT, "dir"), Some((dir, FileKind::Directory)));
    assert_eq!(entry(Ino::ROOT, "none"), None);
    assert_eq!(run(&mfs, |txn| txn.names().lookup(Ino::ROOT, &name("there"))), Some(there));
    assert_eq!(run(&mfs, |txn| txn.names().attr(there)), None);
    assert_eq!(run(&mfs, |txn| txn.names().locate(there)), None);
    assert!(!run(&mfs, |txn| txn.names().is_empty(dir)));
    let kept = [("file".to_owned(), file, FileKind::Regular, false)];
    assert_eq!(list(&mfs, dir), kept);
    assert_eq!(run(&mfs, |txn| txn.names().subdirectories(Ino::ROOT, None, 9)).len(), 1);

    run(&mfs, |txn| txn.names().rename(Ino::ROOT, &name("there"), Ino::ROOT, &name("then")));
    run(&mfs, |txn| txn.names().rename(Ino::ROOT, &name("then"), dir, &name("below")));
    assert_eq!(entry(Ino::ROOT, "then"), None);
    assert_eq!(entry(dir, "below"), Some((there, FileKind::Directory)));
    let local = run(&mfs, |txn| new_dir(txn, Ino::ROOT, "local"));
    run(&mfs, |txn| {
        txn.names().exchange((dir, &name("below")), (Ino::ROOT, &name("local")))?;
        txn.names().exchange((dir, &name("file")), (dir, &name("below")))
    });
    assert_eq!(entry(Ino::ROOT, "local"), Some((there, FileKind::Directory)));
    assert_eq!(entry(dir, "file"), Some((local, FileKind::Directory)));
    assert_eq!(run(&mfs, |txn| txn.names().parent(local)), Some(dir));
    assert_eq!(run(&mfs, |txn| txn.names().subdirectories(dir, None, 9)).len(), 1);

    assert_eq!(run(&mfs, |txn| txn.names().remove_name(Ino::ROOT, &name("local"))), there);
    assert_eq!(run(&mfs, |txn| txn.names().remove_name(dir, &name("below"))), file);
    assert_eq!(list(&mfs, Ino::ROOT), [("dir".to_owned(), dir, FileKind::Directory, true)]);
    assert_eq!(run(&mfs, |txn| txn.names().inode_counts()).used, 3);
}

#[test]
fn link_to_another_shard_is_refused_where_it_cannot_be() {
    let mfs = shards();
    let dir = run(&mfs, |txn| new_dir(txn, Ino::ROOT, "dir"));
    let link = |mfs: &Mfs, text: &str, ino| {
        let (text, kind) = (name(text), FileKind::Directory);
        fault(mfs, |txn| txn.names().link_outside(Ino::ROOT, &text, ino, kind))
    };
    assert_eq!(link(&mfs, "dir", foreign(1)), Fault::Exists);
    for ino in [dir, Ino(77 << 24), Ino::NONE, root_dir(OTHER), orphan_dir(OTHER)] {
        assert_eq!(link(&mfs, "new", ino), Fault::Invalid, "{ino}");
    }
    assert_eq!(link(&formatted(), "new", foreign(1)), Fault::Invalid, "without the feature");
}

#[test]
fn guest_has_its_parent_and_content_and_is_no_orphan() {
    let mfs = shards();
    let parent = foreign(9);
    let dir = guest(&mfs, parent, FileKind::Directory);
    assert_eq!(run(&mfs, |txn| txn.names().attr(dir)).map(|attr| attr.nlink), Some(2));
    assert_eq!(run(&mfs, |txn| txn.names().outside(dir)), Some(Outside::Parent(parent)));
    assert_eq!(run(&mfs, |txn| txn.names().parent(dir)), Some(parent));
    assert!(!is_orphan(&mfs, dir));
    let below = run(&mfs, |txn| {
        let below = new_dir(txn, dir, "below")?;
        links(txn, dir, 1)?;
        Ok(below)
    });
    assert_eq!(list(&mfs, dir), [("below".to_owned(), below, FileKind::Directory, true)]);
    let within = |at, above| run(&mfs, |txn| txn.names().is_within(at, above));
    assert_eq!(within(below, dir), Within::Yes);
    assert_eq!(within(below, Ino::ROOT), Within::Leaves(parent));
    assert_eq!(within(below, parent), Within::Yes);
    assert_eq!(within(foreign(1), dir), Within::Leaves(foreign(1)));
    assert_eq!(run(&mfs, |txn| txn.names().path(below)), None);
    let upward = |ino| run(&mfs, |txn| txn.names().upward(ino));
    assert_eq!(upward(below), Some((b"/below".to_vec(), Top::Guest { dir, parent })));
    assert_eq!(upward(dir), Some((Vec::new(), Top::Guest { dir, parent })));
    assert_eq!((upward(Ino::ROOT), upward(foreign(1))), (Some((Vec::new(), Top::Root)), None));
    let here = now(mfs.names_here(&BTreeSet::from([below, dir]))).unwrap();
    assert_eq!(here.names, [(dir, name("below"), below)]);
    assert_eq!(now(mfs.name_in(dir, below)).unwrap(), Some(name("below")));
    assert_eq!(now(mfs.name_in(dir, dir)).unwrap(), None);
    let fifo = guest(&mfs, Ino::NONE, FileKind::Fifo);
    assert_eq!(run(&mfs, |txn| txn.names().outside(fifo)), Some(Outside::Names(1)));
    assert_eq!(run(&mfs, |txn| txn.names().attr(fifo)).map(|attr| attr.nlink), Some(1));
    let all = [(dir, Outside::Parent(parent)), (fifo, Outside::Names(1))];
    let guests = |after, max| run(&mfs, |txn| txn.names().guests(after, max));
    assert_eq!(guests(Ino::NONE, 9), all);
    assert_eq!((guests(Ino::NONE, 1), guests(dir, 9)), (all[..1].to_vec(), all[1..].to_vec()));
    assert_eq!((guests(fifo, 9), guests(Ino(u64::MAX), 9)), (vec![], vec![]));
}

#[test]
fn replayed_guest_has_its_old_number() {
    let mfs = shards();
    let dir = guest(&mfs, foreign(1), FileKind::Directory);
    let again = shards();
    let new = new_inode(FileKind::Directory);
    let made = run(&again, |txn| txn.names().create_guest(foreign(1), &new, Some(dir)));
    assert_eq!(made, dir);
    let twice = fault(&again, |txn| txn.names().create_guest(foreign(1), &new, Some(dir)));
    assert_eq!(twice, Fault::Stale);
}

#[test]
fn guest_without_links_is_an_orphan_and_nothing_of_it_stays() {
    let mfs = shards();
    let dir = guest(&mfs, foreign(1), FileKind::Directory);
    run(&mfs, |txn| new_dir(txn, dir, "below"));
    let below = run(&mfs, |txn| {
        let below = txn.names().remove_name(dir, &name("below"))?;
        set_nlink(txn, below, 0)?;
        Ok(below)
    });
    let file = guest(&mfs, Ino::NONE, FileKind::Regular);
    run(&mfs, |txn| {
        txn.names().set_outside(dir, None)?;
        set_nlink(txn, dir, 0)?;
        set_nlink(txn, file, 0)
    });
    for ino in [dir, file] {
        assert!(is_orphan(&mfs, ino));
        assert_eq!(run(&mfs, |txn| txn.names().outside(ino)), None);
    }
    assert_eq!(run(&mfs, |txn| txn.names().parent(dir)), None);
    // Another shard gives an orphan a name, and then no more of it is heard.
    run(&mfs, |txn| txn.names().set_outside(file, Some(Outside::Names(1))));
    for ino in [dir, below, file] {
        while !run(&mfs, |txn| txn.names().free_inode_step(ino, 1)) {}
        assert_eq!(run(&mfs, |txn| txn.names().attr(ino)), None);
    }
    assert_eq!(run(&mfs, |txn| txn.names().guests(Ino::NONE, 9)), []);
    assert_eq!(run(&mfs, |txn| txn.root(INODES)), 2);
}

#[test]
fn directory_goes_away_and_comes_home_with_its_content() {
    let mfs = shards();
    let dir = run(&mfs, |txn| new_dir(txn, Ino::ROOT, "dir"));
    let below = run(&mfs, |txn| new_dir(txn, dir, "below"));
    let start = run(&mfs, |txn| {
        let slot = txn.names().locate_live(dir)?.1;
        txn.names().content_start(&slot)
    });
    let parent = foreign(4);
    run(&mfs, |txn| {
        assert_eq!(txn.names().remove_name(Ino::ROOT, &name("dir"))?, dir);
        txn.names().set_outside(dir, Some(Outside::Parent(parent)))
    });
    assert_eq!(run(&mfs, |txn| txn.names().parent(dir)), Some(parent));
    assert_eq!(run(&mfs, |txn| txn.names().lookup(dir, &name("below"))), Some(below));
    assert_eq!(run(&mfs, |txn| txn.names().subdirectories(Ino::ROOT, None, 9)), []);
    run(&mfs, |txn| txn.names().set_outside(dir, Some(Outside::Parent(foreign(5)))));
    assert_eq!(run(&mfs, |txn| txn.names().parent(dir)), Some(foreign(5)));

    run(&mfs, |txn| {
        txn.names().bring_home(Ino::ROOT, &name("again"), dir)?;
        txn.names().set_outside(dir, None)
    });
    assert_eq!(run(&mfs, |txn| txn.names().parent(dir)), Some(Ino::ROOT));
    assert_eq!(run(&mfs, |txn| txn.names().guests(Ino::NONE, 9)), []);
    assert_eq!(run(&mfs, |txn| txn.names().path(below)), Some(b"/again/below".to_vec()));
    let indexed = run(&mfs, |txn| txn.names().subdirectories(Ino::ROOT, None, 9));
    assert!(start.is_some());
    assert_eq!((indexed[0].ino, indexed[0].start), (dir, start));
}

#[test]
fn inode_comes_home_only_from_the_orphan_directory() {
    let mfs = shards();
    let dir = run(&mfs, |txn| new_dir(txn, Ino::ROOT, "dir"));
    let gone = guest(&mfs, foreign(1), FileKind::Directory);
    run(&mfs, |txn| set_nlink(txn, gone, 0));
    let file = guest(&mfs, Ino::NONE, FileKind::Symlink);
    let home = |ino, text: &str| {
        let text = name(text);
        fault(&mfs, |txn| txn.names().bring_home(Ino::ROOT, &text, ino))
    };
    assert_eq!((home(dir, "new"), home(Ino::ROOT, "new")), (Fault::Invalid, Fault::Invalid));
    assert_eq!((home(gone, "new"), home(foreign(1), "new")), (Fault::Stale, Fault::Stale));
    assert_eq!(home(file, "dir"), Fault::Exists);
    run(&mfs, |txn| txn.names().bring_home(dir, &name("file"), file));
    assert_eq!(run(&mfs, |txn| txn.names().path(file)), Some(b"/dir/file".to_vec()));
}

#[test]
fn file_may_have_names_on_both_sides() {
    let mfs = shards();
    let file = run(&mfs, |txn| {
        let new = new_inode(FileKind::Regular);
        let file = txn.names().create(Ino::ROOT, &name("here"), &new, None)?;
        links(txn, file, 2)?;
        txn.names().set_outside(file, Some(Outside::Names(2)))?;
        Ok(file)
    });
    assert_eq!(run(&mfs, |txn| txn.names().outside(file)), Some(Outside::Names(2)));
    run(&mfs, |txn| {
        txn.names().remove_name(Ino::ROOT, &name("here"))?;
        links(txn, file, -1)
    });
    assert_eq!(run(&mfs, |txn| txn.names().path(file)), None);
    run(&mfs, |txn| {
        txn.names().link(Ino::ROOT, &name("back"), file)?;
        links(txn, file, -1)?;
        txn.names().set_outside(file, Some(Outside::Names(0)))
    });
    assert_eq!(run(&mfs, |txn| txn.names().outside(file)), None);
    assert_eq!(run(&mfs, |txn| txn.names().path(file)), Some(b"/back".to_vec()));
    assert_eq!(run(&mfs, |txn| txn.names().free_with_name(Ino::ROOT, &name("back"))), Some(file));
}

#[test]
fn outside_is_refused_where_it_cannot_be() {
    let mfs = shards();
    let dir = run(&mfs, |txn| new_dir(txn, Ino::ROOT, "dir"));
    let (away, file) = (foreign(1), guest(&mfs, Ino::NONE, FileKind::Fifo));
    let guest = guest(&mfs, away, FileKind::Directory);
    let set = |ino, outside| fault(&mfs, |txn| txn.names().set_outside(ino, Some(outside)));
    // It has a name here; the wrong kind; a parent that is of this shard, no directory, or none.
    assert_eq!(set(dir, Outside::Parent(away)), Fault::Invalid);
    assert_eq!(set(file, Outside::Parent(away)), Fault::Invalid);
    assert_eq!(set(guest, Outside::Names(1)), Fault::Invalid);
    for parent in [dir, Ino::NONE, orphan_dir(OTHER)] {
        assert_eq!(set(guest, Outside::Parent(parent)), Fault::Invalid, "{parent}");
        let new = new_inode(FileKind::Directory);
        let made = fault(&mfs, |txn| txn.names().create_guest(parent, &new, None));
        assert_eq!(made, Fault::Invalid, "{parent}");
    }
    assert_eq!(set(Ino::ROOT, Outside::Parent(away)), Fault::Invalid);
    assert_eq!(set(away, Outside::Names(1)), Fault::Stale);
    let mfs = formatted();
    let new = new_inode(FileKind::Fifo);
    let made = fault(&mfs, |txn| txn.names().create_guest(Ino::NONE, &new, None));
    assert_eq!(made, Fault::Invalid, "without the feature");
}

#[test]
fn walk_for_paths_stays_on_its_shard() {
    let mfs = shards();
    let guest = guest(&mfs, foreign(1), FileKind::Directory);
    let (below, file) = run(&mfs, |txn| {
        txn.names().link_outside(Ino::ROOT, &name("there"), foreign(2), FileKind::Directory)?;
        let below = new_dir(txn, guest, "below")?;
        let file = new_inode(FileKind::Fifo);
        Ok((below, txn.names().create(Ino::ROOT, &name("zz"), &file, None)?))
    });
    let sought = BTreeSet::from([below, file, foreign(2)]);
    let all = now(mfs.all_paths(&sought)).unwrap();
    assert_eq!((all.unread.len(), all.found.len()), (0, 2));
    assert_eq!(all.found[&file].paths, [b"/zz".to_vec()]);
    assert_eq!((all.found[&below].paths.len(), all.found[&below].missing), (0, 1));
}

#[test]
fn senseless_entry_is_damage() {
    let mfs = shards();
    let file = guest(&mfs, Ino::NONE, FileKind::Fifo);
    run(&mfs, |txn| OUTSIDE.insert(txn, &file.0.to_be_bytes(), &[0; 16]));
    let one = now(mfs.run(Cost::READ, |txn| txn.names().outside(file)));
    assert!(matches!(one, Err(StoreError::Corrupt { .. })));
    let all = now(mfs.run(Cost::READ, |txn| txn.names().guests(Ino::NONE, 9)));
    assert!(matches!(all, Err(StoreError::Corrupt { .. })));
}
