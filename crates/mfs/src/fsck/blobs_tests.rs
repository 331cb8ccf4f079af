//! Blobs in the place of others, under right checksums: nobody is served them, nor changes or frees
//! them, and repair gives back to each what is still on the device.

use std::cell::RefCell;
use std::collections::BTreeMap;

use env::sim::{CrashOptions, SimDisk};
use types::limits::{BLOCK, BLOCK_U64, CONTENT_MAX, SYMLINK_MAX};
use types::{ClientId, FileKind, Ino, MetaBlock};

use super::device_tests::{
    Shape, contents, in_world, open, populated_as, run as run_on, run_fsck, run_repair, wipe_log,
};
use super::jobs_tests::checked;
use super::repair::{Repaired, repair_open};
use super::tests::{Outcome, name, numbers, settled};
use super::{FsckOptions, Problem, ProblemKind, Subject};
use crate::dump::{Source, dump};
use crate::format::slot::SlotSize;
use crate::format::slot_size::SlotFeatures;
use crate::handle::Mfs;
use crate::names::{MapLimits, NewInode};
use crate::scrub::{ScrubOptions, Scrubbed};
use crate::testing::{formatted_for_images, new_inode, now, run};
use crate::trees::{BITMAP_LOST, CLIENTS, UNFINISHED};
use crate::txn::Txn;
use engine::clients::CLIENT_INFO_MAX;
use engine::cost::Cost;
use engine::error::{OwnerMismatch, Stop, StoreError};
use engine::format::blob::{BlobKind, BlobOwner, NEXT};
use engine::format::block::{HEADER, put_u64, seal};
use engine::format::features::{Feature, Features};

const FIRST: &[u8] = b"user.first";
const LONG: &[u8] = b"user.long";

/// Two of each that have blobs, whatever the size of slots is.
struct World {
    mfs: Mfs,
    files: [Ino; 2],
    symlinks: [Ino; 2],
    clients: [ClientId; 2],
}

/// Bytes of the `n`-th of two.
fn bytes(len: usize, n: usize) -> Vec<u8> {
    numbers(len + n).split_off(n)
}

fn world(size: SlotSize) -> World {
    let features = Features::NONE.with(Feature::INLINE_DATA).with_slots(size);
    let mfs = formatted_for_images(20_000, features);
    let files = [0, 1].map(|n| {
        run(&mfs, |txn| {
            let new = NewInode { size: CONTENT_MAX as u64, ..new_inode(FileKind::Regular) };
            let ino = txn.names().create(Ino::ROOT, &name(&format!("file{n}")), &new, None)?;
            txn.layouts().set_content(ino, &bytes(CONTENT_MAX, n))?;
            txn.names().set_xattr(ino, FIRST, &bytes(9, n))?;
            txn.names().set_xattr(ino, LONG, &bytes(9000, n))?;
            Ok(ino)
        })
    });
    let symlinks = [0, 1].map(|n| {
        run(&mfs, |txn| {
            let target = vec![b'a' + n as u8; SYMLINK_MAX];
            let new = NewInode { symlink: Some(&target), ..new_inode(FileKind::Symlink) };
            let ino = txn.names().create(Ino::ROOT, &name(&format!("symlink{n}")), &new, None)?;
            txn.names().set_xattr(ino, LONG, &bytes(5000, n))?;
            Ok(ino)
        })
    });
    let clients = [0, 1].map(|n| run(&mfs, |txn| txn.new_client(&bytes(CLIENT_INFO_MAX - n, n))));
    World { mfs, files, symlinks, clients }
}

impl World {
    /// What the `n`-th of two has.
    fn whose(&self, what: BlobKind, n: usize) -> BlobOwner {
        match what {
            BlobKind::Client => BlobOwner::client(self.clients[n]),
            BlobKind::Target => BlobOwner::inode(self.symlinks[n], what),
            _ => BlobOwner::inode(self.files[n], what),
        }
    }

