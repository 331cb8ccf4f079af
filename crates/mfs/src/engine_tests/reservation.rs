//! Clients and their replies on full devices: replies need no room, and enrolments have theirs.

use env::DiskOptions;
use env::sim::SimWorld;
use types::{Attr, ClientId, Fault, FileKind, Ino, Name};

use types::limits::SESSIONS_MAX;

use crate::handle::Mfs;
use crate::open::OpenOptions;
use crate::testing::{formatted_for_images, formatted_in, image_of, new_inode, now, run};
use crate::txn::Txn;
use engine::alloc::reservation::{BLOCKS_PER_CLIENT, ClientReservation, expected_clients, nodes};
use engine::clients::{CLIENTS, REPLIES};
use engine::cost::Cost;
use engine::error::Stop;
use engine::error::StoreError;
use engine::format::features::Features;
use engine::format::reply::{REPLY_MAX, REPLY_SLOTS, SHORT_REPLY_MAX, short_key};
use engine::store::reservation::STEP;

fn name(number: u64) -> Name {
    Name::new(format!("file{number}").as_bytes()).unwrap()
}

fn make(mfs: &Mfs, dir: Ino, name: &Name, kind: FileKind) -> Result<Ino, StoreError> {
    now(mfs.run(Cost::SMALL, |txn| txn.names().create(dir, name, &new_inode(kind), None)))
        .map(|made| made.0)
}

/// Creates files in a new directory until the device is full; returns the directory and their
/// number.
fn fill(mfs: &Mfs) -> (Ino, u64) {
    fill_more(mfs, 0)
}

