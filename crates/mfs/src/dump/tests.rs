//! What is dumped, loaded and dumped again is the same; damaged streams are refused.

use std::slice::from_ref;

use env::DiskOptions;
use env::sim::{SimRng, SimWorld};
use types::limits::CONTENT_MAX;
use types::{
    Attr, ClientId, FileBlock, FileKind, Ino, Name, ObjectId, PagBlock, PagId, Segment,
    SegmentState, ShardId, Timestamp, Uuid,
};

use super::load::{LoadError, load, load_onto};
use super::stream::{Inode, Reader, Record, StreamError, TargetZone, Writer, Zone};
use super::{Source, dump};
use crate::format::object::ObjectRecord;
use crate::format::outside::Outside;
use crate::format::slot::{self, SlotSize};
use crate::fsck::{FsckOptions, check, fsck};
use crate::handle::Mfs;
use crate::mkfs::{FormatOptions, PagFormat};
use crate::names::NewInode;
use crate::open::OpenOptions;
use crate::testing::{
    formatted, formatted_inline, formatted_near, formatted_with, new_inode, now, run,
};
use engine::format::features::Features;

fn dumped(mfs: &Mfs) -> Vec<u8> {
    let mut out = Vec::new();
    now(dump(&[Source::of(mfs)], &mut out)).unwrap();
    out
}

fn loaded(bytes: &[u8]) -> Result<Mfs, LoadError> {
    loaded_into(formatted(), bytes)
}

fn loaded_into(mfs: Mfs, bytes: &[u8]) -> Result<Mfs, LoadError> {
    now(load(from_ref(&mfs), &mut &bytes[..])).map(|_| mfs)
}

/// A tree of random inodes, with everything an inode may have; every second one has layout blocks.
fn random_tree(seed: u64) -> Mfs {
    random_tree_with(seed, SlotSize::Bytes512)
}

fn random_tree_with(seed: u64, size: SlotSize) -> Mfs {
    let near = seed.is_multiple_of(2);
    let mfs = if near { formatted_near(size) } else { formatted_with(size) };
    let mut rng = SimRng::new(seed);
    let client = run(&mfs, |txn| txn.new_client(b"client"));
    run(&mfs, |txn| txn.space().grant(client, None, 3000));
    let (mut dirs, mut files) = (vec![Ino::ROOT], Vec::new());
    for n in 0..300 {
        let dir = dirs[rng.below(dirs.len() as u64) as usize];
        let name = Name::new(format!("{n}{}", "x".repeat(rng.below(200) as usize)).as_bytes());
        let name = name.unwrap();
        let kinds = [
            FileKind::Regular,
            FileKind::Regular,
            FileKind::Directory,
            FileKind::Symlink,
            FileKind::CharDevice,
            FileKind::Socket,
        ];
        let kind = kinds[rng.below(6) as usize];
        let target = vec![b't'; 1 + rng.below(4000) as usize];
        let mut time = || Timestamp {
            seconds: rng.next_u64() as i64 >> 20,
            nanos: rng.below(1_000_000_000) as u32,
        };
        let new = NewInode {
            kind,
            mode: 0o7421,
            uid: 5,
            gid: 6,
            rdev: 7,
            size: 1 << 40,
            atime: time(),
            mtime: time(),
            ctime: time(),
            btime: time(),
            client: ClientId::NONE,
            symlink: (kind == FileKind::Symlink).then_some(&target),
        };
        let values: Vec<usize> = (0..rng.below(3)).map(|n| 7000 * n as usize).collect();
        let ino = run(&mfs, |txn| {
            let ino = txn.names().create(dir, &name, &new, None)?;
            for (n, &len) in values.iter().enumerate() {
                txn.names().set_xattr(ino, format!("user.{n}").as_bytes(), &vec![n as u8; len])?;
            }
            if kind == FileKind::Directory {
                let attr = txn.names().attr(dir)?.unwrap();
                txn.names().set_attr(&Attr { nlink: attr.nlink + 1, version: 77, ..attr })?;
            }
            Ok(ino)
        });
        match kind {
            FileKind::Directory => dirs.push(ino),
            FileKind::Regular => files.push((dir, name, ino)),
            _ => {}
        }
    }
    for (n, (_, _, ino)) in files.iter().enumerate() {
        for m in 0..rng.below(30) {
            let Some(&(pag, start, _)) = run(&mfs, |txn| txn.space().pool(client)).first() else {
                break;
            };
            let state = if m % 2 == 0 { SegmentState::Written } else { SegmentState::Unwritten };
            let addr = PagBlock(start.0);
            let segment = Segment { file: FileBlock(7 * m), len: 1 + m % 3, pag, addr, state };
            run(&mfs, |txn| txn.layouts().map(*ino, client, segment));
        }
        let to = dirs[rng.below(dirs.len() as u64) as usize];
        let further = Name::new(format!("further{n}").as_bytes()).unwrap();
        match rng.below(4) {
            0 => run(&mfs, |txn| {
                txn.names().link(to, &further, *ino)?;
                let attr = txn.names().attr(*ino)?.unwrap();
                txn.names().set_attr(&Attr { nlink: attr.nlink + 1, ..attr })
            }),
            1 => {
                let (dir, name, _) = &files[n];
                run(&mfs, |txn| txn.names().rename(*dir, name, to, &further));
            }
            _ => {}
        }
    }
    mfs
}

