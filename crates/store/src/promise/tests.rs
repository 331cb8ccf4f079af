//! Replies find room on full devices, and leave others theirs.

use env::DiskOptions;
use env::sim::SimWorld;
use types::{Attr, ClientId, Fault, FileKind, Ino, Name};

use super::*;
use crate::error::Stop;
use crate::features::Features;
use crate::format::reply::REPLY_MAX;
use crate::open::OpenOptions;
use crate::testing::{formatted_for_images, formatted_in, image_of, new_inode, now, run};
use crate::txn::Txn;

fn name(number: u64) -> Name {
    Name::new(format!("file{number}").as_bytes()).unwrap()
}

/// Files in a directory of their own until nothing more fits; how many.
fn fill(mfs: &Mfs) -> (Ino, u64) {
    let make = |dir: Ino, name: &Name, kind| {
        now(mfs.run(Cost::SMALL, |txn| txn.create(dir, name, &new_inode(kind), None)))
            .map(|made| made.0)
    };
    let dir = make(Ino::ROOT, &Name::new(b"dir").unwrap(), FileKind::Directory).unwrap();
    let mut files = 0;
    loop {
        match make(dir, &name(files), FileKind::Regular) {
            Ok(_) => files += 1,
            Err(StoreError::Fault(Fault::NoSpace)) => return (dir, files),
            Err(error) => panic!("{error}"),
        }
    }
}

/// The name is removed as if somebody had the file open: it lies in the attic until it is freed.
fn unlink(txn: &mut Txn<'_>, dir: Ino, number: u64) -> Result<(), Stop> {
    let ino = txn.remove_name(dir, &name(number))?;
    let attr = txn.attr(ino)?.expect("it is there");
    txn.set_attr(&Attr { nlink: 0, ..attr })
}

fn free_orphans(mfs: &Mfs) {
    for ino in run(mfs, |txn| txn.orphans(Ino::NONE, 9)) {
        while !run(mfs, |txn| txn.free_inode_step(ino, 64)) {}
    }
}

fn enrol(mfs: &Mfs) -> Result<ClientId, Fault> {
    let made = now(mfs.run(Cost::DELETE, |txn| txn.new_client(&[b'c'; 900])));
    made.map(|made| made.0).map_err(|error| error.fault())
}

fn leave(mfs: &Mfs, client: ClientId) {
    while !run(mfs, |txn| txn.remove_client(client)) {}
}

fn promise(mfs: &Mfs) -> Promise {
    mfs.inner.state.borrow().space.promise
}

fn entries(mfs: &Mfs) -> (u64, u64) {
    (now(mfs.count(CLIENTS)).unwrap(), now(mfs.count(REPLIES)).unwrap())
}

#[test]
fn a_full_device_keeps_all_replies_and_lets_go_of_everything() {
    let mfs = formatted_in(4000);
    let clients: Vec<ClientId> = (0..20).map(|_| enrol(&mfs).unwrap()).collect();
    let (dir, files) = fill(&mfs);
    let slots = (0..REPLY_SLOTS).flat_map(|slot| clients.iter().map(move |&it| (it, slot)));
    let mut slots = slots.cycle();
    assert!(files > u64::from(REPLY_SLOTS) * 20, "{files}");
    for number in 0..files {
        let (client, slot) = slots.next().unwrap();
        let removed = now(mfs.run(Cost::DELETE, |txn| {
            unlink(txn, dir, number)?;
            txn.set_reply(client, slot, number as u32, &[7; REPLY_MAX])
        }));
        removed.unwrap_or_else(|error| panic!("{number} of {files}: {error}"));
        free_orphans(&mfs);
    }
    assert_eq!(entries(&mfs), (20, 20 * REPLY_BLOCKS));
    assert_eq!((promise(&mfs).clients, promise(&mfs).replies), entries(&mfs));
    clients.into_iter().for_each(|client| leave(&mfs, client));
    assert_eq!((promise(&mfs).clients, promise(&mfs).replies), (0, 0));
    assert_eq!(entries(&mfs), (0, 0));
}

#[test]
fn who_finds_no_room_for_replies_is_refused_until_somebody_leaves_or_removes_something() {
    let mfs = formatted_in(4000);
    let expected = expected(4000);
    let (dir, files) = fill(&mfs);
    let clients: Vec<ClientId> = (0..expected).map(|_| enrol(&mfs).unwrap()).collect();
    let before = promise(&mfs);
    assert_eq!(enrol(&mfs), Err(Fault::NoSpace));
    assert_eq!(promise(&mfs), before, "who is refused is promised nothing");
    leave(&mfs, clients[0]);
    assert!(enrol(&mfs).is_ok());
    assert_eq!(enrol(&mfs), Err(Fault::NoSpace));
    for number in 0..files {
        if enrol(&mfs).is_ok() {
            assert!(number > EACH, "{number} files are not enough room");
            return;
        }
        run(&mfs, |txn| unlink(txn, dir, number));
        free_orphans(&mfs);
    }
    panic!("nobody may come though everything is free");
}