    /// All that is in blobs.
    fn all(&self) -> BTreeMap<BlobOwner, Vec<u8>> {
        let mut out = BTreeMap::new();
        for what in BlobKind::ALL {
            for n in [0, 1] {
                let whose = self.whose(what, n);
                out.insert(whose, run(&self.mfs, |txn| get(txn, whose)));
            }
        }
        for ino in self.symlinks {
            let whose = BlobOwner::inode(ino, BlobKind::Xattrs);
            out.insert(whose, run(&self.mfs, |txn| get(txn, whose)));
        }
        out
    }

    fn check(&self) -> Vec<Problem> {
        self.mfs.forget_indexes();
        checked(&self.mfs).problems
    }

    /// Repairs it, until nothing is found and nothing more is done.
    fn repaired(&self) -> Repaired {
        let repaired = now(repair_open(&self.mfs, FsckOptions::default())).unwrap();
        assert_eq!(repaired.left.problems, [], "{:#?}", repaired.done);
        assert_eq!(self.check(), [], "a second time");
        let again = now(repair_open(&self.mfs, FsckOptions::default())).unwrap();
        assert!(again.done.is_empty(), "{:#?}", again.done);
        repaired
    }
}

/// The bytes of the blob, as whoever asks for what is in it gets them.
fn get(txn: &mut Txn<'_>, whose: BlobOwner) -> Result<Vec<u8>, Stop> {
    let ino = Ino(whose.number());
    match whose.kind() {
        BlobKind::Content => txn.layouts().content(ino),
        BlobKind::Target => txn.names().symlink(ino),
        BlobKind::Xattrs => {
            Ok(format!("{:?} {:?}", txn.names().xattr(ino, FIRST)?, txn.names().xattr(ino, LONG)?)
                .into())
        }
        BlobKind::Client => {
            let all = txn.clients()?;
            Ok(all.into_iter().find(|(client, _)| client.0 == ino.0).expect("a client").1)
        }
    }
}

/// Where a blob begins.
fn first(txn: &mut Txn<'_>, whose: BlobOwner) -> Result<MetaBlock, Stop> {
    if whose.kind() == BlobKind::Client {
        let value = CLIENTS.get(txn, &whose.number().to_be_bytes())?.expect("a client");
        return Ok(MetaBlock(u64::from_le_bytes(value)));
    }
    let (_, slot) = txn.names().locate_live(Ino(whose.number()))?;
    Ok(slot.blobs().into_iter().find(|(_, of)| *of == whose).expect("it is in a blob").0)
}

/// Leads to a blob that begins elsewhere.
fn lead(txn: &mut Txn<'_>, whose: BlobOwner, to: MetaBlock) -> Result<(), Stop> {
    if whose.kind() == BlobKind::Client {
        let key = whose.number().to_be_bytes();
        return CLIENTS.insert(txn, &key, &to.0.to_le_bytes()).map(drop);
    }
    let (spot, mut slot) = txn.names().locate_live(Ino(whose.number()))?;
    match whose.kind() {
        BlobKind::Xattrs => slot.set_xattr_blob(Some(to.0)),
        BlobKind::Target => slot.set_target_blob(Some(to.0)),
        _ => slot.set_content_blob(to.0),
    }
    txn.names().store(&spot, &slot)
}

/// What is in block `from` comes to lie in block `to`, as if it were that one's.
fn misplace(txn: &mut Txn<'_>, from: MetaBlock, to: MetaBlock) -> Result<(), Stop> {
    let data = *txn.read(from)?;
    txn.write(to)?[HEADER..].copy_from_slice(&data[HEADER..]);
    Ok(())
}

fn subject(whose: BlobOwner) -> Subject {
    match whose.kind() {
        BlobKind::Client => Subject::Client(ClientId(whose.number())),
        _ => Subject::Inode(Ino(whose.number())),
    }
}

fn kinds(problems: &[Problem]) -> Vec<(ProblemKind, Subject)> {
    problems.iter().map(|problem| (problem.kind, problem.subject)).collect()
}

/// Asking for it is answered by the address of the block, by what was expected and what was found.
fn refuses(world: &World, expected: BlobOwner, (block, found): (MetaBlock, BlobOwner)) {
    let error = now(world.mfs.run(Cost::READ, |txn| get(txn, expected))).map(drop).unwrap_err();
    let said = OwnerMismatch { expected, found }.to_string();
    assert_eq!(said, format!("it has the {found}, where the {expected} should be"));
    match error {
        StoreError::Corrupt { block: named, what } => assert_eq!((named, &*what), (block, &*said)),
        error => panic!("{error}"),
    }
}

