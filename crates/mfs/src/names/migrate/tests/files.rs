//! Files that follow their directory.

use types::{ClientId, FileBlock, ObjectId, PagBlock, Segment, SegmentState};

use super::*;
use crate::format::object::ObjectRecord;
use crate::format::space::PagUse;
use crate::names::FileArrival;

const CLIENT: ClientId = ClientId(5);
/// Blocks of the file with segments.
const MAPPED: u64 = 12;

/// Both sides of a move of a file; what was left is freed after it.
async fn move_file(at: (Ino, &str), ino: Ino, from: &Mfs, to: &Mfs) {
    move_and_leave(at, ino, from, to).await;
    while !run(from, |txn| txn.names().free_inode_step(ino, 9)).await {}
}

/// Both sides of a move of a file; what was left stays.
async fn move_and_leave((dir, text): (Ino, &str), ino: Ino, from: &Mfs, to: &Mfs) {
    let (here, there) = (from.superblock().shard, to.superblock().shard);
    let (it, zones) = run(from, |txn| txn.names().file_departure(ino, there)).await;
    run(from, |txn| txn.names().leave_file(&it, there)).await;
    run(to, |txn| {
        zones.iter().try_for_each(|zone| txn.space().enter_lender(zone))?;
        txn.names().arrive_file((dir, &name(text)), here, &it)
    })
    .await;
}

#[test]
fn what_is_left_of_a_file_is_sound_until_it_is_freed() {
    with_two(async |zero, three| {
        let (dir, files) = make_files(&zero).await;
        move_directory(dir, &zero, &three).await;
        let at = |text: &'static str| (dir, text);
        for &(text, ino) in &files {
            move_and_leave(at(text), ino, &zero, &three).await;
        }
        sound(&zero).await;
        for &(_, ino) in &files {
            while !run(&zero, |txn| txn.names().free_inode_step(ino, 9)).await {}
        }
        // Where it goes from has no note of its home then.
        move_directory(dir, &three, &zero).await;
        for &(text, ino) in &files {
            move_and_leave(at(text), ino, &three, &zero).await;
        }
        sound(&three).await;
        for &(_, ino) in &files {
            while !run(&three, |txn| txn.names().free_inode_step(ino, 9)).await {}
        }
        both_are_sound(&zero, &three).await;
    });
}

/// A directory with a file of segments, one of content in its block 0 and one block beyond, a long
/// symlink, a fifo, and an empty file. All of them with what they are called.
async fn make_files(mfs: &Mfs) -> (Ino, Vec<(&'static str, Ino)>) {
    run(mfs, |txn| {
        let dir = new_dir(txn, Ino::ROOT, "dir")?;
        links(txn, Ino::ROOT, 1)?;
        let create = |txn: &mut Txn<'_>, text: &str, kind| {
            let client = CLIENT;
            let new = crate::NewInode { client, ..new_inode(kind) };
            txn.names().create(dir, &name(text), &new, None)
        };
        let mapped = create(txn, "mapped", FileKind::Regular)?;
        let runs = txn.space().grant(CLIENT, None, 2 * MAPPED)?;
        let (pag, at, len) = runs[0];
        assert!(len >= 2 * MAPPED, "one run");
        let written = |file, addr, len| Segment {
            file: FileBlock(file),
            len,
            pag,
            addr: PagBlock(at.0 + addr),
            state: SegmentState::Written,
        };
        // Each second block, so that none continues another one.
        for nth in 0..MAPPED {
            txn.layouts().map(mapped, CLIENT, written(2 * nth, 2 * nth, 1))?;
        }
        let small = create(txn, "small", FileKind::Regular)?;
        txn.layouts().set_content(small, b"content")?;
        txn.layouts().map(small, CLIENT, written(3, 1, 1))?;
        let symlink = crate::NewInode {
            symlink: Some(&[b't'; 900]),
            size: 900,
            ..new_inode(FileKind::Symlink)
        };
        let symlink = txn.names().create(dir, &name("symlink"), &symlink, None)?;
        let fifo = create(txn, "fifo", FileKind::Fifo)?;
        let empty = create(txn, "empty", FileKind::Regular)?;
        for ino in [mapped, symlink] {
            txn.names().set_xattr(ino, b"user.a", &[7; 300])?;
        }
        for (pag, at, len) in txn.space().pool(CLIENT)? {
            txn.space().pool_return(CLIENT, pag, at, len)?;
        }
        let all = [
            ("mapped", mapped),
            ("small", small),
            ("symlink", symlink),
            ("fifo", fifo),
            ("empty", empty),
        ];
        Ok((dir, all.to_vec()))
    })
    .await
}

