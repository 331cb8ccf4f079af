//! A store that is scrubbed while it is used, and while its device is damaged.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use env::Env;
use env::sim::{SimDisk, SimRng};
use types::limits::BLOCK;
use types::{
    Attr, ClientId, DirNo, Duration, FileBlock, FileKind, Ino, MetaBlock, PagBlock, PagId, Segment,
    SegmentState,
};

use super::{ProblemKind, ScrubOptions, Scrubbed, Subject};
use crate::format::chunk::{DESCRIPTOR, Descriptor, chunk_key};
use crate::format::namespace::NamespaceEntry;
use crate::format::outside::Outside;
use crate::format::space::PagUse;
use crate::fsck::device_tests::{
    blocks_in_use, contents, directory, flip, in_world, is_read, name, new, open, populated, run,
    run_fsck, wipe_log,
};
use crate::handle::Mfs;
use crate::testing::links;
use crate::trees::{CHUNKS, MOVED, NAMESPACE, ORPHANS, OUTSIDE, SEGMENTS};
use crate::txn::Txn;
use engine::error::Stop;
use engine::format::block::{BlockType, put_u64};

async fn scrub(mfs: &Mfs, rate: u64) -> Scrubbed {
    let told = RefCell::new(Scrubbed::default());
    mfs.scrub(ScrubOptions { rate, unreadable: true }, &told).await.unwrap();
    told.into_inner()
}

/// One random change of the namespace; one that cannot be made changes nothing.
async fn change(mfs: &Mfs, rng: &mut SimRng, client: ClientId) {
    let pick = |rng: &mut SimRng| format!("x{}", rng.below(60));
    let (a, b) = (pick(rng), pick(rng));
    let (what, n) = (rng.below(10), rng.below(1 << 20));
    let changed = mfs.run(engine::cost::Cost::DELETE, |txn| {
        let entries = txn.names().readdir(Ino::ROOT, 0, 1000)?;
        let dirs: Vec<Ino> = entries
            .iter()
            .filter(|entry| entry.kind == FileKind::Directory && entry.name.as_bytes()[0] == b'd')
            .map(|entry| entry.ino)
            .collect();
        let dir = |n: u64| dirs[n as usize % dirs.len()];
        let (from, to) = (dir(n), dir(n / 64));
        match what {
            0 | 1 => {
                txn.names().create(from, &name(a.clone()), &new(FileKind::Regular), None).map(drop)
            }
            2 => {
                txn.names().create(from, &name(a.clone()), &new(FileKind::Symlink), None).map(drop)
            }
            3 => directory(txn, from, a.clone()).map(drop),
            4 | 5 => txn.names().rename(from, &name(a.clone()), to, &name(b.clone())),
            6 => {
                let Some(ino) = txn.names().lookup(from, &name(a.clone()))? else { return Ok(()) };
                if txn.names().attr(ino)?.is_none_or(|attr| attr.kind != FileKind::Regular) {
                    return Ok(());
                }
                txn.names().link(to, &name(b.clone()), ino)?;
                links(txn, ino, 1)
            }
            7 => {
                let Some(ino) = txn.names().lookup(from, &name(a.clone()))? else { return Ok(()) };
                txn.names().set_xattr(ino, b"user.x", &vec![7; (n % 9000) as usize])
            }
            8 => {
                let Some(ino) = txn.names().lookup(from, &name(a.clone()))? else { return Ok(()) };
                if txn.names().attr(ino)?.is_none_or(|attr| attr.kind != FileKind::Regular) {
                    return Ok(());
                }
                for n in n..n + 9 {
                    let got = txn.space().grant(client, None, 1 + n % 3)?[0];
                    let state = SegmentState::Written;
                    let file = FileBlock(n % 50 * 4);
                    let segment = Segment { file, len: got.2, pag: got.0, addr: got.1, state };
                    txn.layouts().map(ino, client, segment)?;
                }
                Ok(())
            }
            _ => {
                let Some(ino) = txn.names().lookup(from, &name(a.clone()))? else { return Ok(()) };
                let attr = txn.names().attr(ino)?.unwrap();
                if attr.kind == FileKind::Directory {
                    return Ok(());
                }
                txn.names().remove_name(from, &name(a.clone()))?;
                links(txn, ino, -1)
            }
        }
    });
    drop(changed.await);
}