fn each(mut body: impl FnMut(World, BlobKind)) {
    for size in SlotSize::ALL {
        BlobKind::ALL.iter().for_each(|&what| body(world(size), what));
    }
}

#[test]
pub(super) fn two_that_have_each_others_blob_get_their_own_back() {
    each(|world, what| {
        let before = world.all();
        let [a, b] = [0, 1].map(|n| world.whose(what, n));
        let (of_a, of_b) = run(&world.mfs, |txn| {
            let (of_a, of_b) = (first(txn, a)?, first(txn, b)?);
            lead(txn, a, of_b)?;
            lead(txn, b, of_a)?;
            Ok((of_a, of_b))
        });
        refuses(&world, a, (of_b, b));
        if what != BlobKind::Client {
            refuses(&world, b, (of_a, a));
        }
        let found = world.check();
        let wanted = [a, b].map(|whose| (ProblemKind::WrongBlob, subject(whose)));
        assert_eq!(kinds(&found), wanted, "{found:?}");
        let detail = format!("metadata block {of_b}: it has the {b}, where the {a} should be");
        assert_eq!(found[0].detail, detail);
        let told = now(dump(&[Source::of(&world.mfs)], &mut Vec::new())).unwrap();
        let expected = if what == BlobKind::Client { 0 } else { 2 };
        assert_eq!(told.damaged_count, expected, "{:?}", told.damaged);
        assert!(told.damaged.iter().all(|line| line.contains("should be")), "{:?}", told.damaged);
        let repaired = world.repaired();
        assert_eq!(repaired.lost, [], "{:#?}", repaired.done);
        let line = format!("the {a} was found in metadata block {of_a}");
        assert!(repaired.done.contains(&line), "{:#?}", repaired.done);
        assert_eq!(world.all(), before);
        settled(ProblemKind::WrongBlob, Outcome::Repaired);
    });
}

#[test]
fn inode_led_to_a_foreign_blob_gets_its_own_back() {
    each(|world, what| {
        let before = world.all();
        let [a, b] = [0, 1].map(|n| world.whose(what, n));
        run(&world.mfs, |txn| {
            let of_b = first(txn, b)?;
            lead(txn, a, of_b)
        });
        let found = world.check();
        assert_eq!(kinds(&found), [(ProblemKind::WrongBlob, subject(a))], "{found:?}");
        let repaired = world.repaired();
        assert_eq!((world.all(), repaired.lost), (before, vec![]), "{:#?}", repaired.done);
    });
}

#[test]
fn blob_of_another_kind_of_the_same_inode_is_foreign() {
    for size in SlotSize::ALL {
        for (ino, other) in [(0, BlobKind::Content), (1, BlobKind::Target)] {
            let world = world(size);
            let before = world.all();
            let ino = if ino == 0 { world.files[0] } else { world.symlinks[0] };
            let (a, b) = (BlobOwner::inode(ino, BlobKind::Xattrs), BlobOwner::inode(ino, other));
            let of_b = run(&world.mfs, |txn| {
                let (of_a, of_b) = (first(txn, a)?, first(txn, b)?);
                lead(txn, a, of_b)?;
                lead(txn, b, of_a)?;
                Ok(of_b)
            });
            refuses(&world, a, (of_b, b));
            let found = world.check();
            let wanted = [(ProblemKind::WrongBlob, Subject::Inode(ino)); 2];
            assert_eq!(kinds(&found), wanted, "{found:?}");
            let repaired = world.repaired();
            assert_eq!((world.all(), repaired.lost), (before, vec![]), "{:#?}", repaired.done);
        }
    }
}

