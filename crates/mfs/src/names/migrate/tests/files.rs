//! Files that follow their directory.

use types::{ClientId, FileBlock, PagBlock, Segment, SegmentState};

use super::*;
use crate::format::space::PagUse;
use crate::names::FileArrival;

const CLIENT: ClientId = ClientId(5);
/// Blocks of the file with segments.
const MAPPED: u64 = 12;

/// Both sides of a move of a file; what was left is freed after it.
async fn move_file((dir, text): (Ino, &str), ino: Ino, from: &Mfs, to: &Mfs) {
    let (here, there) = (from.superblock().shard, to.superblock().shard);
    let (it, zones) = run(from, |txn| txn.names().file_departure(ino, there)).await;
    run(from, |txn| txn.names().leave_file(&it, there)).await;
    run(to, |txn| {
        zones.iter().try_for_each(|zone| txn.space().enter_lender(zone))?;
        txn.names().arrive_file((dir, &name(text)), here, &it)
    })
    .await;
    while !run(from, |txn| txn.names().free_inode_step(ino, 9)).await {}
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

async fn fault_of(mfs: &Mfs, ino: Ino, to: ShardId) -> Fault {
    fault(mfs, |txn| txn.names().file_departure(ino, to)).await
}

async fn fault_of_arrival(mfs: &Mfs, at: (Ino, &str), from: ShardId, it: FileArrival) -> Fault {
    fault(mfs, |txn| txn.names().arrive_file((at.0, &name(at.1)), from, &it)).await
}