/// All that there is of a file.
async fn whole(mfs: &Mfs, ino: Ino) -> (Attr, Vec<Segment>, Vec<u8>, Option<Vec<u8>>) {
    run(mfs, |txn| {
        let attr = txn.names().attr(ino)?.unwrap();
        let xattr = txn.names().xattr(ino, b"user.a")?;
        Ok(match attr.kind {
            FileKind::Regular => {
                let segments = txn.layouts().layout(ino, FileBlock(0), 99)?;
                (attr, segments, txn.layouts().content(ino)?, xattr)
            }
            FileKind::Symlink => (attr, Vec::new(), txn.names().symlink(ino)?, xattr),
            _ => (attr, Vec::new(), Vec::new(), xattr),
        })
    })
    .await
}

#[test]
fn files_follow_their_directory_with_content_and_blocks_and_come_back() {
    with_two(async |zero, three| {
        let (dir, files) = make_files(&zero).await;
        let mut before = Vec::new();
        for &(_, ino) in &files {
            before.push(whole(&zero, ino).await);
        }
        let (names, free) = (list(&zero, dir).await, run(&zero, |txn| txn.space().pags()).await);
        move_directory(dir, &zero, &three).await;
        for (&(text, ino), before) in files.iter().zip(&before) {
            move_file((dir, text), ino, &zero, &three).await;
            both_are_sound(&zero, &three).await;
            assert_eq!(whole(&three, ino).await, *before, "{text}");
            assert_eq!((zero.home(ino), three.home(ino)), (THERE, THERE));
            assert_eq!(run(&zero, |txn| txn.names().locate(ino)).await, None);
            assert_eq!(run(&three, |txn| txn.names().outside(ino)).await, None);
        }
        assert_eq!(list(&three, dir).await, names);
        assert!(run(&zero, |txn| txn.names().guests(Ino::NONE, 9)).await.is_empty());
        // A block that a file gives up there becomes free there.
        run(&three, |txn| txn.layouts().unmap(files[1].1, FileBlock(3), FileBlock(4))).await;
        both_are_sound(&zero, &three).await;
        move_directory(dir, &three, &zero).await;
        for &(text, ino) in &files {
            move_file((dir, text), ino, &three, &zero).await;
            both_are_sound(&zero, &three).await;
        }
        assert_eq!(whole(&zero, files[0].1).await, before[0]);
        assert_eq!(list(&zero, dir).await, names);
        assert_eq!(
            run(&zero, |txn| txn.space().pags()).await,
            free,
            "the free blocks are the same"
        );
        let left = run(&zero, |txn| txn.space().lent()).await;
        assert_eq!(left.iter().map(|(.., run)| run.len).sum::<u64>(), 1, "{left:?}");
        assert_eq!((zero.moved_inodes(), three.moved_inodes()), (0, 0));
    });
}