#[test]
fn overwritten_blob_is_reported_lost_and_the_other_stays_whole() {
    each(|world, what| {
        let mut before = world.all();
        let [a, b] = [0, 1].map(|n| world.whose(what, n));
        let of_a = run(&world.mfs, |txn| {
            let (of_a, of_b) = (first(txn, a)?, first(txn, b)?);
            misplace(txn, of_b, of_a)?;
            Ok(of_a)
        });
        refuses(&world, a, (of_a, b));
        let found = world.check();
        assert_eq!((found[0].kind, found[0].subject), (ProblemKind::WrongBlob, subject(a)));
        let rest = |problem: &Problem| problem.kind == ProblemKind::LostMetaBlock;
        assert!(found[1..].iter().all(rest), "{found:?}");
        let repaired = world.repaired();
        let told: Vec<_> = repaired.lost.iter().map(|lost| (lost.kind(), lost.inode())).collect();
        let ino = Some(Ino(a.number()));
        let (kind, now) = match what {
            BlobKind::Xattrs => (("Xattrs", ino), "None None"),
            BlobKind::Target => (("Target", ino), ""),
            BlobKind::Content => (("Content", ino), ""),
            BlobKind::Client => (("Records", None), ""),
        };
        assert!(told.contains(&kind), "{told:?}");
        before.insert(a, now.into());
        if what == BlobKind::Target {
            // A symlink without a target goes, with its attributes.
            before.remove(&a);
            before.remove(&BlobOwner::inode(world.symlinks[0], BlobKind::Xattrs));
            let gone = run(&world.mfs, |txn| txn.names().attr(world.symlinks[0]));
            assert_eq!(gone, None);
        }
        for (whose, bytes) in before {
            assert!(run(&world.mfs, |txn| get(txn, whose)) == bytes, "{whose}");
        }
    });
}

#[test]
fn attributes_before_a_block_of_another_blob_stay() {
    for size in SlotSize::ALL {
        let world = world(size);
        let mut before = world.all();
        let [a, b] = [0, 1].map(|n| world.whose(BlobKind::Xattrs, n));
        run(&world.mfs, |txn| {
            let (of_a, of_b) = (first(txn, a)?, first(txn, b)?);
            let second = txn.blob_blocks(of_b, b)?[1];
            put_u64(txn.write(of_a)?, NEXT, second.0);
            Ok(())
        });
        let found = world.check();
        assert_eq!((found[0].kind, found[0].subject), (ProblemKind::WrongBlob, subject(a)));
        let repaired = world.repaired();
        let told: Vec<_> = repaired.lost.iter().map(ToString::to_string).collect();
        let ino = world.files[0];
        let text = format!(
            "the extended attribute user.long of /file0 (inode {ino}), and those whose names come after it"
        );
        assert_eq!(told, [text]);
        let kept = format!("{:?} None", Some(bytes(9, 0)));
        before.insert(a, kept.into());
        assert_eq!(world.all(), before);
    }
}

/// Both are the inode's, and only one is where the chain says.
#[test]
fn misplaced_block_of_the_same_blob_is_damage() {
    let world = world(SlotSize::Bytes512);
    let a = world.whose(BlobKind::Xattrs, 0);
    let third = run(&world.mfs, |txn| {
        let of_a = first(txn, a)?;
        let blocks = txn.blob_blocks(of_a, a)?;
        put_u64(txn.write(of_a)?, NEXT, blocks[2].0);
        Ok(blocks[2])
    });
    let error = now(world.mfs.run(Cost::READ, |txn| get(txn, a))).map(drop).unwrap_err();
    let said = format!(
        "metadata block {third} is damaged: a block of a blob has the index of another one"
    );
    assert!(error.to_string().starts_with(&said), "{error}");
    let found = world.check();
    assert_eq!(found[0].subject, Subject::Block(third), "{found:?}");
    assert_eq!(world.repaired().lost.len(), 1);
}

#[test]
fn newest_unreferenced_blob_is_reattached_and_others_are_freed() {
    for missing_blobs in [true, false] {
        let world = world(SlotSize::Bytes512);
        let mut before = world.all();
        let [a, b] = [0, 1].map(|n| world.whose(BlobKind::Content, n));
        let near = MetaBlock(9000);
        for text in [&b"older"[..], b"newer"] {
            run(&world.mfs, |txn| txn.write_blob(None, text, a, near));
        }
        if missing_blobs {
            run(&world.mfs, |txn| {
                let of_b = first(txn, b)?;
                let blocks = txn.blob_blocks(of_b, b)?;
                // What the file has itself is the oldest.
                lead(txn, a, blocks[0])
            });
            before.insert(a, b"newer".to_vec());
        }
        let repaired = world.repaired();
        assert_eq!((world.all(), repaired.lost), (before, vec![]), "{:#?}", repaired.done);
        let freed = repaired.done.iter().filter(|line| line.contains("became free")).count();
        assert!(freed > 0, "{:#?}", repaired.done);
    }
}

