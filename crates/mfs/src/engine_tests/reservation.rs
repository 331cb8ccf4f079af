//! The reservation for replies: full devices have room for them, and they take no other blocks.

use env::DiskOptions;
use env::sim::SimWorld;
use types::{Attr, ClientId, Fault, FileKind, Ino, Name};

use types::limits::SESSIONS_MAX;

use crate::handle::Mfs;
use crate::open::OpenOptions;
use crate::testing::{formatted_for_images, formatted_in, image_of, new_inode, now, run};
use crate::txn::Txn;
use engine::alloc::reservation::{
    BLOCKS_PER_CLIENT, NODES_PER_CLIENT, REPLY_BLOCKS, REPLY_SLOTS, ReplyReservation,
    expected_clients,
};
use engine::clients::{CLIENTS, REPLIES};
use engine::cost::Cost;
use engine::error::Stop;
use engine::error::StoreError;
use engine::format::features::Features;
use engine::format::reply::REPLY_MAX;
use engine::store::reservation::STEP;

fn name(number: u64) -> Name {
    Name::new(format!("file{number}").as_bytes()).unwrap()
}

/// Creates files in a new directory until the device is full; returns the directory and their
/// number.
fn fill(mfs: &Mfs) -> (Ino, u64) {
    let make = |dir: Ino, name: &Name, kind| {
        now(mfs.run(Cost::SMALL, |txn| txn.names().create(dir, name, &new_inode(kind), None)))
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

/// Removes the name as if a client had the file open: the inode is an orphan until it is freed.
fn unlink(txn: &mut Txn<'_>, dir: Ino, number: u64) -> Result<(), Stop> {
    let ino = txn.names().remove_name(dir, &name(number))?;
    let attr = txn.names().attr(ino)?.expect("it is there");
    txn.names().set_attr(&Attr { nlink: 0, ..attr })
}

fn free_orphans(mfs: &Mfs) {
    for ino in run(mfs, |txn| txn.names().orphans(Ino::NONE, 9)) {
        while !run(mfs, |txn| txn.names().free_inode_step(ino, 64)) {}
    }
}

fn register(mfs: &Mfs) -> Result<ClientId, Fault> {
    let made = now(mfs.run(Cost::DELETE, |txn| txn.new_client(&[b'c'; 900])));
    made.map(|made| made.0).map_err(|error| error.fault())
}

fn unregister(mfs: &Mfs, client: ClientId) {
    while !run(mfs, |txn| txn.space().remove_client(client)) {}
}

fn reservation(mfs: &Mfs) -> ReplyReservation {
    mfs.reply_reservation()
}

fn entries(mfs: &Mfs) -> (u64, u64) {
    (now(mfs.count(CLIENTS)).unwrap(), now(mfs.count(REPLIES)).unwrap())
}

#[test]
fn full_device_stores_all_replies_and_can_free_everything() {
    let mfs = formatted_in(4000);
    let clients: Vec<ClientId> = (0..20).map(|_| register(&mfs).unwrap()).collect();
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
    assert_eq!((reservation(&mfs).clients, reservation(&mfs).replies), entries(&mfs));
    clients.into_iter().for_each(|client| unregister(&mfs, client));
    assert_eq!((reservation(&mfs).clients, reservation(&mfs).replies), (0, 0));
    assert_eq!(entries(&mfs), (0, 0));
}

#[test]
fn client_is_refused_until_there_is_room_for_its_replies() {
    let mfs = formatted_in(4000);
    let expected = expected_clients(4000);
    let (dir, files) = fill(&mfs);
    let clients: Vec<ClientId> = (0..expected).map(|_| register(&mfs).unwrap()).collect();
    let before = reservation(&mfs);
    assert_eq!(register(&mfs), Err(Fault::NoSpace));
    assert_eq!(reservation(&mfs), before, "a refused client has no reservation");
    unregister(&mfs, clients[0]);
    assert!(register(&mfs).is_ok());
    assert_eq!(register(&mfs), Err(Fault::NoSpace));
    for number in 0..files {
        if register(&mfs).is_ok() {
            assert!(number > BLOCKS_PER_CLIENT, "{number} files are not enough room");
            return;
        }
        run(&mfs, |txn| unlink(txn, dir, number));
        free_orphans(&mfs);
    }
    panic!("new clients are refused though all files are freed");
}

#[test]
fn reserved_blocks_go_to_replies_only() {
    let mfs = formatted_in(4000);
    for cost in [Cost::SMALL, Cost::DELETE] {
        let taken = now(mfs.run(cost, |txn| {
            while txn.alloc_meta(1, None).is_ok() {}
            Ok((txn.meta_space().1, txn.reply_reservation().blocks()))
        }));
        let (left, reserved) = taken.unwrap().0;
        let reserve = if cost == Cost::SMALL { 4000 / 64 } else { 0 };
        assert_eq!(
            (left, reserved),
            (
                expected_clients(4000) * BLOCKS_PER_CLIENT + reserve,
                expected_clients(4000) * BLOCKS_PER_CLIENT
            )
        );
    }
}

#[test]
fn reservation_is_unchanged_by_a_failed_transaction() {
    let mfs = formatted_in(4000);
    let client = register(&mfs).unwrap();
    let before = reservation(&mfs);
    let failed: Result<((), _), _> = now(mfs.run(Cost::STEP, |txn| {
        txn.new_client(b"another")?;
        txn.set_reply(client, 0, 1, b"")?;
        Err(Stop::Fault(Fault::Exists))
    }));
    assert_eq!(failed.unwrap_err().fault(), Fault::Exists);
    run(&mfs, |_| Ok(()));
    assert_eq!(reservation(&mfs), before);
    run(&mfs, |txn| txn.set_reply(client, 0, 1, b""));
    run(&mfs, |txn| txn.set_reply(client, 2, 1, b""));
    assert_eq!(reservation(&mfs), before.with(0, 1), "one block for both replies");
    let beyond = now(mfs.run(Cost::STEP, |txn| txn.set_reply(client, REPLY_SLOTS, 1, b"")));
    assert_eq!(beyond.unwrap_err().fault(), Fault::Invalid);
}

#[test]
fn reservation_is_the_same_after_reopening() {
    let mfs = formatted_for_images(4000, Features::NONE);
    // More than an opening counts in one transaction.
    let clients: Vec<ClientId> = (0..30).map(|_| register(&mfs).unwrap()).collect();
    for slot in 0..REPLY_SLOTS {
        for &client in clients.iter().take(25) {
            run(&mfs, |txn| txn.set_reply(client, slot, 1, b"x"));
        }
    }
    unregister(&mfs, clients[3]);
    assert!(reservation(&mfs).replies > STEP as u64);
    let world = SimWorld::new(1);
    let before = reservation(&mfs);
    world.attach("meta", &image_of(&mfs));
    world.run(|env| async move {
        let open = || async {
            let options = DiskOptions { write: true, exclusive: false };
            let disk = env.open_disk("meta", options).await.unwrap();
            Mfs::open(&env, &disk, OpenOptions::default()).await.unwrap()
        };
        let mfs = open().await;
        assert_eq!(reservation(&mfs), before);
        let changed = mfs.run(Cost::STEP, |txn| {
            txn.new_client(b"late")?;
            txn.set_reply(clients[28], 5, 1, b"late")
        });
        mfs.wait_durable(changed.await.unwrap().1).await.unwrap();
        let before = reservation(&mfs);
        // The store is not closed, so the next opening redoes the log.
        drop(mfs);
        assert_eq!(reservation(&open().await), before);
    });
}

#[test]
fn device_filled_without_a_reservation_can_free_everything() {
    let mfs = formatted_in(4000);
    mfs.set_reply_reservation(ReplyReservation::default());
    let (dir, files) = fill(&mfs);
    let usage = mfs.usage();
    let mut new = ReplyReservation::new(4000, 0, 0);
    new.set_shortfall(usage.blocks_free, usage.blocks_set_aside);
    assert_eq!(new.blocks(), 0, "only the reserve is free");
    mfs.set_reply_reservation(new);
    let client = register(&mfs).unwrap();
    for number in 0..files {
        now(mfs.run(Cost::DELETE, |txn| {
            unlink(txn, dir, number)?;
            txn.set_reply(client, number as u32 % REPLY_SLOTS, 1, b"")
        }))
        .unwrap();
        free_orphans(&mfs);
    }
    assert_eq!(reservation(&mfs).shortfall, 0, "freed blocks are reserved");
    assert_eq!(
        reservation(&mfs).blocks(),
        expected_clients(4000) * BLOCKS_PER_CLIENT - REPLY_BLOCKS
    );
}

#[test]
fn expected_clients_grow_with_the_device() {
    let of_bytes = |bytes: u64| expected_clients(bytes >> 12);
    assert_eq!([100, 255, 256, 1000, 1024].map(expected_clients), [0, 0, 1, 3, 4]);
    assert_eq!([64u64 << 20, 1 << 30, 1 << 34].map(of_bytes), [4, 64, 1024]);
    assert_eq!(of_bytes(1 << 44), SESSIONS_MAX as u64);
}

#[test]
fn reply_tree_fits_in_its_reservation() {
    /// Fewest entries that a split leaves in each half, if entries are as large as child entries.
    const LEAST: u64 = (4048 / 20) / 8;
    for clients in 1..=4 * SESSIONS_MAX as u64 {
        let mut level = clients * REPLY_BLOCKS / LEAST;
        let mut nodes = level.max(1);
        while level > 1 {
            level /= LEAST;
            nodes += level.max(1);
        }
        assert!(nodes <= clients * NODES_PER_CLIENT, "{clients} clients: {nodes} nodes");
    }
}