#[test]
fn loaded_tree_is_sound_and_dumps_like_its_source() {
    for seed in 1..8 {
        let mfs = random_tree(seed);
        let bytes = dumped(&mfs);
        // From without layout blocks to with them, and back.
        let near = !seed.is_multiple_of(2);
        let target = if near { formatted_near(SlotSize::Bytes512) } else { formatted() };
        let copy = loaded_into(target, &bytes).unwrap();
        assert!(dumped(&copy) == bytes, "seed {seed}");
        mfs.forget_indexes();
        copy.forget_indexes();
        let (a, b) = (now(check(&mfs)).unwrap(), now(check(&copy)).unwrap());
        assert_eq!((a.problems, b.problems), (vec![], vec![]), "seed {seed}");
        let (a, b) = (a.counts, b.counts);
        assert_eq!(
            (a.inodes, a.names, a.segments, a.mapped),
            (b.inodes, b.names, b.segments, b.mapped)
        );
        assert!(a.segments > 500 && a.names > a.inodes - 2, "seed {seed}: {a:?}");
    }
}

#[test]
fn tree_moves_between_all_slot_sizes() {
    let bytes = dumped(&random_tree(8));
    for size in SlotSize::ALL {
        assert!(dumped(&random_tree_with(8, size)) == bytes, "made with {size:?}");
        let copy = formatted_with(size);
        now(load(from_ref(&copy), &mut &bytes[..])).unwrap();
        assert!(dumped(&copy) == bytes, "loaded into {size:?}");
        copy.forget_indexes();
        assert_eq!(now(check(&copy)).unwrap().problems, [], "{size:?}");
    }
}

#[test]
fn truncated_or_damaged_stream_is_refused_with_the_place() {
    let bytes = dumped(&random_tree(9));
    let mut rng = SimRng::new(1);
    for _ in 0..60 {
        let cut = rng.below(bytes.len() as u64) as usize;
        let error = loaded(&bytes[..cut]).map(drop).unwrap_err();
        assert!(matches!(error, LoadError::Stream(StreamError::Truncated(_))), "{cut}: {error}");
        let mut broken = bytes.clone();
        broken[cut] ^= 1 << rng.below(8);
        let error = loaded(&broken).map(drop).unwrap_err();
        assert!(matches!(error, LoadError::Stream(_)), "{cut}: {error}");
    }
    assert!(matches!(
        loaded(b"no dump at all").map(drop),
        Err(LoadError::Stream(StreamError::Foreign))
    ));
    let mut newer = bytes.clone();
    newer[19] = 9;
    let body = u32::from_le_bytes(newer[..4].try_into().unwrap()) as usize;
    let sum = types::crc32c(&[&[0; 8][..], &[1], &newer[9..9 + body]].concat());
    newer[5..9].copy_from_slice(&sum.to_le_bytes());
    let error = loaded(&newer).map(drop).unwrap_err();
    assert!(matches!(error, LoadError::Stream(StreamError::Version(9))), "{error}");
}