#[test]
fn address_of_no_blob_is_set_to_the_own_blob_again() {
    use ProblemKind::{
        BadContent, BadRecord, BadTarget, BadXattrs, DamagedBlock, OutsideMetaBlock,
    };
    each(|world, what| {
        let before = world.all();
        let a = world.whose(what, 0);
        let own = match what {
            BlobKind::Xattrs => BadXattrs,
            BlobKind::Target => BadTarget,
            BlobKind::Content => BadContent,
            BlobKind::Client => BadRecord,
        };
        let directory = run(&world.mfs, |txn| Ok(txn.names().locate_live(world.files[0])?.0.block));
        for to in [directory, MetaBlock(0), MetaBlock(1 << 40)] {
            run(&world.mfs, |txn| lead(txn, a, to));
            if to.0 == 0 && what == BlobKind::Client {
                // It has none then.
                continue;
            }
            let kind = if to == directory { DamagedBlock } else { OutsideMetaBlock };
            let found: Vec<_> = world.check().iter().map(|problem| problem.kind).collect();
            assert_eq!(found, [kind, own], "{a} to {to}");
            let repaired = world.repaired();
            assert_eq!((world.all(), repaired.lost), (before.clone(), vec![]), "{a} to {to}");
        }
    });
}

#[test]
fn stale_blobs_are_not_reattached_while_the_bitmap_was_lost() {
    let world = world(SlotSize::Bytes512);
    let [a, b] = [0, 1].map(|n| world.whose(BlobKind::Content, n));
    run(&world.mfs, |txn| {
        txn.set_root(UNFINISHED, BITMAP_LOST)?;
        let of_b = first(txn, b)?;
        lead(txn, a, of_b)
    });
    let repaired = world.repaired();
    assert_eq!(repaired.lost.iter().map(|lost| lost.kind()).collect::<Vec<_>>(), ["Content"]);
    assert_eq!(run(&world.mfs, |txn| get(txn, a)), b"");
    assert_eq!(run(&world.mfs, |txn| get(txn, b)), bytes(CONTENT_MAX, 1));
}

