//! Object files: what they refuse, what moves with them, and what their end leaves to do.

use types::{Attr, FileBlock, FileKind, Ino, Name, ObjectId, PagId, Uuid};

use crate::format::object::ObjectRecord;
use crate::fsck::check;
use crate::handle::Mfs;
use crate::testing::{formatted_inline, new_inode, now, run};
use engine::cost::Cost;
use engine::error::Stop;
use types::Fault;

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn world() -> Mfs {
    let mfs = formatted_inline(crate::format::slot::SlotSize::Bytes512);
    assert!(mfs.add_object_files());
    run(&mfs, |txn| {
        (10..42).try_for_each(|id| txn.space().add_target(PagId(id), Uuid([id as u8; 16]), 900))
    });
    mfs
}

fn record(object: u64, width: u16) -> ObjectRecord {
    let targets = (10..10 + width).map(PagId).collect();
    ObjectRecord { object: ObjectId(object), part: 256, targets }
}

fn create(mfs: &Mfs, text: &str) -> Ino {
    let new = new_inode(FileKind::Regular);
    run(mfs, |txn| txn.names().create(Ino::ROOT, &name(text), &new, None))
}

fn fault<T>(mfs: &Mfs, body: impl FnMut(&mut crate::Txn<'_>) -> Result<T, Stop>) -> Fault {
    now(mfs.run(Cost::STEP, body)).map(drop).unwrap_err().fault()
}

#[test]
fn object_file_has_no_segments_and_no_content() {
    let mfs = world();
    let ino = create(&mfs, "object");
    let first = run(&mfs, |txn| txn.space().take_objects()).start;
    for bad in [record(0, 1), record(first, 33)] {
        assert_eq!(fault(&mfs, |txn| txn.layouts().set_object(ino, &bad)), Fault::Invalid);
    }
    let device = ObjectRecord { targets: vec![PagId(0)], ..record(first, 1) };
    assert_eq!(fault(&mfs, |txn| txn.layouts().set_object(ino, &device)), Fault::Invalid);
    run(&mfs, |txn| txn.layouts().set_object(ino, &record(first, 2)));
    assert_eq!(fault(&mfs, |txn| txn.layouts().set_object(ino, &record(2, 2))), Fault::Invalid);
    assert_eq!(fault(&mfs, |txn| txn.layouts().set_content(ino, b"x")), Fault::Invalid);
    let marked = |txn: &mut crate::Txn<'_>| txn.layouts().mark_written(ino, FileBlock(0), 1);
    assert_eq!(fault(&mfs, marked), Fault::Invalid);
    assert_eq!(run(&mfs, |txn| txn.layouts().content_room(ino)), 0);
    assert!(run(&mfs, |txn| txn.layouts().unmap(ino, FileBlock(0), FileBlock(9))));
    let blocks = run(&mfs, |txn| {
        let attr = txn.names().attr(ino)?.unwrap();
        txn.names().set_attr(&Attr { size: 4097, ..attr })?;
        Ok(txn.names().attr(ino)?.unwrap().blocks)
    });
    assert_eq!(blocks, 2);
    let small = create(&mfs, "content");
    run(&mfs, |txn| txn.layouts().set_content(small, b"x"));
    assert_eq!(fault(&mfs, |txn| txn.layouts().set_object(small, &record(3, 1))), Fault::Invalid);
    mfs.forget_indexes();
    assert_eq!(now(check(&mfs)).unwrap().problems, []);
}

#[test]
fn object_record_fits_beside_every_name_and_attribute() {
    let mfs = world();
    let numbers = run(&mfs, |txn| txn.space().take_objects());
    let (long, other) = ("n".repeat(255), "m".repeat(255));
    for (number, attribute) in numbers.zip([0, 50, 100, 200, 300]) {
        let ino = create(&mfs, "short");
        run(&mfs, |txn| txn.names().set_xattr(ino, b"user.a", &vec![b'x'; attribute]));
        let record = record(number, 32);
        run(&mfs, |txn| txn.layouts().set_object(ino, &record));
        run(&mfs, |txn| txn.names().rename(Ino::ROOT, &name("short"), Ino::ROOT, &name(&long)));
        run(&mfs, |txn| txn.names().set_xattr(ino, b"user.b", &[b'y'; 90]));
        run(&mfs, |txn| txn.names().rename(Ino::ROOT, &name(&long), Ino::ROOT, &name(&other)));
        let found = run(&mfs, |txn| {
            let value = txn.names().xattr(ino, b"user.a")?.map(|value| value.len());
            Ok((txn.layouts().object(ino)?, value))
        });
        assert_eq!(found, (Some(record), Some(attribute)));
        mfs.forget_indexes();
        assert_eq!(now(check(&mfs)).unwrap().problems, []);
        let removed = run(&mfs, |txn| txn.names().remove_name(Ino::ROOT, &name(&other)));
        run(&mfs, |txn| {
            let attr = txn.names().attr(removed)?.unwrap();
            txn.names().set_attr(&Attr { nlink: 0, ..attr })?;
            txn.names().free_inode_step(removed, 9)
        });
    }
    assert_eq!(run(&mfs, |txn| txn.space().doomed_count(1000)), 5 * 32);
}

#[test]
fn end_of_a_file_dooms_its_object_until_each_target_has_destroyed_it() {
    let mfs = world();
    let first = run(&mfs, |txn| txn.space().take_objects()).start;
    let ino = create(&mfs, "object");
    run(&mfs, |txn| txn.layouts().set_object(ino, &record(first, 2)));
    assert_eq!(run(&mfs, |txn| txn.space().doomed_count(9)), 0);
    assert_eq!(run(&mfs, |txn| txn.names().free_with_name(Ino::ROOT, &name("object"))), Some(ino));
    for id in [10, 11] {
        let doomed = run(&mfs, |txn| txn.space().doomed(PagId(id), 9));
        assert_eq!(doomed, [ObjectId(first)]);
    }
    assert_eq!(run(&mfs, |txn| txn.space().doomed(PagId(12), 9)), []);
    run(&mfs, |txn| txn.space().destroyed(PagId(10), &[ObjectId(first)]));
    assert_eq!(run(&mfs, |txn| txn.space().doomed(PagId(10), 9)), []);
    assert_eq!(run(&mfs, |txn| txn.space().doomed_count(9)), 1);
    let next = run(&mfs, |txn| txn.space().take_objects()).start;
    assert!(next > first + 1000);
    mfs.forget_indexes();
    assert_eq!(now(check(&mfs)).unwrap().problems, []);
}