#[test]
fn contradicting_records_are_refused() {
    let mut records = Vec::new();
    let bytes = dumped(&random_tree(3));
    let mut input = &bytes[..];
    let mut reader = Reader::new(&mut input);
    loop {
        records.push(reader.take().unwrap());
        if matches!(records.last(), Some(Record::End { .. })) {
            break;
        }
    }
    let write = |records: &[Record]| {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out);
        records.iter().for_each(|record| writer.put(record).unwrap());
        out
    };
    assert!(write(&records) == bytes);
    let refused = |change: &dyn Fn(&mut Vec<Record>)| {
        let mut changed = records.clone();
        change(&mut changed);
        let error = loaded(&write(&changed)).map(drop).unwrap_err();
        assert!(matches!(error, LoadError::Contradiction(..)), "{error}");
    };
    refused(&|list| drop(list.remove(1)));
    refused(&|list| list.insert(1, list[0].clone()));
    refused(&|list| {
        let at = list.iter().position(|record| matches!(record, Record::Segments { .. })).unwrap();
        list.insert(at, list[at].clone());
    });
    refused(&|list| {
        let end = list.len() - 1;
        list[end] = Record::End { inodes: 1, links: 0, segments: 0 };
    });
    refused(&|list| {
        let end = list.len() - 1;
        list.insert(end, Record::Link { parent: 1, name: b"dir".to_vec(), number: 1 });
    });
    refused(&|list| {
        let end = list.len() - 1;
        list.insert(end, Record::Link { parent: 99_999, name: b"x".to_vec(), number: 1 });
    });
    // A file system that was used is no target.
    let used = random_tree(4);
    let error = now(load(from_ref(&used), &mut &bytes[..])).unwrap_err();
    assert!(matches!(error, LoadError::Target(_)), "{error}");
}

#[test]
fn dump_of_directories_in_a_circle_ends_and_says_what_to_do() {
    for target in ["root", "sister"] {
        let mfs = formatted();
        let new = new_inode(FileKind::Directory);
        run(&mfs, |txn| {
            let dir = txn.names().create(Ino::ROOT, &Name::new(b"dir").unwrap(), &new, None)?;
            let sister =
                txn.names().create(Ino::ROOT, &Name::new(b"sister").unwrap(), &new, None)?;
            let to = if target == "root" { Ino::ROOT } else { sister };
            txn.names().put_link(dir, b"up", to, FileKind::Directory)
        });
        let mut room = [0; 1 << 16];
        let error = now(dump(&[Source::of(&mfs)], &mut &mut room[..])).unwrap_err().to_string();
        assert!(error.contains("\"up\"") && error.contains("fsck --repair"), "{error}");
    }
}

#[test]
fn failed_load_leaves_a_file_system_that_does_not_open() {
    let bytes = dumped(&random_tree(5));
    let zone = |id: u16| PagFormat::whole(PagId(id), Uuid([id as u8; 16]), 10_000);
    let format = FormatOptions {
        name: "volatile".into(),
        uuid: Uuid([7; 16]),
        log_bytes: 4 << 20,
        pags: vec![zone(0), zone(1)],
        features: Features::NONE,
        force: true,
    };
    let world = SimWorld::new(1);
    world.disk("meta", 64 << 20);
    world.run(|env| async move {
        let write = DiskOptions { write: true, exclusive: false };
        let disk = env.open_disk("meta", write).await.unwrap();
        let options = OpenOptions::default();
        Mfs::format(&env, &disk, &format).await.unwrap();
        let cut = load_onto(&env, &[(&disk).into()], options, &mut &bytes[..bytes.len() / 2]).await;
        assert!(matches!(cut, Err(LoadError::Stream(StreamError::Truncated(_)))));
        for read_only in [true, false] {
            let opened = Mfs::open(&env, &disk, OpenOptions { read_only, ..options }).await;
            let error = opened.map(drop).unwrap_err().to_string();
            assert!(error.contains("did not finish") && error.contains("mkfs --force"), "{error}");
        }
        assert!(fsck(&env, &disk, FsckOptions::default()).await.is_err());
        assert!(
            load_onto(&env, &[(&disk).into()], options, &mut &bytes[..]).await.is_err(),
            "without mkfs"
        );
        Mfs::format(&env, &disk, &format).await.unwrap();
        // What the head already shows leaves the file system as it is.
        let here = format.pags[0];
        for (id, start, said) in [(PagId(9), 0, "none of that number"), (here.id, 5, "block 5")] {
            let zones = vec![Zone { server: ShardId(0), id, uuid: here.uuid, start, blocks: 1 }];
            let mut strange = Vec::new();
            Writer::new(&mut strange)
                .put(&Record::Head {
                    content: false,
                    name: b"x".to_vec(),
                    servers: 1,
                    zones,
                    targets: Vec::new(),
                })
                .unwrap();
            let refused =
                load_onto(&env, &[(&disk).into()], options, &mut &strange[..]).await.unwrap_err();
            assert!(refused.to_string().contains(said), "{refused}");
        }
        let (mut strange, zones) = (Vec::new(), Vec::new());
        let targets = Vec::new();
        let head = Record::Head { content: true, name: b"x".to_vec(), servers: 1, zones, targets };
        Writer::new(&mut strange).put(&head).unwrap();
        let refused =
            load_onto(&env, &[(&disk).into()], options, &mut &strange[..]).await.unwrap_err();
        assert!(refused.to_string().contains("inline-data"), "{refused}");
        load_onto(&env, &[(&disk).into()], options, &mut &bytes[..]).await.unwrap();
        let mfs = Mfs::open(&env, &disk, options).await.unwrap();
        assert_eq!(mfs.superblock().features, Features::NONE);
        let mut out = Vec::new();
        dump(&[Source::of(&mfs)], &mut out).await.unwrap();
        assert!(out == bytes);
    });
}