#[test]
fn sound_store_is_clean_even_while_it_changes() {
    let start = populated();
    for seed in 0..3 {
        let disk = start.fork();
        in_world(&disk, |env| async move {
            let mfs = open(&env).await;
            let client = run(&mfs, |txn| txn.new_client(b"busy")).await;
            let (over, changes) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
            let busy = env.spawn_join({
                let (env, mfs) = (env.clone(), mfs.clone());
                let (over, changes) = (over.clone(), changes.clone());
                async move {
                    let mut rng = SimRng::new(seed);
                    while !over.get() {
                        change(&mfs, &mut rng, client).await;
                        changes.set(changes.get() + 1);
                        env.sleep(Duration::from_micros(rng.below(3000))).await;
                        if rng.below(40) == 0 {
                            mfs.sync().await.unwrap();
                        }
                    }
                }
            });
            for rate in [0, 2 << 20, 20 << 20] {
                let found = scrub(&mfs, rate).await;
                assert_eq!(
                    (&found.problems[..], &found.rewritten[..]),
                    (&[][..], &[][..]),
                    "{seed}"
                );
                assert!(found.blocks > 150 && found.inodes > 700, "{found:?}");
            }
            assert!(changes.get() > 200, "{}", changes.get());
            over.set(true);
            busy.await;
            mfs.close().await.unwrap();
        });
        assert_eq!(run_fsck(&disk).problems, [], "{seed}");
    }
}

#[test]
fn scrub_reads_no_faster_than_its_rate() {
    const RATE: u64 = 1 << 20;
    in_world(&populated(), |env| async move {
        let mfs = open(&env).await;
        let took = async |rate| {
            let begin = env.now();
            let found = scrub(&mfs, rate).await;
            (found.blocks * BLOCK as u64, env.now().since(begin).as_nanos() as u64)
        };
        let (bytes, nanos) = took(RATE).await;
        let least = bytes * 1_000_000_000 / RATE;
        assert!(bytes > 600 << 10 && nanos >= least, "{bytes} bytes in {nanos} ns");
        let (_, unbounded) = took(0).await;
        assert!(unbounded < least / 2, "{unbounded} ns without a rate");
        mfs.close().await.unwrap();
    });
}

/// What a scrub makes of each block in use that is damaged while the store is open.
fn damage_each(disk: &SimDisk, damage: impl Fn(&SimDisk, u64)) -> BTreeMap<BlockType, [u32; 2]> {
    let before = contents(disk);
    let damage = &damage;
    let mut out: BTreeMap<_, [u32; 2]> = BTreeMap::new();
    for (at, kind) in blocks_in_use(disk) {
        let broken = disk.fork();
        let found = in_world(&broken, |env| {
            let broken = broken.clone();
            async move {
                let mfs = open(&env).await;
                damage(&broken, at);
                let found = scrub(&mfs, 0).await;
                mfs.close().await.unwrap();
                found
            }
        });
        if found.rewritten.contains(&MetaBlock(at)) {
            assert_eq!(found.problems, [], "{kind:?} {at}");
            assert_eq!(run_fsck(&broken).problems, [], "{kind:?} {at}");
            assert_eq!(contents(&broken), before, "{kind:?} {at}");
            out.entry(kind).or_default()[0] += 1;
            continue;
        }
        let told = found.problems.iter().any(|problem| {
            problem.kind == ProblemKind::DamagedBlock
                && problem.subject == Subject::Block(MetaBlock(at))
        });
        if told {
            out.entry(kind).or_default()[1] += 1;
        } else {
            assert!(!is_read(disk, at), "{kind:?} {at} was not found: {found:?}");
        }
    }
    out
}