#[test]
fn file_that_cannot_follow_is_refused_and_nothing_changes() {
    with_two(async |zero, three| {
        let (dir, files) = make_files(&zero).await;
        let [mapped, small] = [files[0].1, files[1].1];
        let departure = |ino, to| fault_of(&zero, ino, to);
        assert_eq!(departure(mapped, THERE).await, Fault::TooManyLinks, "its name is here");
        assert_eq!(departure(dir, THERE).await, Fault::IsDirectory);
        assert_eq!(departure(Ino(999), THERE).await, Fault::Stale);
        run(&zero, |txn| txn.names().link(Ino::ROOT, &name("second"), small)).await;
        run(&zero, |txn| {
            let attr = txn.names().attr(small)?.unwrap();
            txn.names().set_attr(&Attr { nlink: 2, ..attr })
        })
        .await;
        move_directory(dir, &zero, &three).await;
        assert_eq!(departure(small, THERE).await, Fault::TooManyLinks, "it has two");
        run(&zero, |txn| txn.space().freeze(CLIENT, mapped)).await;
        assert_eq!(departure(mapped, THERE).await, Fault::WouldBlock);
        run(&zero, |txn| txn.space().unfreeze(CLIENT, mapped)).await;

        for (state, then) in [(PagUse::Lost, Some(Fault::CrossDevice)), (PagUse::InService, None)] {
            run(&zero, |txn| txn.space().set_pag_use(PagId(0), state)).await;
            if let Some(fault) = then {
                assert_eq!(departure(mapped, THERE).await, fault);
            }
        }
        let (it, zones) = run(&zero, |txn| txn.names().file_departure(mapped, THERE)).await;
        run(&three, |txn| zones.iter().try_for_each(|zone| txn.space().enter_lender(zone))).await;
        // The zone is lost after the other shard has taken the file: it leaves nevertheless.
        let lost = fault(&zero, |txn| {
            txn.space().set_pag_use(PagId(0), PagUse::Lost)?;
            txn.names().leave_file(&it, THERE)?;
            Err::<(), _>(Fault::Interrupted.into())
        });
        assert_eq!(lost.await, Fault::Interrupted, "only the test ends it");
        let other = FileArrival { content: b"else".to_vec(), ..it.clone() };
        let refused = fault(&zero, |txn| txn.names().leave_file(&other, THERE)).await;
        assert_eq!(refused, Fault::Busy);
        assert_eq!(
            fault(&zero, |txn| txn.names().leave_file(&it, ShardId(0))).await,
            Fault::Invalid
        );
        let arrive = |text: &'static str, from, it: FileArrival| {
            fault_of_arrival(&three, (dir, text), from, it)
        };
        assert_eq!(arrive("nothing", ShardId(0), it.clone()).await, Fault::NotFound);
        assert_eq!(arrive("small", ShardId(0), it.clone()).await, Fault::Stale);
        assert_eq!(arrive("mapped", THERE, it.clone()).await, Fault::Invalid);
        let attr = Attr { nlink: 2, ..it.attr };
        assert_eq!(
            arrive("mapped", ShardId(0), FileArrival { attr, ..it.clone() }).await,
            Fault::Invalid
        );
        let mut unknown = it.clone();
        unknown.segments[0].pag = PagId(44);
        assert_eq!(arrive("mapped", ShardId(0), unknown).await, Fault::Invalid);
        both_are_sound(&zero, &three).await;
    });
}

/// The targets of object files.
const TARGETS: [PagId; 2] = [PagId(20), PagId(21)];

/// A directory with a file in an object of shard 0, which has a long name and an attribute. Both
/// shards know its targets.
async fn make_object_file(zero: &Mfs, three: &Mfs, text: &str) -> (Ino, Ino, ObjectRecord) {
    for mfs in [zero, three] {
        mfs.add_object_files();
        run(mfs, |txn| {
            TARGETS
                .iter()
                .try_for_each(|&id| txn.space().add_target(id, Uuid([id.0 as u8; 16]), 900))
        })
        .await;
        run(mfs, |txn| txn.space().take_objects()).await;
        mfs.add_followed_objects().await.unwrap();
    }
    run(zero, |txn| {
        let dir = new_dir(txn, Ino::ROOT, "dir")?;
        links(txn, Ino::ROOT, 1)?;
        let file = crate::NewInode { size: 9999, ..new_inode(FileKind::Regular) };
        let ino = txn.names().create(dir, &name(text), &file, None)?;
        let object = ObjectId(txn.space().take_objects()?.start);
        let record = ObjectRecord { object, part: 16, targets: TARGETS.to_vec() };
        txn.layouts().set_object(ino, &record)?;
        txn.names().set_xattr(ino, b"user.a", &[7; 200])?;
        Ok((dir, ino, record))
    })
    .await
}

async fn doomed(mfs: &Mfs) -> Vec<ObjectId> {
    run(mfs, |txn| {
        let [one, other] = TARGETS.map(|id| txn.space().doomed(id, 9));
        let one = one?;
        assert_eq!(one, other?);
        Ok(one)
    })
    .await
}

