//! Exchanged layouts: all kinds of them, what becomes of the old one, and what is refused.

use types::{
    Attr, ClientId, Fault, FileBlock, FileKind, Ino, Name, ObjectId, PagBlock, PagId, Segment,
    SegmentState, Uuid,
};

use super::SWAP_SEGMENTS_MAX;
use crate::format::object::ObjectRecord;
use crate::format::slot::SlotSize;
use crate::fsck::check;
use crate::handle::Mfs;
use crate::testing::{formatted_inline, formatted_inline_near, new_inode, now, run};
use engine::cost::Cost;

const SIZE: u64 = 40 << 20;

/// What a file has, as a reader sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Has {
    segments: Vec<Segment>,
    content: Vec<u8>,
    object: Option<ObjectRecord>,
    blocks: u64,
}

/// A layout that a file gets in a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Empty,
    Segments(u64),
    Content(usize),
    /// Content in a blob, because segments have the room in the slot.
    Both,
    Object(u16),
}

struct World {
    mfs: Mfs,
    client: ClientId,
    objects: std::ops::Range<u64>,
}

impl World {
    fn new(mfs: Mfs) -> World {
        assert!(mfs.add_object_files());
        run(&mfs, |txn| {
            let target = |id: u8| (PagId(id.into()), Uuid([id; 16]));
            (10..42).map(target).try_for_each(|(id, uuid)| txn.space().add_target(id, uuid, 900))
        });
        let client = run(&mfs, |txn| txn.new_client(b"client"));
        let objects = run(&mfs, |txn| txn.space().take_objects());
        World { mfs, client, objects }
    }

    fn file(&mut self, name: Option<&str>, kind: Kind) -> Ino {
        let new = new_inode(FileKind::Regular);
        let name = name.map(|text| Name::new(text.as_bytes()).unwrap());
        let ino = run(&self.mfs, |txn| match &name {
            Some(name) => txn.names().create(Ino::ROOT, name, &new, None),
            None => txn.names().create_orphan(&new, None),
        });
        run(&self.mfs, |txn| {
            let attr = txn.names().attr(ino)?.unwrap();
            txn.names().set_attr(&Attr { size: SIZE, ..attr })
        });
        match kind {
            Kind::Empty => {}
            Kind::Segments(count) => self.map(ino, 0, count),
            Kind::Content(len) => {
                run(&self.mfs, |txn| txn.layouts().set_content(ino, &vec![7; len]))
            }
            Kind::Both => {
                self.map(ino, 1, 3);
                run(&self.mfs, |txn| txn.layouts().set_content(ino, &[8; 99]));
            }
            Kind::Object(width) => {
                let object = ObjectId(self.objects.next().unwrap());
                let targets = (10..10 + width).map(PagId).collect();
                let record = ObjectRecord { object, part: 256, targets };
                run(&self.mfs, |txn| txn.layouts().set_object(ino, &record));
            }
        }
        ino
    }

    /// Maps so many blocks, each a segment of its own.
    fn map(&self, ino: Ino, from: u64, count: u64) {
        let (mfs, client) = (&self.mfs, self.client);
        let (pag, first, _) = run(mfs, |txn| txn.space().grant(client, None, count))[0];
        for at in 0..count {
            let (addr, state) = (PagBlock(first.0 + at), SegmentState::Written);
            let segment = Segment { file: FileBlock(from + 2 * at), len: 1, pag, addr, state };
            run(mfs, |txn| txn.layouts().map(ino, client, segment));
        }
    }

    fn has(&self, ino: Ino) -> Has {
        run(&self.mfs, |txn| {
            Ok(Has {
                segments: txn.layouts().layout(ino, FileBlock(0), usize::MAX)?,
                content: txn.layouts().content(ino)?,
                object: txn.layouts().object(ino)?,
                blocks: txn.names().attr(ino)?.unwrap().blocks,
            })
        })
    }

    fn assert_sound(&self, what: &str) {
        self.mfs.forget_indexes();
        assert_eq!(now(check(&self.mfs)).unwrap().problems, [], "{what}");
    }