#[test]
fn damaged_block_is_rewritten_from_log_or_cache_or_else_reported() {
    let disk = populated();
    let rng = RefCell::new(SimRng::new(9));
    let flipped = damage_each(&disk, |disk, at| drop(flip(disk, at, &mut rng.borrow_mut())));
    wipe_log(&disk);
    let unlogged = damage_each(&disk, |disk, at| drop(flip(disk, at, &mut rng.borrow_mut())));
    for kind in [BlockType::Tree, BlockType::Directory] {
        assert!(flipped[&kind][0] > 20, "{flipped:?}");
        assert!(unlogged[&kind][1] > 10, "{unlogged:?}");
    }
    for kind in [BlockType::Roots, BlockType::Bitmap, BlockType::Blob, BlockType::Reply] {
        assert!(flipped.contains_key(&kind) && unlogged.contains_key(&kind), "{flipped:?}");
    }
    // Copies of the superblock are written anew when the log's tail moves.
    assert_eq!(flipped[&BlockType::Super], [0, 2]);
}

#[test]
fn lost_write_is_noticed_while_the_block_is_cached() {
    let disk = populated();
    in_world(&disk, |env| {
        let disk = disk.clone();
        async move {
            let mfs = open(&env).await;
            let spot = run(&mfs, |txn| txn.names().locate(Ino::ROOT)).await.unwrap();
            let at = spot.block.0 * BLOCK as u64;
            let before = disk.peek(at, BLOCK);
            let touch = |txn: &mut Txn<'_>| {
                let attr = txn.names().attr(Ino::ROOT)?.unwrap();
                txn.names().set_attr(&Attr { uid: attr.uid + 1, ..attr })
            };
            run(&mfs, touch).await;
            bring_home(&env, &mfs).await;
            let now = disk.peek(at, BLOCK);
            assert_ne!(now, before);
            disk.poke(at, &before);
            run(&mfs, |txn| txn.read(spot.block).map(drop)).await;
            let found = scrub(&mfs, 0).await;
            assert_eq!((&found.problems[..], &found.rewritten[..]), (&[][..], &[spot.block][..]));
            bring_home(&env, &mfs).await;
            assert_ne!(disk.peek(at, BLOCK), before);
            mfs.close().await.unwrap();
        }
    });
    assert_eq!(run_fsck(&disk).problems, []);
}

async fn bring_home(env: &Env, mfs: &Mfs) {
    mfs.sync().await.unwrap();
    let mut waited = 0;
    while mfs.usage().dirty > 0 {
        env.sleep(Duration::from_secs(1)).await;
        waited += 1;
        assert!(waited < 1000, "{:?}", mfs.usage());
    }
}

#[test]
fn unreadable_block_is_reported_and_rewritten_where_it_is_known() {
    let disk = populated();
    let unreadable = |disk: &SimDisk, at: u64| {
        disk.make_unreadable(at * BLOCK as u64..(at + 1) * BLOCK as u64);
    };
    let (mut mended, mut told) = (0, 0);
    for (at, kind) in blocks_in_use(&disk).into_iter().step_by(9) {
        let broken = disk.fork();
        let found = in_world(&broken, |env| {
            let broken = broken.clone();
            async move {
                let mfs = open(&env).await;
                unreadable(&broken, at);
                let found = scrub(&mfs, 0).await;
                drop(mfs.close().await);
                found
            }
        });
        let named = |problem: &super::Problem| problem.subject == Subject::Block(MetaBlock(at));
        let is_told = found.problems.iter().any(named);
        mended += u32::from(found.rewritten.contains(&MetaBlock(at)));
        told += u32::from(is_told);
        let seen = is_told || found.rewritten.contains(&MetaBlock(at));
        assert!(seen || !is_read(&disk, at), "{kind:?} {at}: {found:?}");
    }
    assert!(mended > 5 && told > 0, "{mended} {told}");
}