#[test]
fn trailing_bytes_and_impossible_nanoseconds_are_refused() {
    let bytes = dumped(&random_tree(6));
    let longer = [&bytes[..], b"x"].concat();
    let error = loaded(&longer).map(drop).unwrap_err().to_string();
    assert!(error.contains("bytes behind the end"), "{error}");
    let mut input = &bytes[..];
    let mut reader = Reader::new(&mut input);
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out);
    writer.put(&reader.take().unwrap()).unwrap();
    let Record::Inode(mut root) = reader.take().unwrap() else { panic!("the root is first") };
    root.attr.mtime.nanos = 1_000_000_000;
    writer.put(&Record::Inode(root)).unwrap();
    let error = loaded(&out).map(drop).unwrap_err();
    assert!(matches!(error, LoadError::Stream(StreamError::Damaged(1, _))), "{error}");
}

#[test]
fn illegal_names_are_reported_and_nothing_else_is_omitted() {
    let mfs = random_tree(7);
    let whole = now(dump(&[Source::of(&mfs)], &mut Vec::new())).unwrap();
    assert_eq!(whole.left_out_count, 0);
    let legal = Name::new(b"legal").unwrap();
    run(&mfs, |txn| {
        let new = NewInode { symlink: None, ..new_inode(FileKind::Regular) };
        let ino = txn.names().create(Ino::ROOT, &legal, &new, None)?;
        for name in [&b"a/b"[..], b"..", b"zero\0"] {
            txn.names().put_link(Ino::ROOT, name, ino, FileKind::Regular)?;
        }
        Ok(())
    });
    let dumped = now(dump(&[Source::of(&mfs)], &mut Vec::new())).unwrap();
    assert_eq!((dumped.inodes, dumped.links), (whole.inodes + 1, whole.links));
    assert_eq!((dumped.left_out_count, dumped.left_out.len()), (3, 3));
    assert!(dumped.left_out[0].starts_with("\"a/b\" of inode"), "{:?}", dumped.left_out);
}

#[test]
fn inline_data_is_dumped_and_not_counted_as_data_blocks() {
    for size in SlotSize::ALL {
        let mfs = formatted_inline(size);
        run(&mfs, |txn| {
            for (text, len) in [("in the slot", 100), ("in a blob", CONTENT_MAX)] {
                let name = Name::new(text.as_bytes()).unwrap();
                let ino =
                    txn.names().create(Ino::ROOT, &name, &new_inode(FileKind::Regular), None)?;
                txn.layouts().set_content(ino, &vec![b'c'; len])?;
                assert_eq!(txn.names().attr(ino)?.unwrap().blocks, 1);
            }
            Ok(())
        });
        let told = now(dump(&[Source::of(&mfs)], &mut Vec::new())).unwrap();
        assert_eq!((told.inodes, told.damaged_count), (3, 0), "{size:?}: {:?}", told.damaged);
    }
}