#[test]
fn file_follows_with_its_object_and_is_destroyed_where_it_is_removed() {
    with_two(async |zero, three| {
        let text = "o".repeat(255);
        let (dir, ino, record) = make_object_file(&zero, &three, &text).await;
        let before = whole(&zero, ino).await;
        let (mut from, mut to) = (&zero, &three);
        for _ in 0..3 {
            move_directory(dir, from, to).await;
            move_file((dir, &text), ino, from, to).await;
            both_are_sound(&zero, &three).await;
            assert_eq!(whole(to, ino).await, before);
            assert_eq!(run(to, |txn| txn.layouts().object(ino)).await, Some(record.clone()));
            assert_eq!(run(from, |txn| txn.names().locate(ino)).await, None);
            assert_eq!((doomed(&zero).await, doomed(&three).await), (vec![], vec![]));
            (from, to) = (to, from);
        }
        run(&three, |txn| {
            txn.names().remove_name(dir, &name(&text))?;
            txn.names().set_attr(&Attr { nlink: 0, ..before.0 })?;
            txn.names().free_inode_step(ino, 9)
        })
        .await;
        assert_eq!((doomed(&zero).await, doomed(&three).await), (vec![], vec![record.object]));
        both_are_sound(&zero, &three).await;
        for id in TARGETS {
            run(&three, |txn| txn.space().destroyed(id, &[record.object])).await;
        }
        both_are_sound(&zero, &three).await;
    });
}

#[test]
fn file_in_an_object_waits_for_fences_and_goes_where_its_targets_are() {
    with_two(async |zero, three| {
        let (dir, ino, record) = make_object_file(&zero, &three, "file").await;
        move_directory(dir, &zero, &three).await;
        let owed = [TARGETS[1]];
        run(&zero, |txn| txn.space().owe_fences(CLIENT, &owed)).await;
        assert_eq!(fault_of(&zero, ino, THERE).await, Fault::WouldBlock);
        run(&zero, |txn| txn.space().fenced(TARGETS[1], &[CLIENT])).await;
        let (it, zones) = run(&zero, |txn| txn.names().file_departure(ino, THERE)).await;
        assert_eq!((it.object.as_ref(), zones.len()), (Some(&record), 0));
        // One is owed after the other shard has taken the file: it leaves nevertheless.
        let owed = fault(&zero, |txn| {
            txn.space().owe_fences(CLIENT, &owed)?;
            txn.names().leave_file(&it, THERE)?;
            Err::<(), _>(Fault::Interrupted.into())
        });
        assert_eq!(owed.await, Fault::Interrupted, "only the test ends it");
        let arrive = |it: FileArrival| fault_of_arrival(&three, (dir, "file"), ShardId(0), it);
        let far = ObjectRecord { targets: vec![PagId(3)], ..record.clone() };
        assert_eq!(
            arrive(FileArrival { object: Some(far), ..it.clone() }).await,
            Fault::Invalid,
            "a data zone with blocks"
        );
        let content = b"beside".to_vec();
        assert_eq!(arrive(FileArrival { content, ..it }).await, Fault::Invalid);
        both_are_sound(&zero, &three).await;
    });
}

#[test]
fn file_in_an_object_of_another_shard_is_not_in_a_dump_of_one() {
    with_two(async |zero, three| {
        let (dir, ino, record) = make_object_file(&zero, &three, "file").await;
        // Its only name is in the root of the other shard.
        run(&zero, |txn| txn.names().free_with_name(dir, &name("file")).map(drop)).await;
        run(&three, |txn| {
            let root = txn.root_dir();
            let file = new_inode(FileKind::Regular);
            let ino = txn.names().create(root, &name("came"), &file, None)?;
            txn.layouts().set_object(ino, &record)
        })
        .await;
        let sources = [crate::dump::Source::of(&three)];
        let said = crate::dump::dump(&sources, &mut Vec::new()).await.unwrap();
        assert_eq!((said.elsewhere_count, said.inodes), (1, 1), "{ino}: {said:?}");
        let text = format!("which lies in object {}", record.object);
        assert!(said.elsewhere[0].ends_with(&text), "{said:?}");
    });
}

async fn fault_of(mfs: &Mfs, ino: Ino, to: ShardId) -> Fault {
    fault(mfs, |txn| txn.names().file_departure(ino, to)).await
}

async fn fault_of_arrival(mfs: &Mfs, at: (Ino, &str), from: ShardId, it: FileArrival) -> Fault {
    fault(mfs, |txn| txn.names().arrive_file((at.0, &name(at.1)), from, &it)).await
}