/// A wrong thing, and what it is found as.
type Plant = (ProblemKind, fn(&mut Txn<'_>, &Known) -> Result<(), Stop>);

/// Inodes of the device that tests begin with.
struct Known {
    dir: Ino,
    file: Ino,
    moved: Ino,
    orphan: Ino,
}

fn chunk_of(txn: &mut Txn<'_>, dir: Ino) -> Result<DirNo, Stop> {
    Ok(txn.names().read_chunks(dir)?[0])
}

fn set_slot(
    txn: &mut Txn<'_>,
    ino: Ino,
    change: impl FnOnce(&mut crate::format::slot::Slot),
) -> Result<(), Stop> {
    let spot = txn.names().locate(ino)?.unwrap();
    let mut slot = txn.names().load(&spot)?;
    change(&mut slot);
    txn.names().store(&spot, &slot)
}

fn set_descriptor(
    txn: &mut Txn<'_>,
    dir: Ino,
    change: impl FnOnce(&mut Descriptor),
) -> Result<(), Stop> {
    let key = chunk_key(chunk_of(txn, dir)?, DESCRIPTOR);
    let mut descriptor = Descriptor::decode(&CHUNKS.get(txn, &key)?.unwrap()).unwrap();
    change(&mut descriptor);
    CHUNKS.insert(txn, &key, &descriptor.encode()).map(drop)
}

/// A layout block of the file that has many segments.
fn layout_block(txn: &mut Txn<'_>, known: &Known) -> Result<MetaBlock, Stop> {
    let big = txn.names().lookup(known.dir, &name("big".into()))?.unwrap();
    Ok(txn.names().locate_live(big)?.1.layout_blocks()[1])
}

const PLANTS: &[Plant] = &[
    (ProblemKind::DanglingName, |txn, known| {
        txn.names()
            .put_link(known.dir, b"dangling", Ino(0x0012_3456_7800), FileKind::Fifo)
            .map(drop)
    }),
    (ProblemKind::WrongKind, |txn, known| {
        txn.names().put_link(known.dir, b"other", known.file, FileKind::Fifo).map(drop)
    }),
    (ProblemKind::MisplacedInode, |txn, known| {
        MOVED.remove(txn, &known.moved.0.to_be_bytes()).map(drop)
    }),
    (ProblemKind::StaleMove, |txn, known| {
        let place = MOVED.get(txn, &known.moved.0.to_be_bytes())?.unwrap();
        MOVED.insert(txn, &known.file.0.to_be_bytes(), &place).map(drop)
    }),
    (ProblemKind::WrongOrphan, |txn, known| {
        ORPHANS.remove(txn, &known.orphan.0.to_be_bytes()).map(drop)
    }),
    (ProblemKind::WrongOrphan, |txn, known| {
        ORPHANS.insert(txn, &known.file.0.to_be_bytes(), &[0; 8]).map(drop)
    }),
    (ProblemKind::WrongOutside, |txn, known| {
        let names = Outside::Names(1).encode();
        OUTSIDE.insert(txn, &known.dir.0.to_be_bytes(), &names).map(drop)
    }),
    (ProblemKind::WrongOutside, |txn, _| {
        let parent = Outside::Parent(Ino(9 << 56)).encode();
        OUTSIDE.insert(txn, &(99u64 << 24).to_be_bytes(), &parent).map(drop)
    }),
    (ProblemKind::WrongBlockCount, |txn, known| set_slot(txn, known.file, |s| s.set_blocks(77))),
    (ProblemKind::BadLayout, |txn, known| {
        let big = txn.names().lookup(known.dir, &name("big".into()))?.unwrap();
        set_slot(txn, big, |slot| slot.set_body(slot.body() + 1))
    }),
    (ProblemKind::BadLayoutBlock, |txn, known| {
        let block = layout_block(txn, known)?;
        put_u64(txn.write(block)?, 32, known.file.0);
        Ok(())
    }),
    // Its checksum will be right.
    (ProblemKind::DamagedBlock, |txn, known| {
        let block = layout_block(txn, known)?;
        txn.write(block)?[40] = 0;
        Ok(())
    }),
    (ProblemKind::FreeMetaBlock, |txn, known| {
        let block = layout_block(txn, known)?;
        txn.free_meta(block, 1)
    }),
    (ProblemKind::FreeMetaBlock, |txn, known| {
        let block = txn.alloc_meta(1, None)?;
        txn.free_meta(block, 1)?;
        set_slot(txn, known.file, |slot| slot.set_layout_blocks(&[block]))
    }),
    (ProblemKind::OutsideDataBlock, |txn, known| {
        let state = SegmentState::Written;
        let (file, addr) = (FileBlock(9000), PagBlock(1 << 40));
        let segment = Segment { file, len: 1, pag: PagId(3), addr, state };
        let key = crate::format::segment::segment_key(known.file, 9000);
        SEGMENTS.insert(txn, &key, &crate::format::segment::segment_value(&segment)).map(drop)
    }),
    (ProblemKind::BadChunk, |txn, known| {
        set_descriptor(txn, known.dir, |descriptor| descriptor.next = DirNo(1))
    }),
    (ProblemKind::LostChunk, |txn, known| {
        let file = known.file;
        set_descriptor(txn, known.dir, |descriptor| descriptor.owner = file)
    }),
    (ProblemKind::FreeMetaBlock, |txn, known| {
        let chunk = chunk_of(txn, known.dir)?;
        let start = txn.names().read_chunk(chunk)?.unwrap().runs[0].start;
        txn.free_meta(start, 1)
    }),
    (ProblemKind::BadName, |txn, known| set_slot(txn, known.file, |slot| slot.set_name(b"a/b"))),
    (ProblemKind::BadXattrs, |txn, known| {
        set_slot(txn, known.file, |slot| slot.set_xattrs(&[9; 5]))
    }),
    // Its checksum will be right.
    (ProblemKind::DamagedBlock, |txn, _| {
        let leaf = *SEGMENTS.descend(txn, &[0; _])?.unwrap().nodes.last().unwrap();
        txn.write(leaf)?[48..52].fill(0xff);
        Ok(())
    }),
    (ProblemKind::StaleIndexEntry, |txn, known| {
        let (key, value) = NAMESPACE.last(txn)?.unwrap();
        let entry = NamespaceEntry { dir: known.file, ..NamespaceEntry::of(&key) };
        NAMESPACE.insert(txn, &entry.key(), &value).map(drop)
    }),
    (ProblemKind::BadSlot, |txn, known| set_slot(txn, known.file, |slot| slot.set_next_reuse(0))),
    (ProblemKind::BadZoneState, |txn, _| {
        let zone = txn.space().pags()?[0].id;
        txn.space().set_pag_use(zone, PagUse::Unknown(4)).map(drop)
    }),
];

#[test]
fn inconsistent_structures_are_reported() {
    let start = populated();
    for (n, (kind, plant)) in PLANTS.iter().enumerate() {
        let disk = start.fork();
        in_world(&disk, |env| async move {
            let mfs = open(&env).await;
            let known = run(&mfs, |txn| {
                let dir = txn.names().lookup(Ino::ROOT, &name("d0".into()))?.unwrap();
                let file = txn.names().lookup(dir, &name("f1".into()))?.unwrap();
                let moved = MOVED.last(txn)?.map(|(key, _)| Ino(u64::from_be_bytes(key))).unwrap();
                let orphan = ORPHANS.last(txn)?.map(|(key, _)| Ino(u64::from_be_bytes(key)));
                Ok(Known { dir, file, moved, orphan: orphan.unwrap() })
            })
            .await;
            assert_eq!(scrub(&mfs, 0).await.problems, []);
            run(&mfs, |txn| plant(txn, &known)).await;
            // From the cache, and from the device.
            for _ in 0..2 {
                let found = scrub(&mfs, 0).await;
                let kinds: Vec<_> = found.problems.iter().map(|problem| problem.kind).collect();
                assert!(kinds.contains(kind), "plant {n}, {kind:?}: {:#?}", found.problems);
                assert!(found.rewritten.is_empty());
                bring_home(&env, &mfs).await;
            }
        });
    }
}