    fn fault(&self, one: Ino, other: Ino) -> Fault {
        let ran = now(self.mfs.run(Cost::STEP, |txn| txn.layouts().swap(one, other)));
        ran.map(drop).unwrap_err().fault()
    }
}

#[test]
fn layouts_of_all_kinds_change_places_and_the_old_ones_are_freed() {
    let kinds = [
        Kind::Empty,
        Kind::Segments(2),
        Kind::Segments(700),
        Kind::Content(40),
        Kind::Both,
        Kind::Object(1),
        Kind::Object(32),
    ];
    let formats = [formatted_inline, formatted_inline_near];
    for (format, of_one, of_other) in formats
        .into_iter()
        .flat_map(|format| kinds.map(|one| (format, one)))
        .flat_map(|(format, one)| kinds.map(|other| (format, one, other)))
    {
        let what = format!("{of_one:?} {of_other:?}");
        let mut world = World::new(format(SlotSize::Bytes512));
        let one = world.file(Some("a file with a name of some length"), of_one);
        run(&world.mfs, |txn| txn.names().set_xattr(one, b"user.a", &[b'x'; 100]));
        let other = world.file(None, of_other);
        let attr = run(&world.mfs, |txn| Ok(txn.names().attr(one)?.unwrap()));
        let before = (world.has(one), world.has(other));
        run(&world.mfs, |txn| txn.layouts().swap(one, other));
        assert_eq!((world.has(other), world.has(one)), before, "{what}");
        let now = run(&world.mfs, |txn| Ok(txn.names().attr(one)?.unwrap()));
        assert_eq!(now, Attr { blocks: now.blocks, ..attr }, "{what}: all else stays");
        let kept = run(&world.mfs, |txn| txn.names().xattr(one, b"user.a"));
        assert_eq!(kept, Some(vec![b'x'; 100]), "{what}");
        world.assert_sound(&what);
        while !run(&world.mfs, |txn| txn.names().free_inode_step(other, 64)) {}
        let doomed = run(&world.mfs, |txn| txn.space().doomed_count(1000));
        let width = before.0.object.map_or(0, |record| record.targets.len());
        assert_eq!(doomed, width, "{what}: the old object is destroyed, and no other");
        let pags = run(&world.mfs, |txn| txn.space().pags());
        let freed: u64 = pags.iter().map(|pag| pag.freed).sum();
        let mapped: u64 = before.0.segments.iter().map(|segment| segment.len).sum();
        assert_eq!(freed, mapped, "{what}: the old blocks are freed, and no others");
        assert_eq!(world.has(one), before.1, "{what}");
        world.assert_sound(&what);
    }
}

#[test]
fn files_of_different_sizes_or_kinds_keep_their_layouts() {
    let mut world = World::new(formatted_inline(SlotSize::Bytes512));
    let one = world.file(Some("one"), Kind::Segments(3));
    let other = world.file(None, Kind::Object(2));
    let before = (world.has(one), world.has(other));
    run(&world.mfs, |txn| {
        let attr = txn.names().attr(other)?.unwrap();
        txn.names().set_attr(&Attr { size: SIZE - 1, ..attr })
    });
    assert_eq!(world.fault(one, other), Fault::Invalid);
    assert_eq!(world.fault(one, one), Fault::Invalid);
    assert_eq!(world.fault(one, Ino::ROOT), Fault::Invalid);
    assert_eq!((world.has(one), world.has(other)), before);
    world.assert_sound("refused");
}

#[test]
fn exchange_is_one_transaction_of_the_size_of_a_step() {
    let most = SWAP_SEGMENTS_MAX as u64;
    let mut world = World::new(formatted_inline(SlotSize::Bytes512));
    let one = world.file(Some("one"), Kind::Segments(most));
    let other = world.file(None, Kind::Segments(most));
    let before = (world.has(one), world.has(other));
    run(&world.mfs, |txn| txn.layouts().swap(one, other));
    assert_eq!((world.has(other), world.has(one)), before);
    let larger = world.file(Some("larger"), Kind::Segments(most + 20));
    assert_eq!(world.fault(larger, other), Fault::TooBig);
    assert_eq!(world.fault(other, larger), Fault::TooBig);
    world.assert_sound("refused");
}