#[test]
fn what_is_promised_goes_to_nobody_else() {
    let mfs = formatted_in(4000);
    for cost in [Cost::SMALL, Cost::DELETE] {
        let taken = now(mfs.run(cost, |txn| {
            while txn.alloc_meta(1, None).is_ok() {}
            Ok((txn.meta_space().1, txn.promise().blocks()))
        }));
        let (left, promised) = taken.unwrap().0;
        let reserve = if cost == Cost::SMALL { 4000 / 64 } else { 0 };
        assert_eq!((left, promised), (expected(4000) * EACH + reserve, expected(4000) * EACH));
    }
}

#[test]
fn a_transaction_that_fails_changes_nothing_of_what_is_promised() {
    let mfs = formatted_in(4000);
    let client = enrol(&mfs).unwrap();
    let before = promise(&mfs);
    let failed: Result<((), _), _> = now(mfs.run(Cost::STEP, |txn| {
        txn.new_client(b"another")?;
        txn.set_reply(client, 0, 1, b"")?;
        Err(Stop::Fault(Fault::Exists))
    }));
    assert_eq!(failed.unwrap_err().fault(), Fault::Exists);
    run(&mfs, |_| Ok(()));
    assert_eq!(promise(&mfs), before);
    run(&mfs, |txn| txn.set_reply(client, 0, 1, b""));
    run(&mfs, |txn| txn.set_reply(client, 2, 1, b""));
    assert_eq!(promise(&mfs), before.with(0, 1), "one block, kept for both");
    let beyond = now(mfs.run(Cost::STEP, |txn| txn.set_reply(client, REPLY_SLOTS, 1, b"")));
    assert_eq!(beyond.unwrap_err().fault(), Fault::Invalid);
}

#[test]
fn an_opening_promises_what_was_promised_before() {
    let mfs = formatted_for_images(4000, Features::USUAL);
    // More than an opening counts at once.
    let clients: Vec<ClientId> = (0..30).map(|_| enrol(&mfs).unwrap()).collect();
    for slot in 0..REPLY_SLOTS {
        for &client in clients.iter().take(25) {
            run(&mfs, |txn| txn.set_reply(client, slot, 1, b"x"));
        }
    }
    leave(&mfs, clients[3]);
    assert!(promise(&mfs).replies > STEP as u64);
    let world = SimWorld::new(1);
    let before = promise(&mfs);
    world.attach("meta", &image_of(&mfs));
    world.run(|env| async move {
        let open = || async {
            let options = DiskOptions { write: true, exclusive: false };
            let disk = env.open_disk("meta", options).await.unwrap();
            Mfs::open(&env, &disk, OpenOptions::default()).await.unwrap()
        };
        let mfs = open().await;
        assert_eq!(promise(&mfs), before);
        let changed = mfs.run(Cost::STEP, |txn| {
            txn.new_client(b"late")?;
            txn.set_reply(clients[28], 5, 1, b"late")
        });
        mfs.wait_durable(changed.await.unwrap().1).await.unwrap();
        let before = promise(&mfs);
        // It is not closed: the log is redone.
        drop(mfs);
        assert_eq!(promise(&open().await), before);
    });
}

#[test]
fn what_was_full_before_anything_was_promised_lets_go_of_everything() {
    let mfs = formatted_in(4000);
    mfs.inner.state.borrow_mut().space.promise = Promise::default();
    let (dir, files) = fill(&mfs);
    {
        let space = &mut mfs.inner.state.borrow_mut().space;
        space.promise = Promise::new(4000, 0, 0);
        space.promise.begin(space.total_free(), space.reserve);
        assert_eq!(space.promise.blocks(), 0, "all that is free is the reserve");
    }
    let client = enrol(&mfs).unwrap();
    for number in 0..files {
        now(mfs.run(Cost::DELETE, |txn| {
            unlink(txn, dir, number)?;
            txn.set_reply(client, number as u32 % REPLY_SLOTS, 1, b"")
        }))
        .unwrap();
        free_orphans(&mfs);
    }
    assert_eq!(promise(&mfs).lacking, 0, "what became free is promised");
    assert_eq!(promise(&mfs).blocks(), expected(4000) * EACH - REPLY_BLOCKS);
}

#[test]
fn large_devices_expect_more_clients() {
    let of_bytes = |bytes: u64| expected(bytes >> 12);
    assert_eq!([100, 255, 256, 1000, 1024].map(expected), [0, 0, 1, 3, 4]);
    assert_eq!([64u64 << 20, 1 << 30, 1 << 34].map(of_bytes), [4, 64, 1024]);
    assert_eq!(of_bytes(1 << 44), SESSIONS_MAX as u64);
}

#[test]
fn the_tree_of_replies_takes_no_more_than_is_promised_for_it() {
    /// What a split leaves in each half at least: as many entries as children fit in a node.
    const LEAST: u64 = (4048 / 20) / 8;
    for clients in 1..=4 * SESSIONS_MAX as u64 {
        let mut level = clients * REPLY_BLOCKS / LEAST;
        let mut nodes = level.max(1);
        while level > 1 {
            level /= LEAST;
            nodes += level.max(1);
        }
        assert!(nodes <= clients * NODES, "{clients} clients: {nodes} nodes");
    }
}