/// Whatever is done by way of a word that leads wrong is refused: the blob stays its owner's.
#[test]
fn foreign_reference_neither_changes_nor_frees_a_blob() {
    for what in [BlobKind::Xattrs, BlobKind::Target, BlobKind::Content] {
        let world = world(SlotSize::Bytes512);
        let [a, b] = [0, 1].map(|n| world.whose(what, n));
        let (ino, before) = (Ino(a.number()), run(&world.mfs, |txn| get(txn, b)));
        let of_b = run(&world.mfs, |txn| {
            let of_b = first(txn, b)?;
            lead(txn, a, of_b)?;
            Ok(of_b)
        });
        type Body<'a> = &'a dyn Fn(&mut Txn<'_>) -> Result<(), Stop>;
        let changes: &[Body<'_>] = match what {
            BlobKind::Xattrs => &[
                &|txn| txn.names().set_xattr(ino, FIRST, b"x"),
                &|txn| txn.names().set_xattr(ino, LONG, b""),
                &|txn| txn.names().remove_xattr(ino, LONG).map(drop),
                &|txn| txn.names().xattrs(ino).map(drop),
            ],
            BlobKind::Content => &[
                &|txn| txn.layouts().set_content(ino, b"x"),
                &|txn| txn.layouts().set_content(ino, &[7; CONTENT_MAX]),
                &|txn| txn.layouts().set_content(ino, b""),
                &|txn| {
                    let attr = txn.names().attr(ino)?.unwrap();
                    txn.names().set_attr(&types::Attr { size: 100, ..attr })
                },
            ],
            _ => &[],
        };
        let gone = |txn: &mut Txn<'_>| {
            let attr = txn.names().attr(ino)?.unwrap();
            txn.names().set_attr(&types::Attr { nlink: 0, size: attr.size, ..attr })?;
            while !txn.names().free_inode_step(ino, 8)? {}
            Ok(())
        };
        for body in changes.iter().copied().chain([&gone as Body<'_>]) {
            let stop = now(world.mfs.run(Cost::DELETE, |txn| body(txn))).unwrap_err();
            assert!(matches!(stop, StoreError::Corrupt { block, .. } if block == of_b), "{stop}");
            assert_eq!(run(&world.mfs, |txn| get(txn, b)), before);
        }
        assert_eq!(world.repaired().lost, []);
    }
}

/// A closed device, and the attributes of one file and the content of another on it, with where
/// their blobs begin.
fn device() -> (SimDisk, [(MetaBlock, BlobOwner); 2]) {
    let features = Features::NONE.with(Feature::INLINE_DATA);
    let disk = populated_as(Shape { features, maps: MapLimits::USUAL, dirs: 3 });
    let blobs = in_world(&disk.fork(), |env| async move {
        let mfs = open(&env).await;
        run_on(&mfs, |txn| {
            let mut all = Vec::new();
            for dir in [Ino::ROOT, txn.names().lookup(Ino::ROOT, &name("d0"))?.unwrap()] {
                for entry in txn.names().readdir(dir, 0, 1000)? {
                    all.extend(txn.names().locate_live(entry.ino)?.1.blobs());
                }
            }
            Ok(all)
        })
        .await
    });
    let of =
        |what: BlobKind| *blobs.iter().find(|(_, whose)| whose.kind() == what).expect("a blob");
    (disk, [of(BlobKind::Xattrs), of(BlobKind::Content)])
}

#[test]
fn overwritten_blob_block_is_restored_from_the_log() {
    let (disk, [xattrs, content]) = device();
    let before = contents(&disk);
    for ((at, victim), (from, _)) in [(xattrs, content), (content, xattrs)] {
        let broken = disk.fork();
        let mut data = broken.peek(from.0 * BLOCK_U64, BLOCK);
        put_u64(&mut data, 8, at.0);
        seal(&mut data);
        broken.poke(at.0 * BLOCK_U64, &data);
        let unlogged = broken.fork();
        wipe_log(&unlogged);
        for (disk, logged) in [(broken, true), (unlogged, false)] {
            let found = run_fsck(&disk).problems;
            let told = (found[0].kind, found[0].subject);
            assert_eq!(told, (ProblemKind::WrongBlob, subject(victim)), "{found:?}");
            let scrubbed = in_world(&disk.fork(), |env| async move {
                let told = RefCell::new(Scrubbed::default());
                let options = ScrubOptions { rate: 0, unreadable: true };
                open(&env).await.scrub(options, &told).await.unwrap();
                told.into_inner().problems
            });
            assert_eq!(kinds(&scrubbed), [told], "{scrubbed:?}");
            let repaired = run_repair(&disk);
            assert_eq!((repaired.left.problems, run_fsck(&disk).problems), (vec![], vec![]));
            assert_eq!(repaired.lost.is_empty(), logged, "{:?}", repaired.lost);
            assert_eq!(contents(&disk) == before, logged);
        }
    }
}

#[test]
fn interrupted_repair_reattaches_the_same_blobs() {
    let (disk, [(of_xattrs, xattrs), (of_content, content)]) = device();
    let before = contents(&disk);
    in_world(&disk, |env| async move {
        let mfs = open(&env).await;
        run_on(&mfs, |txn| {
            lead(txn, xattrs, of_content)?;
            lead(txn, content, of_xattrs)
        })
        .await;
        mfs.close().await.unwrap();
    });
    let sound = |repaired: Repaired, disk: &SimDisk, what: &str| {
        assert_eq!((repaired.left.problems, repaired.lost), (vec![], vec![]), "{what}");
        assert_eq!(contents(disk), before, "{what}");
    };
    disk.record();
    sound(run_repair(&disk), &disk, "whole");
    let mut images = 0;
    for point in disk.recording().unwrap().crash_images(CrashOptions { seed: 3, subsets: 1 }) {
        images += 1;
        sound(run_repair(point.disk()), point.disk(), &point.description);
    }
    assert!(images > 5, "{images}");
}
