//! Random operations against a model in memory, compared completely after each; and the special
//! cases one by one.

use std::collections::BTreeMap;

use types::{Attr, Fault, FileKind, Ino, Name};

use super::{NewInode, Within};
use crate::handle::Mfs;
use crate::testing::{begin_replays, formatted, formatted_in, new_inode, now, random, run};
use crate::txn::Txn;
use engine::cost::Cost;
use engine::error::{Stop, StoreError};

fn name(text: impl AsRef<[u8]>) -> Name {
    Name::new(text.as_ref()).unwrap()
}

fn fault<T>(mfs: &Mfs, body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> Fault {
    match now(mfs.run(Cost::STEP, body)) {
        Err(StoreError::Fault(fault)) => fault,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("no fault"),
    }
}

fn create(mfs: &Mfs, dir: Ino, text: &str, kind: FileKind) -> Ino {
    run(mfs, |txn| txn.names().create(dir, &name(text), &new_inode(kind), None))
}

fn set_nlink(txn: &mut Txn<'_>, ino: Ino, change: i32) -> Result<u32, Stop> {
    let attr = txn.names().attr(ino)?.ok_or(Stop::Fault(Fault::Stale))?;
    let nlink = attr.nlink.saturating_add_signed(change);
    txn.names().set_attr(&Attr { nlink, version: attr.version + 1, ..attr })?;
    Ok(nlink)
}

/// Removes a name as the server does: the link, and the inode with its last name, either at once or
/// through the orphan directory.
fn unlink(txn: &mut Txn<'_>, dir: Ino, text: &Name) -> Result<(), Stop> {
    let at_once = text.as_bytes().iter().map(|&byte| u32::from(byte)).sum::<u32>() % 2 == 1;
    if at_once && txn.names().free_with_name(dir, text)?.is_some() {
        return Ok(());
    }
    let ino = txn.names().remove_name(dir, text)?;
    let kind = txn.names().attr(ino)?.ok_or(Stop::Fault(Fault::Stale))?.kind;
    let last = if kind == FileKind::Directory { -2 } else { -1 };
    if set_nlink(txn, ino, last)? == 0 {
        while !txn.names().free_inode_step(ino, 3)? {}
    }
    Ok(())
}

fn list(mfs: &Mfs, dir: Ino, batch: usize) -> Vec<(Vec<u8>, Ino)> {
    let (mut out, mut after) = (Vec::new(), 0);
    loop {
        let entries = run(mfs, |txn| txn.names().readdir(dir, after, batch));
        let done = entries.len() < batch;
        after = entries.last().map_or(after, |entry| entry.cookie);
        for entry in entries {
            let attr = entry.attr.expect("all blocks are in memory");
            assert_eq!((attr.ino, attr.kind), (entry.ino, entry.kind));
            out.push((entry.name.as_bytes().to_vec(), entry.ino));
        }
        if done {
            return out;
        }
    }
}

/// The expected namespace.
#[derive(Default)]
struct Model {
    dirs: BTreeMap<Ino, BTreeMap<Vec<u8>, Ino>>,
    links: BTreeMap<Ino, u32>,
    targets: BTreeMap<Ino, Vec<u8>>,
    xattrs: BTreeMap<Ino, BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl Model {
    fn check(&self, mfs: &Mfs, batch: usize) {
        for (&dir, entries) in &self.dirs {
            let mut listed = list(mfs, dir, batch);
            listed.sort();
            let wanted: Vec<_> = entries.iter().map(|(n, &i)| (n.clone(), i)).collect();
            assert_eq!(listed, wanted, "directory {dir}");
            assert_eq!(run(mfs, |txn| txn.names().is_empty(dir)), entries.is_empty());
            for (text, &ino) in entries {
                assert_eq!(run(mfs, |txn| txn.names().lookup(dir, &name(text))), Some(ino));
                if self.dirs.contains_key(&ino) {
                    assert_eq!(run(mfs, |txn| txn.names().parent(ino)), Some(dir));
                }
            }
        }
        for (&ino, &links) in &self.links {
            let attr = run(mfs, |txn| txn.names().attr(ino)).expect("an inode with links");
            assert_eq!((attr.ino, attr.nlink), (ino, links));
        }
        for (&ino, target) in &self.targets {
            assert_eq!(&run(mfs, |txn| txn.names().symlink(ino)), target);
        }
        for (&ino, xattrs) in &self.xattrs {
            let names: Vec<_> = xattrs.iter().map(|(n, v)| (n.clone(), v.len() as u32)).collect();
            assert_eq!(run(mfs, |txn| txn.names().xattrs(ino)), names);
            for (key, value) in xattrs {
                assert_eq!(run(mfs, |txn| txn.names().xattr(ino, key)).as_ref(), Some(value));
            }
        }
        assert_eq!(run(mfs, |txn| txn.names().orphans(Ino(0), 100)), []);
        assert_eq!(run(mfs, |txn| txn.names().inode_counts()).used, self.links.len() as u64);
    }

    fn inode_freed(&mut self, ino: Ino) {
        if self.dirs.remove(&ino).is_none() {
            let links = self.links.get_mut(&ino).unwrap();
            *links -= 1;
            if *links > 0 {
                return;
            }
        }
        self.links.remove(&ino);
        self.targets.remove(&ino);
        self.xattrs.remove(&ino);
    }
}

fn random_name(seed: &mut u64) -> Name {
    let len = [1, 2, 3, 20, 100, 255][random(seed, 6) as usize];
    let byte = b'a' + random(seed, 6) as u8;
    name(vec![byte; len])
}

fn pick<T: Copy>(seed: &mut u64, list: &[T]) -> T {
    list[random(seed, list.len() as u64) as usize]
}

fn step(mfs: &Mfs, model: &mut Model, seed: &mut u64) {
    let dirs: Vec<Ino> = model.dirs.keys().copied().collect();
    let inodes: Vec<Ino> = model.links.keys().copied().collect();
    let (dir, other) = (pick(seed, &dirs), pick(seed, &dirs));
    let (text, second) = (random_name(seed), random_name(seed));
    let old = model.dirs[&dir].get(text.as_bytes()).copied();
    match random(seed, 12) {
        0..=3 => {
            let kind = [FileKind::Regular, FileKind::Directory, FileKind::Symlink, FileKind::Fifo]
                [random(seed, 4) as usize];
            let target = vec![b't'; 1 + random(seed, 300) as usize];
            let symlink = (kind == FileKind::Symlink).then_some(&target[..]);
            let what = NewInode { symlink, ..new_inode(kind) };
            let done = now(mfs.run(Cost::STEP, |txn| txn.names().create(dir, &text, &what, None)));
            match (old, done) {
                (Some(_), Err(StoreError::Fault(Fault::Exists))) => {}
                (None, Ok((ino, _))) => {
                    model.dirs.get_mut(&dir).unwrap().insert(text.as_bytes().to_vec(), ino);
                    assert_eq!(
                        model.links.insert(ino, 1),
                        None,
                        "an inode number was issued twice"
                    );
                    if kind == FileKind::Directory {
                        model.links.insert(ino, 2);
                        model.dirs.insert(ino, BTreeMap::new());
                    }
                    if kind == FileKind::Symlink {
                        model.targets.insert(ino, target);
                    }
                }
                (old, done) => panic!("{old:?} {done:?}"),
            }
        }
        4..=5 => {
            let Some(ino) = old else { return };
            if model.dirs.get(&ino).is_some_and(|entries| !entries.is_empty()) {
                return;
            }
            run(mfs, |txn| unlink(txn, dir, &text));
            model.dirs.get_mut(&dir).unwrap().remove(text.as_bytes());
            model.inode_freed(ino);
        }
        6 => {
            let ino = pick(seed, &inodes);
            if model.dirs.contains_key(&ino) || old.is_some() {
                return;
            }
            run(mfs, |txn| {
                txn.names().link(dir, &text, ino)?;
                set_nlink(txn, ino, 1)
            });
            model.dirs.get_mut(&dir).unwrap().insert(text.as_bytes().to_vec(), ino);
            *model.links.get_mut(&ino).unwrap() += 1;
        }
        7..=8 => {
            let Some(ino) = old else { return };
            if run(mfs, |txn| txn.names().is_within(other, ino)) == Within::Yes {
                return;
            }
            let taken = model.dirs[&other].contains_key(second.as_bytes());
            if taken {
                let failed = fault(mfs, |txn| txn.names().rename(dir, &text, other, &second));
                assert_eq!(failed, Fault::Exists);
                return;
            }
            run(mfs, |txn| txn.names().rename(dir, &text, other, &second));
            model.dirs.get_mut(&dir).unwrap().remove(text.as_bytes());
            model.dirs.get_mut(&other).unwrap().insert(second.as_bytes().to_vec(), ino);
        }
        9 => {
            let Some(ino) = old else { return };
            let Some(&b) = model.dirs[&other].get(second.as_bytes()) else { return };
            let loops = run(mfs, |txn| {
                let mut names = txn.names();
                Ok([names.is_within(other, ino)?, names.is_within(dir, b)?].contains(&Within::Yes))
            });
            if loops {
                return;
            }
            run(mfs, |txn| txn.names().exchange((dir, &text), (other, &second)));
            model.dirs.get_mut(&dir).unwrap().insert(text.as_bytes().to_vec(), b);
            model.dirs.get_mut(&other).unwrap().insert(second.as_bytes().to_vec(), ino);
        }
        10 => {
            let ino = pick(seed, &inodes);
            let key = vec![b'x'; 1 + random(seed, 4) as usize];
            let value = vec![7; [0, 10, 60, 200, 5000][random(seed, 5) as usize]];
            run(mfs, |txn| txn.names().set_xattr(ino, &key, &value));
            model.xattrs.entry(ino).or_default().insert(key, value);
        }
        _ => {
            let ino = pick(seed, &inodes);
            let key = vec![b'x'; 1 + random(seed, 4) as usize];
            let removed = run(mfs, |txn| txn.names().remove_xattr(ino, &key));
            let was = model.xattrs.get_mut(&ino).and_then(|list| list.remove(&key));
            assert_eq!(removed, was.is_some());
        }
    }
}

#[test]
fn namespace_operations_equal_a_model() {
    for start in 1..=4u64 {
        let mfs = formatted();
        let mut seed = start;
        let mut model = Model::default();
        model.dirs.insert(Ino::ROOT, BTreeMap::new());
        model.links.insert(Ino::ROOT, 2);
        let before = run(&mfs, |txn| Ok(txn.meta_space().1));
        for round in 0..1500 {
            step(&mfs, &mut model, &mut seed);
            if round % 50 == 0 {
                model.check(&mfs, 1 + round % 7);
                if round % 100 == 0 {
                    mfs.forget_indexes();
                }
            }
        }
        model.check(&mfs, 4096);
        remove_everything(&mfs, &mut model);
        model.check(&mfs, 10);
        let after = run(&mfs, |txn| Ok(txn.meta_space().1));
        let kept = run(&mfs, |txn| Ok(txn.names().attr(Ino::ROOT)?.unwrap().blocks));
        assert!(before - after <= 2 * kept.next_power_of_two() + 80, "{before} {after} {kept}");
    }
}

fn remove_everything(mfs: &Mfs, model: &mut Model) {
    while model.dirs.values().any(|entries| !entries.is_empty()) {
        let dirs: Vec<Ino> = model.dirs.keys().copied().collect();
        for dir in dirs {
            let Some(entries) = model.dirs.get(&dir).cloned() else { continue };
            for (text, ino) in entries {
                if model.dirs.get(&ino).is_none_or(BTreeMap::is_empty) {
                    run(mfs, |txn| unlink(txn, dir, &name(&text)));
                    model.dirs.get_mut(&dir).unwrap().remove(&text);
                    model.inode_freed(ino);
                }
            }
        }
    }
}

#[test]
fn failed_transaction_leaves_the_name_index_unchanged() {
    let mfs = formatted();
    create(&mfs, Ino::ROOT, "a", FileKind::Regular);
    let failed = fault(&mfs, |txn| {
        txn.names().create(Ino::ROOT, &name("b"), &new_inode(FileKind::Directory), None)?;
        txn.names().remove_name(Ino::ROOT, &name("a"))?;
        assert_eq!(txn.names().lookup(Ino::ROOT, &name("a"))?, None);
        assert!(txn.names().lookup(Ino::ROOT, &name("b"))?.is_some());
        Err::<(), _>(Stop::Fault(Fault::Busy))
    });
    assert_eq!(failed, Fault::Busy);
    assert!(run(&mfs, |txn| txn.names().lookup(Ino::ROOT, &name("a"))).is_some());
    assert_eq!(run(&mfs, |txn| txn.names().lookup(Ino::ROOT, &name("b"))), None);
}

/// SEMANTICS 4.3.
#[test]
fn inode_number_is_never_reissued_while_a_directory_churns() {
    let mfs = formatted();
    let dir = create(&mfs, Ino::ROOT, "dir", FileKind::Directory);
    let mut last = std::collections::BTreeSet::new();
    for _ in 0..20_000 {
        let ino = create(&mfs, dir, "x", FileKind::Regular);
        assert!(last.insert(ino));
        run(&mfs, |txn| unlink(txn, dir, &name("x")));
    }
    let attr = run(&mfs, |txn| txn.names().attr(dir)).unwrap();
    assert!(attr.blocks <= 16, "{} blocks", attr.blocks);
    mfs.forget_indexes();
    assert!(run(&mfs, |txn| txn.names().is_empty(dir)));
    create(&mfs, dir, "y", FileKind::Regular);
    assert_eq!(list(&mfs, dir, 10).len(), 1);
}

/// Cycles of the next test, unless the environment sets another number.
const CYCLES: u64 = 20_000;

#[test]
fn renames_between_directories_leave_both_small_and_lose_no_file() {
    const LIVING: usize = 20;
    let cycles = std::env::var("REDBUD_CYCLES").ok();
    let cycles = cycles.map_or(CYCLES, |text| text.parse().expect("a number of cycles"));
    let mfs = formatted();
    let tmp = create(&mfs, Ino::ROOT, "tmp", FileKind::Directory);
    let out = create(&mfs, Ino::ROOT, "out", FileKind::Directory);
    let blocks = |dir| run(&mfs, |txn| txn.names().attr(dir)).unwrap().blocks;
    let mut living = std::collections::VecDeque::new();
    let mut first = (0, 0);
    for n in 0..cycles {
        let text = name(format!("f{n}"));
        let made = create(&mfs, tmp, "new", FileKind::Regular);
        run(&mfs, |txn| txn.names().rename(tmp, &name("new"), out, &text));
        assert!(
            living.iter().all(|&(ino, _)| ino != made),
            "cycle {n}: an inode number was issued twice"
        );
        living.push_back((made, text));
        if living.len() > LIVING {
            let (_, text) = living.pop_front().unwrap();
            run(&mfs, |txn| unlink(txn, out, &text));
        }
        for (ino, text) in [living.front(), living.back()].into_iter().flatten() {
            let found =
                run(&mfs, |txn| Ok((txn.names().entry_of(*ino)?, txn.names().lookup(out, text)?)));
            assert_eq!(found, (Some((out, text.clone())), Some(*ino)), "cycle {n}");
        }
        if n == 99 {
            first = (blocks(tmp), blocks(out));
        }
    }
    let last = (blocks(tmp), blocks(out));
    assert_eq!(last, first, "blocks of the directories after {cycles} cycles");
    mfs.forget_indexes();
    for (ino, text) in living {
        assert_eq!(run(&mfs, |txn| txn.names().lookup(out, &text)), Some(ino));
    }
    assert!(run(&mfs, |txn| txn.names().is_empty(tmp)));
}

#[test]
fn replayed_create_gets_its_number_and_slot_again() {
    let first = formatted();
    let dir = create(&first, Ino::ROOT, "dir", FileKind::Directory);
    let made: Vec<Ino> =
        (0..40).map(|n| create(&first, dir, &format!("f{n}"), FileKind::Regular)).collect();
    let orphan = run(&first, |txn| txn.names().create_orphan(&new_inode(FileKind::Regular), None));

    let second = formatted();
    let given = |dir, text: String, kind, ino| {
        run(&second, |txn| txn.names().create(dir, &name(&text), &new_inode(kind), Some(ino)))
    };
    assert_eq!(given(Ino::ROOT, "dir".into(), FileKind::Directory, dir), dir);
    for (n, &ino) in made.iter().enumerate().rev() {
        assert_eq!(given(dir, format!("f{n}"), FileKind::Regular, ino), ino);
    }
    let again =
        run(&second, |txn| txn.names().create_orphan(&new_inode(FileKind::Regular), Some(orphan)));
    assert_eq!(again, orphan);
    assert_eq!(list(&second, dir, 7), list(&first, dir, 7));
    let taken = fault(&second, |txn| {
        txn.names().create(dir, &name("other"), &new_inode(FileKind::Regular), Some(made[3]))
    });
    assert_eq!(taken, Fault::Stale);
    let fresh = create(&second, dir, "new", FileKind::Regular);
    assert!(!made.contains(&fresh));
    let other = create(&second, Ino::ROOT, "other", FileKind::Directory);
    create(&second, other, "x", FileKind::Regular);
    assert_eq!(list(&second, other, 7).len(), 1);
}

#[test]
fn only_a_small_file_is_freed_with_its_last_name() {
    let mfs = formatted();
    let client = types::ClientId(1);
    let state = |mfs: &Mfs| {
        run(mfs, |txn| Ok((txn.names().inode_counts()?.used, txn.names().orphans(Ino(0), 9)?)))
    };
    let before = state(&mfs);
    let small = create(&mfs, Ino::ROOT, "small", FileKind::Regular);
    let linked = create(&mfs, Ino::ROOT, "linked", FileKind::Regular);
    let large = create(&mfs, Ino::ROOT, "large", FileKind::Regular);
    let heavy = create(&mfs, Ino::ROOT, "heavy", FileKind::Regular);
    create(&mfs, Ino::ROOT, "dir", FileKind::Directory);
    run(&mfs, |txn| {
        txn.names().link(Ino::ROOT, &name("further"), linked)?;
        set_nlink(txn, linked, 1)?;
        set_nlink(txn, Ino::ROOT, 1)?;
        txn.names().set_xattr(heavy, b"user.a", &[7; 9000])?;
        for (ino, segments) in [(small, 2), (large, 6)] {
            for n in 0..segments {
                let (pag, addr, _) = txn.space().grant(client, None, 1)?[0];
                let file = types::FileBlock(2 * n);
                let state = types::SegmentState::Written;
                txn.layouts().map(
                    ino,
                    client,
                    types::Segment { file, len: 1, pag, addr, state },
                )?;
            }
        }
        Ok(())
    });
    for text in ["linked", "further", "large", "heavy", "dir"] {
        assert_eq!(
            run(&mfs, |txn| txn.names().free_with_name(Ino::ROOT, &name(text))),
            None,
            "{text}"
        );
        assert!(run(&mfs, |txn| txn.names().lookup(Ino::ROOT, &name(text))).is_some(), "{text}");
    }
    assert_eq!(
        fault(&mfs, |txn| txn.names().free_with_name(Ino::ROOT, &name("none"))),
        Fault::NotFound
    );
    let freed = run(&mfs, |txn| txn.names().free_with_name(Ino::ROOT, &name("small")));
    assert_eq!(freed, Some(small));
    assert_eq!(run(&mfs, |txn| txn.names().lookup(Ino::ROOT, &name("small"))), None);
    assert_eq!(run(&mfs, |txn| txn.names().attr(small)), None);
    assert_eq!(run(&mfs, |txn| txn.space().release_freed(9)), 2, "its two blocks, and no others");
    assert_eq!(state(&mfs), (before.0 + 4, before.1));
    // One that was renamed out of its home slot leaves no trace there.
    let moved = create(&mfs, Ino::ROOT, "moved", FileKind::Symlink);
    let dir = run(&mfs, |txn| txn.names().lookup(Ino::ROOT, &name("dir"))).unwrap();
    run(&mfs, |txn| txn.names().rename(Ino::ROOT, &name("moved"), dir, &name("away")));
    assert_eq!(run(&mfs, |txn| txn.names().free_with_name(dir, &name("away"))), Some(moved));
    let report = now(crate::fsck::check(&mfs)).unwrap();
    assert_eq!(report.problems, []);
}

#[test]
fn orphan_lives_until_it_is_freed_and_can_be_linked() {
    let mfs = formatted();
    let ino = run(&mfs, |txn| txn.names().create_orphan(&new_inode(FileKind::Regular), None));
    assert_eq!(run(&mfs, |txn| txn.names().orphans(Ino(0), 9)), [ino]);
    assert_eq!(run(&mfs, |txn| txn.names().entry_of(ino)), None);
    run(&mfs, |txn| {
        txn.names().link(Ino::ROOT, &name("named"), ino)?;
        set_nlink(txn, ino, 1)
    });
    assert_eq!(run(&mfs, |txn| txn.names().orphans(Ino(0), 9)), []);
    assert_eq!(run(&mfs, |txn| txn.names().entry_of(ino)), Some((Ino::ROOT, name("named"))));
    assert_eq!(fault(&mfs, |txn| txn.names().free_inode_step(ino, 9)), Fault::Invalid);
    run(&mfs, |txn| {
        txn.names().remove_name(Ino::ROOT, &name("named"))?;
        set_nlink(txn, ino, -1)
    });
    assert_eq!(run(&mfs, |txn| txn.names().orphans(Ino(0), 9)), [ino]);
    assert_eq!(run(&mfs, |txn| txn.names().orphans(ino, 9)), []);
    assert!(run(&mfs, |txn| txn.names().attr(ino)).is_some());
    assert!(run(&mfs, |txn| txn.names().free_inode_step(ino, 9)));
    assert_eq!(run(&mfs, |txn| txn.names().attr(ino)), None);
    assert_eq!(run(&mfs, |txn| txn.names().orphans(Ino(0), 9)), []);
    assert!(run(&mfs, |txn| txn.names().free_inode_step(ino, 9)), "freeing again finds nothing");
}

#[test]
fn removed_directory_is_empty_and_is_freed_in_steps() {
    let mfs = formatted();
    // Siblings lie together, so that their runs alternate.
    let top = create(&mfs, Ino::ROOT, "top", FileKind::Directory);
    let dir = create(&mfs, top, "dir", FileKind::Directory);
    let other = create(&mfs, top, "other", FileKind::Directory);
    for n in 0..3000 {
        create(&mfs, dir, &format!("{n}"), FileKind::Fifo);
        create(&mfs, other, &format!("{n}"), FileKind::Fifo);
    }
    // While clients replay, an emptied directory keeps its blocks.
    begin_replays(&mfs);
    for n in 0..3000 {
        run(&mfs, |txn| unlink(txn, dir, &name(format!("{n}"))));
    }
    run(&mfs, |txn| txn.names().end_replays());
    let free = run(&mfs, |txn| Ok(txn.meta_space().1));
    run(&mfs, |txn| {
        txn.names().remove_name(top, &name("dir"))?;
        set_nlink(txn, dir, -2)
    });
    assert_eq!(run(&mfs, |txn| txn.names().parent(dir)), None);
    assert_eq!(fault(&mfs, |txn| txn.names().lookup(dir, &name("a"))), Fault::NotFound);
    let refused =
        fault(&mfs, |txn| txn.names().create(dir, &name("a"), &new_inode(FileKind::Fifo), None));
    assert_eq!(refused, Fault::NotFound);
    let mut steps = 0;
    while !run(&mfs, |txn| txn.names().free_inode_step(dir, 2)) {
        steps += 1;
    }
    assert!(steps > 0);
    assert_eq!(run(&mfs, |txn| txn.names().attr(dir)), None);
    assert!(run(&mfs, |txn| Ok(txn.meta_space().1)) >= free + 3000 / 8);
}

/// SEMANTICS 1.7.
#[test]
fn cookies_stay_valid_while_names_come_and_go() {
    let mfs = formatted();
    let dir = create(&mfs, Ino::ROOT, "dir", FileKind::Directory);
    for n in 0..100 {
        create(&mfs, dir, &format!("{n}"), FileKind::Fifo);
    }
    let mut seen = Vec::new();
    let mut after = 0;
    for round in 0.. {
        let batch = run(&mfs, |txn| txn.names().readdir(dir, after, 7));
        let Some(last) = batch.last() else { break };
        after = last.cookie;
        seen.extend(batch.iter().map(|entry| entry.name.clone()));
        let removed = batch[0].name.clone();
        run(&mfs, |txn| unlink(txn, dir, &removed));
        create(&mfs, dir, &format!("new{round}"), FileKind::Fifo);
    }
    for n in 0..100 {
        assert_eq!(seen.iter().filter(|&text| *text == name(format!("{n}"))).count(), 1);
    }
}

#[test]
fn orphan_directory_is_hidden() {
    let mfs = formatted();
    let orphan_dir = crate::format::number::ORPHAN_DIR;
    assert_eq!(run(&mfs, |txn| txn.names().attr(orphan_dir)), None);
    assert_eq!(fault(&mfs, |txn| txn.names().lookup(orphan_dir, &name("a"))), Fault::NotFound);
    assert_eq!(fault(&mfs, |txn| txn.names().readdir(orphan_dir, 0, 9)), Fault::NotFound);
    let what = new_inode(FileKind::Regular);
    assert_eq!(
        fault(&mfs, |txn| txn.names().create(orphan_dir, &name("a"), &what, None)),
        Fault::NotFound
    );
    let file = create(&mfs, Ino::ROOT, "f", FileKind::Regular);
    assert_eq!(fault(&mfs, |txn| txn.names().lookup(file, &name("a"))), Fault::NotDirectory);
    assert_eq!(fault(&mfs, |txn| txn.names().lookup(Ino(999 << 24), &name("a"))), Fault::NotFound);
}

#[test]
fn large_directory_finds_every_name_after_a_dropped_index() {
    let mfs = formatted();
    let dir = create(&mfs, Ino::ROOT, "dir", FileKind::Directory);
    for n in 0..70_000u32 {
        create(&mfs, dir, &format!("{n:x}"), FileKind::Regular);
    }
    mfs.forget_indexes();
    for n in (0..70_000u32).step_by(97) {
        assert!(run(&mfs, |txn| txn.names().lookup(dir, &name(format!("{n:x}")))).is_some());
    }
    assert_eq!(list(&mfs, dir, 4096).len(), 70_000);
}

fn free_blocks(mfs: &Mfs) -> u64 {
    run(mfs, |txn| Ok(txn.meta_space().1))
}

fn remove(mfs: &Mfs, dir: Ino, text: &str) {
    run(mfs, |txn| unlink(txn, dir, &name(text)));
}

/// Creates files with unique names until there is no space; returns how many.
fn fill(mfs: &Mfs, dir: Ino, round: u32) -> u32 {
    for n in 0.. {
        let text = name(format!("{round}-{n}"));
        let made = mfs.run(Cost::SMALL, |txn| {
            txn.names().create(dir, &text, &new_inode(FileKind::Regular), None)
        });
        match now(made) {
            Ok(_) => {}
            Err(StoreError::Fault(Fault::NoSpace)) => return n,
            Err(other) => panic!("{other}"),
        }
    }
    unreachable!()
}

#[test]
fn full_metadata_zone_can_be_emptied_and_filled_again() {
    let mfs = formatted_in(3000);
    let dirs: Vec<Ino> =
        (0..20).map(|n| create(&mfs, Ino::ROOT, &format!("d{n}"), FileKind::Directory)).collect();
    let before = free_blocks(&mfs);
    let mut made = Vec::new();
    for round in 0..6u32 {
        // All in one directory, then most in another, spread over all, and so on.
        let first = dirs[round as usize];
        for (n, &dir) in dirs.iter().enumerate().filter(|_| round % 2 == 1) {
            for file in 0..20 * n as u32 {
                create(&mfs, dir, &format!("{round}-{file}-few"), FileKind::Regular);
            }
        }
        let count = fill(&mfs, first, round);
        made.push(count);
        let mut order: Vec<u32> = (0..count).collect();
        match round % 3 {
            0 => {}
            1 => order.reverse(),
            _ => order.sort_by_key(|n| n.wrapping_mul(0x9e37_79b9)),
        }
        for n in order {
            remove(&mfs, first, &format!("{round}-{n}"));
        }
        for (n, &dir) in dirs.iter().enumerate().filter(|_| round % 2 == 1) {
            for file in 0..20 * n as u32 {
                remove(&mfs, dir, &format!("{round}-{file}-few"));
            }
        }
        let after = free_blocks(&mfs);
        // One block for each directory that had files and for the orphan directory; the tables keep
        // a few.
        assert!(before - after <= 2 * dirs.len() as u64 + 8, "round {round}: {before} {after}");
    }
    // In later rounds the other directories keep a block of 8 slots each.
    let kept = 8 * (dirs.len() as u32 + 8);
    assert!(made[2] + kept >= made[0] && made[4] + kept >= made[0], "{made:?}");
    for n in 0..dirs.len() {
        remove(&mfs, Ino::ROOT, &format!("d{n}"));
    }
    let after = free_blocks(&mfs);
    assert!(after + 8 >= before, "{before} {after}");
}

#[test]
fn reused_directory_blocks_issue_no_number_twice() {
    let mfs = formatted();
    let dir = create(&mfs, Ino::ROOT, "dir", FileKind::Directory);
    let (mut issued, mut seed) = (std::collections::BTreeSet::new(), 7);
    for round in 0..700u32 {
        let count = 1 + random(&mut seed, if round % 50 == 0 { 1000 } else { 120 });
        for n in 0..count {
            assert!(issued.insert(create(&mfs, dir, &format!("{n}"), FileKind::Regular)));
        }
        if round % 7 == 0 {
            mfs.forget_indexes();
        }
        assert_eq!(list(&mfs, dir, 100).len() as u64, count);
        for n in 0..count {
            let n = if round % 2 == 0 { n } else { count - 1 - n };
            remove(&mfs, dir, &format!("{n}"));
        }
        let attr = run(&mfs, |txn| txn.names().attr(dir)).unwrap();
        assert!(attr.blocks <= 2, "{} blocks of an empty directory", attr.blocks);
    }
}

#[test]
fn file_created_and_removed_repeatedly_keeps_its_block() {
    let mfs = formatted();
    let dir = create(&mfs, Ino::ROOT, "dir", FileKind::Directory);
    for n in 0..8 {
        create(&mfs, dir, &format!("{n}"), FileKind::Regular);
    }
    create(&mfs, dir, "x", FileKind::Regular);
    remove(&mfs, dir, "x");
    let free = free_blocks(&mfs);
    for _ in 0..100 {
        create(&mfs, dir, "x", FileKind::Regular);
        assert_eq!(free_blocks(&mfs), free);
        remove(&mfs, dir, "x");
        assert_eq!(free_blocks(&mfs), free);
    }
}

#[test]
fn replay_finds_its_slot_in_given_back_blocks() {
    let mfs = formatted();
    let dir = create(&mfs, Ino::ROOT, "dir", FileKind::Directory);
    for n in 0..200 {
        create(&mfs, dir, &format!("{n}"), FileKind::Regular);
    }
    for n in 0..200 {
        remove(&mfs, dir, &format!("{n}"));
    }
    // Lost: files created in reused blocks, and an emptied unit.
    let first = run(&mfs, |txn| txn.names().attr(dir)).unwrap().blocks;
    let made: Vec<Ino> =
        (0..100).map(|n| create(&mfs, dir, &format!("{n}"), FileKind::Regular)).collect();
    for n in 0..100 {
        remove(&mfs, dir, &format!("{n}"));
    }
    assert_eq!(run(&mfs, |txn| txn.names().attr(dir)).unwrap().blocks, first);
    let second = formatted();
    assert_eq!(create(&second, Ino::ROOT, "dir", FileKind::Directory), dir);
    for n in 0..200 {
        create(&second, dir, &format!("{n}"), FileKind::Regular);
    }
    for n in 0..200 {
        remove(&second, dir, &format!("{n}"));
    }
    begin_replays(&second);
    for (n, &ino) in made.iter().enumerate().rev() {
        let text = name(format!("{n}"));
        let kind = FileKind::Regular;
        assert_eq!(
            run(&second, |txn| txn.names().create(dir, &text, &new_inode(kind), Some(ino))),
            ino
        );
        // Removed at once: no block that another replay names may be freed.
        run(&second, |txn| unlink(txn, dir, &text));
    }
    run(&second, |txn| txn.names().end_replays());
    // Units that a replay emptied keep their blocks for the next names in the directory; when these
    // are removed the blocks are given back.
    let blocks = || run(&second, |txn| txn.names().attr(dir)).unwrap().blocks;
    let left = blocks();
    assert!(left > first, "{left} {first}");
    for n in 0..100 {
        create(&second, dir, &format!("{n}"), FileKind::Regular);
    }
    assert_eq!(blocks(), left);
    for n in 0..100 {
        remove(&second, dir, &format!("{n}"));
    }
    assert_eq!(blocks(), first);
}