#[test]
fn senseless_slot_costs_no_other_name_of_its_block() {
    let mfs = formatted();
    let name = |n: u64| Name::new(format!("n{n}").as_bytes()).unwrap();
    let dir = run(&mfs, |txn| {
        let dir = Name::new(b"dir").unwrap();
        let dir = txn.names().create(Ino::ROOT, &dir, &new_inode(FileKind::Directory), None)?;
        for n in 0..40 {
            txn.names().create(dir, &name(n), &new_inode(FileKind::Fifo), None)?;
        }
        Ok(dir)
    });
    let whole = now(dump(&[Source::of(&mfs)], &mut Vec::new())).unwrap();
    assert_eq!((whole.inodes, whole.damaged_count), (42, 0));
    let block = run(&mfs, |txn| {
        let victim = txn.names().lookup(dir, &name(17))?.unwrap();
        let (spot, _) = txn.names().locate_live(victim)?;
        let data = txn.write(spot.block)?;
        // No kind of an inode has this number.
        data[slot::slot_range(data, spot.place.index()).unwrap().start + 1] = 99;
        Ok(spot.block)
    });
    mfs.forget_indexes();
    let told = now(dump(&[Source::of(&mfs)], &mut Vec::new())).unwrap();
    assert_eq!((told.inodes, told.damaged_count), (41, 1), "{:?}", told.damaged);
    let text = format!("in metadata block {block}");
    assert!(told.damaged[0].contains("/dir") && told.damaged[0].contains(&text), "{told:?}");
}

#[test]
fn dump_with_content_loads_only_into_a_file_system_with_inline_data() {
    let content = |bytes: &[u8]| bytes[23];
    let without = dumped(&random_tree(2));
    assert_eq!(content(&without), 0);
    let mfs = formatted_inline(SlotSize::Bytes512);
    now(load(from_ref(&mfs), &mut &without[..])).unwrap();
    let with = dumped(&mfs);
    assert_eq!(content(&with), 1);
    assert!(matches!(loaded(&with), Err(LoadError::Target(_))));
    let zone = |id: u16| Zone {
        server: ShardId(0),
        id: PagId(id),
        uuid: Uuid([id as u8; 16]),
        start: 0,
        blocks: 10,
    };
    // A file with content after these segments.
    let stream = |content: bool, segments: &[Segment]| {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out);
        let mut put = |record: &Record| writer.put(record).unwrap();
        put(&Record::Head {
            content,
            name: b"x".to_vec(),
            zones: vec![zone(0)],
            servers: 1,
            targets: Vec::new(),
        });
        let attr = run(&mfs, |txn| txn.names().attr(Ino::ROOT)).unwrap();
        let root = Inode {
            server: ShardId(0),
            parent: 0,
            name: Vec::new(),
            attr: Attr { ino: Ino(1), nlink: 0, blocks: 0, size: 0, ..attr },
            target: Vec::new(),
            xattrs: Vec::new(),
        };
        put(&Record::Inode(Box::new(root.clone())));
        let attr = Attr { ino: Ino(2), kind: FileKind::Regular, size: 9000, ..root.attr };
        put(&Record::Inode(Box::new(Inode { parent: 1, name: b"f".to_vec(), attr, ..root })));
        if !segments.is_empty() {
            put(&Record::Segments { number: 2, list: segments.to_vec() });
        }
        put(&Record::Content { number: 2, bytes: vec![1; 9] });
        put(&Record::End { inodes: 2, links: 0, segments: segments.len() as u64 });
        out
    };
    let taken = |bytes: &[u8]| {
        let mfs = formatted_inline(SlotSize::Bytes512);
        now(load(from_ref(&mfs), &mut &bytes[..]))
    };
    let (pag, addr, state) = (PagId(0), PagBlock(1), SegmentState::Written);
    let at = |file: u64| Segment { file: FileBlock(file), len: 1, pag, addr, state };
    taken(&stream(true, &[])).unwrap();
    taken(&stream(true, &[at(1)])).unwrap();
    let error = taken(&stream(true, &[at(0)])).unwrap_err();
    assert!(matches!(error, LoadError::Contradiction(4, _)), "{error}");
    let error = taken(&stream(false, &[])).unwrap_err();
    assert!(matches!(error, LoadError::Stream(StreamError::Damaged(3, _))), "{error}");
}

/// A file that lies in an object, below the root.
fn object_file(mfs: &Mfs, text: &str, record: &ObjectRecord) -> Ino {
    run(mfs, |txn| {
        let name = Name::new(text.as_bytes()).unwrap();
        let ino = txn.names().create(Ino::ROOT, &name, &new_inode(FileKind::Regular), None)?;
        txn.layouts().set_object(ino, record)?;
        Ok(ino)
    })
}

