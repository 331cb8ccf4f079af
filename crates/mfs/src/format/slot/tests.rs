use super::*;
use types::{FileBlock, PagBlock, PagId, SegmentState};

fn attr() -> Attr {
    let time = |n: i64| Timestamp { seconds: -n, nanos: n as u32 };
    Attr {
        ino: Ino(77),
        kind: FileKind::Regular,
        mode: 0o4755,
        nlink: 3,
        uid: 1000,
        gid: 1001,
        rdev: 0,
        size: 1 << 40,
        blocks: 9,
        atime: time(1),
        mtime: time(2),
        ctime: time(3),
        btime: time(4),
        spread: false,
        version: u64::MAX,
    }
}

#[test]
fn attributes_round_trip_through_a_block() {
    let mut slot = Slot::default();
    slot.set_next_reuse(7);
    slot.set_inode(b"name", &attr());
    let mut block = [0; BLOCK];
    slot.store(&mut block, 7);
    let back = Slot::load(&block, 7);
    back.check().unwrap();
    assert_eq!((back.attr(), back.name(), back.next_reuse()), (attr(), &b"name"[..], 7));
    assert!(block[..HEADER].iter().all(|&b| b == 0));
}

#[test]
fn only_directories_are_spread() {
    let mut slot = Slot::default();
    slot.set_inode(b"name", &Attr { kind: FileKind::Directory, spread: true, ..attr() });
    slot.check().unwrap();
    assert!(slot.attr().spread && !slot.clear_unknown_flags());
    slot.set_inode(b"name", &Attr { spread: true, ..attr() });
    assert!(!slot.attr().spread);
    slot.flag(FLAG_SPREAD, true);
    assert!(slot.check().is_err() && slot.clear_unknown_flags());
    slot.check().unwrap();
}

#[test]
fn larger_slots_are_fewer_and_numbers_without_a_slot_are_retired() {
    for (size, slots, room) in SlotSize::ALL
        .into_iter()
        .zip([8, 4, 2, 1])
        .zip([372, 880, 1896, 3928])
        .map(|((a, b), c)| (a, b, c))
    {
        assert_eq!((size.per_block(), size.share()), (slots, BLOCK / slots as usize));
        let mut block = [0; BLOCK];
        block[4] = size.kind() as u8;
        for index in 0..slots {
            let mut slot = Slot::load(&block, index);
            slot.check().unwrap();
            slot.set_inode(b"name", &attr());
            assert_eq!(slot.xattr_room(), room - 4);
            slot.set_xattrs(&vec![b'x'; room - 4]);
            slot.store(&mut block, index);
            let back = Slot::load(&block, index);
            back.check().unwrap();
            assert_eq!((back.attr(), back.xattrs().len()), (attr(), room - 4));
            assert!(Slot::named_at(&block, index, b"name"));
            assert!(Slot::holds_at(&block, index, Ino(77)));
        }
        let whole = block;
        for index in slots..SLOTS_PER_BLOCK {
            let none = Slot::load(&block, index);
            assert_eq!((none.state(), none.next_reuse()), (SlotState::Empty, RETIRED));
            assert!(!Slot::named_at(&block, index, b"name"));
            assert!(!Slot::holds_at(&block, index, Ino(77)));
            Slot::default().store(&mut block, index);
        }
        assert!(block == whole);
    }
}

#[test]
fn parts_of_the_tail_do_not_disturb_each_other() {
    let mut slot = Slot::default();
    slot.set_inode(&[b'n'; 255], &attr());
    slot.set_xattrs(b"xattrs");
    let room = slot.segment_room(255);
    assert_eq!(room, 4);
    let segments: Vec<Segment> = (0..room as u64)
        .map(|n| Segment {
            file: FileBlock(n * 10),
            len: 5,
            pag: PagId(n as u16),
            addr: PagBlock(1 << 60),
            state: SegmentState::Unwritten,
        })
        .collect();
    slot.set_segments(&segments);
    slot.set_name(b"short");
    slot.check().unwrap();
    assert_eq!(slot.segments(), segments);
    assert_eq!((slot.name(), slot.xattrs()), (&b"short"[..], &b"xattrs"[..]));
    slot.clear();
    assert!(slot == Slot::default());
}

#[test]
fn slot_check_of_any_bytes_does_not_panic() {
    let mut seed = 1u64;
    for round in 0..20_000u32 {
        let mut bytes = [0; SLOT];
        for byte in &mut bytes {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (seed >> 56) as u8;
        }
        bytes[0] = (round % 4) as u8;
        let slot = Slot(Bytes::Ordinary(bytes));
        let _ = slot.check();
        let _ = slot.object();
        let _ = (slot.attr(), slot.name(), slot.xattrs(), slot.payload(), slot.segments());
    }
}