fn fill_more(mfs: &Mfs, round: u64) -> (Ino, u64) {
    let dir = Name::new(format!("dir{round}").as_bytes()).unwrap();
    let dir = make(mfs, Ino::ROOT, &dir, FileKind::Directory).unwrap();
    let mut files = 0;
    loop {
        match make(mfs, dir, &name(files), FileKind::Regular) {
            Ok(_) => files += 1,
            Err(StoreError::Fault(Fault::NoSpace)) => return (dir, files),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Creates a file under a name that [`fill`] does not use.
fn make_file(mfs: &Mfs, dir: Ino) -> Result<Ino, StoreError> {
    let free = run(mfs, |txn| Ok(txn.meta_space().1));
    for number in 0.. {
        let name = Name::new(format!("more{free}-{number}").as_bytes()).unwrap();
        match make(mfs, dir, &name, FileKind::Regular) {
            Err(StoreError::Fault(Fault::Exists)) => {}
            made => return made,
        }
    }
    unreachable!("some name is free")
}

fn run_delete<T>(mfs: &Mfs, body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> T {
    now(mfs.run(Cost::DELETE, body)).unwrap().0
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

fn reservation(mfs: &Mfs) -> ClientReservation {
    mfs.client_reservation()
}

fn entries(mfs: &Mfs) -> (u64, u64) {
    (now(mfs.count(CLIENTS)).unwrap(), now(mfs.count(REPLIES)).unwrap())
}

/// Short and long replies, as requests with one change and with many have them.
fn reply(number: u64) -> Vec<u8> {
    vec![7; SHORT_REPLY_MAX - number as usize % 3]
}

#[test]
fn full_device_keeps_replies_in_all_slots_and_can_free_everything() {
    let mfs = formatted_in(4000);
    let clients: Vec<ClientId> = (0..40).map(|_| register(&mfs).unwrap()).collect();
    let (dir, files) = fill(&mfs);
    let slots = (0..REPLY_SLOTS).flat_map(|slot| clients.iter().map(move |&it| (it, slot)));
    let mut slots = slots.cycle();
    assert!(files > u64::from(REPLY_SLOTS) * 40, "{files}");
    for number in 0..files {
        let (client, slot) = slots.next().unwrap();
        let removed = now(mfs.run(Cost::DELETE, |txn| {
            unlink(txn, dir, number)?;
            txn.set_reply(client, slot, number as u32, &reply(number))
        }));
        removed.unwrap_or_else(|error| panic!("{number} of {files}: {error}"));
        free_orphans(&mfs);
    }
    assert_eq!(entries(&mfs), (40, 40));
    assert_eq!(reservation(&mfs).clients, 40);
    clients.into_iter().for_each(|client| unregister(&mfs, client));
    assert_eq!(reservation(&mfs).clients, 0);
    assert_eq!(entries(&mfs), (0, 0));
}

#[test]
fn long_reply_takes_a_block_that_is_free_for_everybody_or_fails_before_anything_is_done() {
    let mfs = formatted_in(4000);
    let client = register(&mfs).unwrap();
    run(&mfs, |txn| txn.set_reply(client, 0, 1, &[1; REPLY_MAX]));
    let (dir, _) = fill(&mfs);
    let remove = |number, slot, len| {
        now(mfs.run(Cost::DELETE, |txn| {
            unlink(txn, dir, number)?;
            txn.set_reply(client, slot, 2, &vec![2; len])
        }))
        .map(drop)
        .map_err(|error| error.fault())
    };
    // Its block is there.
    assert_eq!(remove(0, 1, REPLY_MAX), Ok(()));
    free_orphans(&mfs);
    while make_file(&mfs, dir).is_ok() {}
    assert_eq!(remove(1, 70, SHORT_REPLY_MAX + 1), Err(Fault::NoSpace));
    assert!(run(&mfs, |txn| txn.names().lookup(dir, &name(1))).is_some(), "nothing is executed");
    assert_eq!(run(&mfs, |txn| txn.reply(client, 70)), None);
    assert_eq!(remove(1, 70, SHORT_REPLY_MAX), Ok(()));
    assert_eq!(run(&mfs, |txn| txn.reply(client, 1)), Some((2, vec![2; REPLY_MAX])));
}

#[test]
fn full_device_enrols_every_expected_client_again_and_again() {
    for blocks in [4000, 40_000] {
        let mfs = formatted_in(blocks);
        let expected = expected_clients(blocks);
        for round in 0..3 {
            let (dir, files) = fill_more(&mfs, round);
            let enrolled = (0..expected).map(|_| register(&mfs));
            let clients: Vec<ClientId> = enrolled.collect::<Result<_, _>>().unwrap();
            // Nothing of what others left may become ordinary space.
            while make_file(&mfs, dir).is_ok() {}
            for &client in &clients {
                for slot in 0..REPLY_SLOTS {
                    run_delete(&mfs, |txn| txn.set_reply(client, slot, 1, &[3; SHORT_REPLY_MAX]));
                }
            }
            for number in 0..files.min(200) {
                run_delete(&mfs, |txn| unlink(txn, dir, number));
                free_orphans(&mfs);
            }
            clients.into_iter().for_each(|client| unregister(&mfs, client));
        }
    }
}

#[test]
fn client_is_refused_until_there_is_room_for_it() {
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
fn reserved_blocks_go_to_enrolments_only() {
    let mfs = formatted_in(4000);
    let expected = expected_clients(4000);
    for cost in [Cost::SMALL, Cost::DELETE] {
        let taken = now(mfs.run(cost, |txn| {
            while txn.alloc_meta(1, None).is_ok() {}
            Ok((txn.meta_space().1, txn.client_reservation().blocks()))
        }));
        let (left, reserved) = taken.unwrap().0;
        let reserve = if cost == Cost::SMALL { 4000 / 64 + nodes(expected) } else { 0 };
        let all = expected * BLOCKS_PER_CLIENT;
        assert_eq!((left, reserved), (all + reserve, all));
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
    run(&mfs, |txn| txn.set_reply(client, 127, 1, b""));
    assert_eq!((reservation(&mfs), entries(&mfs)), (before, (1, 1)), "one block for all slots");
    run(&mfs, |txn| txn.new_client(b"another"));
    assert_eq!(reservation(&mfs), before.with(1));
    let beyond = now(mfs.run(Cost::STEP, |txn| txn.set_reply(client, REPLY_SLOTS, 1, b"")));
    assert_eq!(beyond.unwrap_err().fault(), Fault::Invalid);
}

/// A repair may drop replies that were damaged.
#[test]
fn replies_of_a_client_without_a_block_get_one_again() {
    let mfs = formatted_in(4000);
    let client = register(&mfs).unwrap();
    run(&mfs, |txn| txn.set_reply(client, 9, 1, b"before"));
    run(&mfs, |txn| REPLIES.remove(txn, &short_key(client)).map(drop));
    assert_eq!(run(&mfs, |txn| txn.reply(client, 9)), None);
    assert_eq!(run(&mfs, |txn| txn.replied_slots(client)), []);
    fill(&mfs);
    run_delete(&mfs, |txn| txn.set_reply(client, 9, 2, b"after"));
    assert_eq!(run(&mfs, |txn| txn.reply(client, 9)), Some((2, b"after".to_vec())));
}

#[test]
fn reservation_is_the_same_after_reopening() {
    let mfs = formatted_for_images(9000, Features::NONE);
    // More than an opening counts in one transaction.
    let clients: Vec<ClientId> = (0..STEP + 30).map(|_| register(&mfs).unwrap()).collect();
    for slot in 0..REPLY_SLOTS {
        for &client in clients.iter().take(5) {
            run(&mfs, |txn| txn.set_reply(client, slot, 1, &[1; 40]));
        }
    }
    unregister(&mfs, clients[3]);
    assert!(reservation(&mfs).clients > STEP as u64);
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

/// What a repair may leave.
#[test]
fn device_filled_without_a_reservation_can_free_everything() {
    let mfs = formatted_in(4000);
    mfs.set_client_reservation(ClientReservation::default());
    let (dir, files) = fill(&mfs);
    let usage = mfs.usage();
    while run(&mfs, |txn| Ok(txn.meta_space().1)) > 9 {
        run(&mfs, |txn| txn.alloc_meta(1, None));
    }
    let mut new = ClientReservation::new(4000, 0);
    new.set_shortfall(9, usage.blocks_set_aside);
    assert_eq!(new.blocks(), 0, "only a part of the reserve is free");
    mfs.set_client_reservation(new);
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
    assert_eq!(reservation(&mfs).blocks(), (expected_clients(4000) - 1) * BLOCKS_PER_CLIENT);
}

#[test]
fn expected_clients_grow_with_the_device() {
    let of_bytes = |bytes: u64| expected_clients(bytes >> 12);
    assert_eq!([100, 255, 256, 1000, 1024].map(expected_clients), [0, 0, 1, 3, 4]);
    assert_eq!([64u64 << 20, 1 << 30, 1 << 34].map(of_bytes), [32, 512, 8192]);
    assert_eq!(of_bytes(1 << 44), SESSIONS_MAX as u64);
}

#[test]
fn nodes_of_short_replies_fit_in_the_reserve() {
    /// Fewest entries that a split leaves in each half, if entries are as large as child entries.
    const LEAST: u64 = (4048 / 20) / 8;
    for clients in 1..=4 * SESSIONS_MAX as u64 {
        let (mut level, mut tree) = (clients / LEAST, 1);
        while level > 1 {
            tree += level;
            level /= LEAST;
        }
        assert!(2 * tree <= nodes(clients), "{clients} clients: 2 trees of {tree} nodes");
    }
}