#[test]
fn object_files_and_targets_survive_a_dump_and_a_load() {
    let mfs = random_tree(3);
    assert!(mfs.add_object_files());
    run(&mfs, |txn| {
        for id in [5, 8] {
            txn.space().set_target_address(PagId(id), &format!("host{id}:1"))?;
            txn.space().add_target(PagId(id), Uuid([id as u8; 16]), 500)?;
        }
        Ok(())
    });
    // Ranges that were taken and not used.
    run(&mfs, |txn| txn.space().take_objects());
    let number = run(&mfs, |txn| txn.space().take_objects()).start;
    let targets = vec![PagId(8), PagId(5)];
    let record = ObjectRecord { object: ObjectId(number), part: 16, targets };
    object_file(&mfs, "object", &record);
    let bytes = dumped(&mfs);
    assert_eq!(bytes[19], 2, "the version");
    let copy = loaded(&bytes).unwrap();
    assert!(dumped(&copy) == bytes);
    let (found, next, known) = run(&copy, |txn| {
        let ino = txn.names().lookup(Ino::ROOT, &Name::new(b"object").unwrap())?.unwrap();
        let known = [PagId(5), PagId(8)].map(|id| txn.space().target_address(id));
        Ok((txn.layouts().object(ino)?, txn.space().take_objects()?.start, known))
    });
    assert_eq!((found, next), (Some(record), number + 1));
    assert_eq!(known.map(|address| address.unwrap()), ["host5:1", "host8:1"]);
    copy.forget_indexes();
    assert_eq!(now(check(&copy)).unwrap().problems, []);
    // Without targets in the head there are no objects; with them, their zones are free.
    let head = |targets| Record::Head {
        content: false,
        name: b"x".to_vec(),
        servers: 1,
        zones: Vec::new(),
        targets,
    };
    let taken = TargetZone {
        server: ShardId(0),
        id: PagId(0),
        uuid: Uuid([1; 16]),
        blocks: 9,
        address: Vec::new(),
    };
    let mut strange = Vec::new();
    Writer::new(&mut strange).put(&head(vec![taken])).unwrap();
    let refused = loaded(&strange).map(drop).unwrap_err().to_string();
    assert!(refused.contains("a data zone of that number"), "{refused}");
    let record = ObjectRecord { object: ObjectId(1), part: 1, targets: vec![PagId(5)] };
    let mut strange = Vec::new();
    let mut writer = Writer::new(&mut strange);
    writer.put(&head(Vec::new())).unwrap();
    writer.put(&Record::Object { number: 1, record }).unwrap();
    let refused = loaded(&strange).map(drop).unwrap_err();
    assert!(matches!(refused, LoadError::Stream(StreamError::Damaged(1, _))), "{refused}");
}

#[test]
fn names_on_other_shards_are_left_out_and_said() {
    let mfs = formatted();
    let name = |text: &str| Name::new(text.as_bytes()).unwrap();
    run(&mfs, |txn| txn.names().create(Ino::ROOT, &name("here"), &new_inode(FileKind::Fifo), None));
    let before = dumped(&mfs);
    now(mfs.add_shards()).unwrap();
    let far = |n: u64| Ino(9 << 56 | 5 << 24 | n);
    let (guest, below) = run(&mfs, |txn| {
        txn.names().link_outside(Ino::ROOT, &name("there"), far(1), FileKind::Directory)?;
        let guest = txn.names().create_guest(far(2), &new_inode(FileKind::Directory), None)?;
        let below = txn.names().create(guest, &name("below"), &new_inode(FileKind::Fifo), None)?;
        txn.names().set_outside(below, Some(Outside::Names(2)))?;
        Ok((guest, below))
    });
    let mut out = Vec::new();
    let said = now(dump(&[Source::of(&mfs)], &mut out)).unwrap();
    assert_eq!(out, before, "everything else is in it");
    let wanted = [
        format!("\"there\" in directory 1, which leads to inode {}", far(1)),
        format!("directory {guest}, with all below it, of directory {}", far(2)),
        format!("2 names of inode {below}"),
    ];
    assert_eq!((said.elsewhere, said.elsewhere_count), (wanted.to_vec(), 3));
    assert_eq!((said.left_out_count, said.damaged_count), (0, 0));
}
