//! Restarts of the server.

use proto::mds::*;
use proto::wire::Appended;
use types::*;

use crate::bed::*;

const ROOT: Ino = Ino::ROOT;

fn create(text: &str) -> Op {
    let node = node(FileKind::Regular, 0o644);
    Op::Create { dir: ROOT, name: name(text), node, want: Rights::ATTR | Rights::OPEN }
}

pub fn replay(request: &Request, reply: &Reply) -> Request {
    let replay = Replay { transno: reply.transno, results: reply.results.clone() };
    Request { replay: Some(replay), ..request.clone() }
}

/// PROTOCOLS 7.2.
#[test]
fn lost_requests_are_replayed_with_the_same_results() {
    run(|bed| async move {
        let c = bed.client("c").await;
        c.file(ROOT, "kept").await;
        c.sync().await;
        let requests = [c.request(1, vec![create("a")]), c.request(2, vec![create("b")])];
        let mut replies = Vec::new();
        for request in &requests {
            replies.push(c.exchange(request.clone()).await.unwrap());
        }
        bed.restart().await;
        let welcome = c.connect(c.id()).await.unwrap();
        assert_eq!(welcome.state, RECOVERED);
        let leases =
            vec![HeldLease { ino: ROOT, rights: Rights::NAMES, open: false, ranges: vec![] }];
        c.call(Op::Reclaim { leases, locks: vec![] }).await.unwrap();
        for (request, reply) in requests.iter().zip(&replies) {
            let again = c.exchange(replay(request, reply)).await.unwrap();
            let (
                Ok(OpReply::Created { leased: old, .. }),
                Ok(OpReply::Created { leased: new, .. }),
            ) = (&reply.results[0], &again.results[0])
            else {
                panic!("{again:?}")
            };
            assert_eq!(old.attr, new.attr);
        }
        // A replay takes effect only once, too.
        let again = c.exchange(replay(&requests[1], &replies[1])).await.unwrap();
        assert!(again.results[0].is_ok());
        c.call(Op::ReclaimDone {}).await.unwrap();
        assert_eq!(c.names(ROOT).await, ["a", "b", "kept"]);
        assert_eq!(c.attr(ROOT).await.unwrap().rights, Rights::NAMES);
    });
}

#[test]
fn replay_completes_a_request_that_survived_in_part() {
    run(|bed| async move {
        let (c, b) = (bed.client("c").await, bed.client("b").await);
        let d = c.dir(ROOT, "d").await;
        assert_eq!(b.attr_wanting(d, Rights::NAMES).await.unwrap().rights, Rights::NAMES);
        b.ignore_recalls();
        let node = node(FileKind::Regular, 0o644);
        let second = Op::Create { dir: d, name: name("x"), node, want: Rights::empty() };
        let request = c.request(1, vec![create("a"), second]);
        let (c2, request2) = (c.clone(), request.clone());
        let reply = bed.env.spawn_join(async move { c2.exchange(request2).await.unwrap() });
        // The second operation waits for a right; meanwhile the first becomes durable.
        let (ino, seq, give) = b.recall().await;
        c.sync().await;
        b.reserved(Op::Return { ino, seq, give, still_open: false, range: None }).await;
        let reply = reply.await;
        assert!(reply.results.iter().all(Result::is_ok), "{reply:?}");
        bed.restart().await;
        b.connect(b.id()).await.unwrap();
        b.call(Op::ReclaimDone {}).await.unwrap();
        assert_eq!(c.connect(c.id()).await.unwrap().state, RECOVERED);
        let again = c.exchange(replay(&request, &reply)).await.unwrap();
        assert!(again.results.iter().all(Result::is_ok), "{again:?}");
        c.call(Op::ReclaimDone {}).await.unwrap();
        assert_eq!(c.names(ROOT).await, ["a", "d"]);
        assert_eq!(c.names(d).await, ["x"]);
    });
}

#[test]
fn durable_request_is_not_executed_again_if_its_answer_was_lost() {
    run(|bed| async move {
        let c = bed.client("c").await;
        c.keep_open();
        let mut request = c.request(
            9,
            vec![create("x"), Op::Unlink { dir: ROOT, name: name("x"), unused: None }, create("x")],
        );
        request.sync = true;
        let first = c.exchange(request.clone()).await.unwrap();
        bed.restart().await;
        assert_eq!(c.connect(c.id()).await.unwrap().state, RECOVERED);
        c.call(Op::ReclaimDone {}).await.unwrap();
        let again = c.exchange(request.clone()).await.unwrap();
        let ino = |reply: &Reply| match &reply.results[2] {
            Ok(OpReply::Created { leased, .. }) => leased.attr.ino,
            other => panic!("{other:?}"),
        };
        assert_eq!(ino(&first), ino(&again));
        // That answer is lost, too.
        c.disconnect();
        assert_eq!(c.connect(c.id()).await.unwrap().state, RESUMED);
        let third = c.exchange(request).await.unwrap();
        assert_eq!(third.results, again.results);
        assert_eq!(c.names(ROOT).await, ["x"]);
    });
}

#[test]
fn failed_request_is_not_executed_again_when_it_is_sent_again() {
    run(|bed| async move {
        let (c, other) = (bed.client("c").await, bed.client("o").await);
        let file = c.file(ROOT, "x").await;
        let (from, to) = (ROOT, ROOT);
        let (old, new) = (name("x"), name("y"));
        let op = Op::Rename { from, name: old, to, new_name: new, flags: 2, unused: None };
        let request = c.request(9, vec![op]);
        let first = c.exchange(request.clone()).await.unwrap();
        assert_eq!(first.results, [Err(Fault::NotFound)], "there is nothing to exchange it with");
        other.file(ROOT, "y").await;
        // The client may have received the first answer already; nobody waits for this one.
        c.disconnect();
        assert_eq!(c.connect(c.id()).await.unwrap().state, RESUMED);
        let again = c.exchange(request).await.unwrap();
        assert_eq!(again.results, first.results);
        assert_eq!(c.lookup(ROOT, "x").await.map(|attr| attr.ino), Some(file));
    });
}

/// Creates an orphan, durably, and kills the server before the client has the answer.
async fn unacknowledged_orphan(bed: &Bed, c: &Client) -> (Request, Ino) {
    let node = node(FileKind::Regular, 0o600);
    let op = Op::CreateTmpfile {
        dir: ROOT,
        node,
        want: Rights::ATTR | Rights::OPEN,
        placement: Appended(None),
    };
    let mut request = c.request(9, vec![op]);
    request.sync = true;
    let reply = c.exchange(request.clone()).await.unwrap();
    let ino = match &reply.results[0] {
        Ok(OpReply::Created { leased, .. }) => leased.attr.ino,
        other => panic!("{other:?}"),
    };
    bed.restart().await;
    assert_eq!(c.connect(c.id()).await.unwrap().state, RECOVERED);
    c.call(Op::ReclaimDone {}).await.unwrap();
    (request, ino)
}

/// PROTOCOLS 7.6.
#[test]
fn unacknowledged_orphan_survives_a_restart() {
    run(|bed| async move {
        let c = bed.client("c").await;
        c.keep_open();
        let (request, ino) = unacknowledged_orphan(&bed, &c).await;
        // The reaper frees orphans meanwhile.
        bed.sleep(Duration::from_secs(1)).await;
        let again = c.exchange(request).await.unwrap();
        let Ok(OpReply::Created { leased, .. }) = &again.results[0] else { panic!("{again:?}") };
        assert_eq!((leased.attr.ino, leased.attr.nlink), (ino, 0));
        assert!(leased.rights.contains(Rights::OPEN), "{leased:?}");
        assert!(c.attr(ino).await.is_ok());
    });
}

/// PROTOCOLS 7.6.
#[test]
fn orphan_that_nobody_has_open_is_freed_after_a_restart() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let (_, ino) = unacknowledged_orphan(&bed, &c).await;
        assert_eq!(c.recall().await.0, ino, "its creator is asked");
        bed.sleep(Duration::from_secs(1)).await;
        assert_eq!(c.attr(ino).await, Err(Fault::Stale));
    });
}

#[test]
fn damaged_inode_in_a_kept_answer_does_not_block_recovery() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let node = node(FileKind::Regular, 0o600);
        let op = Op::CreateTmpfile {
            dir: ROOT,
            node,
            want: Rights::ATTR | Rights::OPEN,
            placement: Appended(None),
        };
        let mut request = c.request(9, vec![op]);
        request.sync = true;
        let reply = c.exchange(request).await.unwrap();
        let Ok(OpReply::Created { leased, .. }) = &reply.results[0] else { panic!("{reply:?}") };
        // Without changes everything is checkpointed, so the log cannot repair the block.
        for _ in 0..20 {
            bed.sleep(Duration::from_millis(500)).await;
            c.call(Op::Renew {}).await.unwrap();
        }
        let damaged = block_of(&bed.meta(), leased.attr.ino);
        let flip = || bed.meta().flip_bit(damaged * BLOCK + 2000, 3);
        flip();
        bed.restart().await;
        assert_eq!(c.connect(c.id()).await.unwrap().state, RECOVERED);
        c.call(Op::ReclaimDone {}).await.unwrap();
        assert!(bed.logged(&format!(
            "skipping an inode that a client may have open: metadata block {damaged}"
        )));
        let other = bed.client("other").await;
        other.file(ROOT, "a file").await;
        assert!(c.lookup(ROOT, "a file").await.is_some());
        // Repair the block before the check at the end.
        flip();
    });
}

const BLOCK: u64 = 4096;

/// The block of directory content that holds an inode.
fn block_of(disk: &env::sim::SimDisk, ino: Ino) -> u64 {
    let number = ino.0.to_le_bytes();
    let holds = |block: &u64| {
        let data = disk.peek(block * BLOCK, BLOCK as usize);
        let home = data[4] == mfs::BlockType::Directory as u8 && data[8..16] == block.to_le_bytes();
        // FORMAT.md 7.2: eight slots of 508 bytes behind the header, the number at offset 8.
        home && (0..8).any(|slot| data[32 + 508 * slot + 8..][..8] == number)
    };
    (0..disk.size() / BLOCK).find(holds).expect("the inode is at home")
}

/// PROTOCOLS 8.1.
#[test]
fn slow_data_device_is_flushed_once_for_all_absent_clients() {
    run(|bed| async move {
        let absent = [bed.client("a").await, bed.client("b").await, bed.client("c").await];
        for (client, text) in absent.iter().zip(["a", "b", "c"]) {
            client.file(ROOT, text).await;
            client.sync().await;
        }
        let data = data_device(&bed.world);
        bed.restart().await;
        let (begun, flushes) = (bed.env.now(), data.counts().flushes);
        let (slow, env) = (data.clone(), bed.env.clone());
        bed.env.spawn(async move {
            loop {
                slow.stall(true);
                env.sleep(Duration::from_secs(4)).await;
                slow.stall(false);
                env.sleep(Duration::from_millis(1)).await;
            }
        });
        bed.client("newcomer").await.file(ROOT, "late").await;
        let took = bed.env.now().since(begun);
        assert!(took < LEASE + Duration::from_secs(5), "{took:?}");
        assert_eq!(data.counts().flushes, flushes + 1);
        assert!(!bed.logged("may be lost in a power cut"));
    });
}

#[test]
fn restarted_server_flushes_for_clients_evicted_before_it() {
    run(|bed| async move {
        let data = data_device(&bed.world);
        bed.restart().await;
        let (admin, b) = (Client::new(bed.world.node("admin")), bed.client("b").await);
        admin.connect_as(ClientId(0), 1, 1).await.unwrap();
        b.file(ROOT, "f").await;
        data.stall(true);
        let (flushes, evicted) = (data.counts().flushes, b.id());
        bed.env.spawn(async move {
            let _ = admin.exchange(admin.request(0, vec![Op::Evict { client: evicted }])).await;
        });
        bed.sleep(Duration::from_secs(1)).await;
        data.stall(false);
        bed.restart().await;
        assert!(bed.logged("has been evicted, before the restart"));
        assert_eq!(
            data.counts().flushes,
            flushes + 2,
            "the first flush did not end before the server"
        );
    });
}

/// A device that fails is absent for the server until it works again; one that stands still is not.
#[test]
fn status_names_an_absent_data_device_and_why() {
    run(|bed| async move {
        let data = data_device(&bed.world);
        bed.restart().await;
        let admin = Client::new(bed.world.node("admin"));
        admin.connect_as(ClientId(0), 1, 1).await.unwrap();
        let status = async || match admin.call(Op::Status {}).await {
            Ok(OpReply::Text { text }) => text,
            other => panic!("{other:?}"),
        };
        data.fail_from(env::sim::DiskAction::Read, 1, env::sim::DiskFault::Io);
        bed.sleep(Duration::from_secs(11)).await;
        let said = status().await;
        assert!(said.contains(r#""device":"absent""#) && said.contains("error"), "{said}");
        assert!(bed.logged("is absent on this host"));
        data.heal();
        bed.sleep(Duration::from_secs(2)).await;
        assert!(status().await.contains(r#""device":"sound""#));
        data.stall(true);
        bed.sleep(Duration::from_secs(30)).await;
        assert!(status().await.contains(r#""device":"sound""#), "it owes nothing that matters");
        data.stall(false);
    });
}

#[test]
fn status_names_a_data_device_that_owes_a_flush() {
    run(|bed| async move {
        let data = data_device(&bed.world);
        bed.restart().await;
        let (admin, b) = (Client::new(bed.world.node("admin")), bed.client("b").await);
        admin.connect_as(ClientId(0), 1, 1).await.unwrap();
        let status = async || match admin.call(Op::Status {}).await {
            Ok(OpReply::Text { text }) => text,
            other => panic!("{other:?}"),
        };
        assert!(status().await.contains(r#""device":"sound""#));
        data.stall(true);
        assert!(admin.call(Op::Evict { client: b.id() }).await.is_ok());
        assert!(bed.logged("has not flushed within 5 s"));
        assert!(status().await.contains(r#""device":"suspect""#));
        data.stall(false);
        bed.sleep(Duration::from_secs(1)).await;
        assert!(status().await.contains(r#""device":"sound""#));
    });
}

/// PROTOCOLS 8.2.
#[test]
fn quarantine_lasts_as_long_as_a_data_device_is_stalled() {
    run(|bed| async move {
        let data = data_device(&bed.world);
        bed.restart().await;
        let (admin, a, b) =
            (Client::new(bed.world.node("admin")), bed.client("a").await, bed.client("b").await);
        admin.connect_as(ClientId(0), 1, 1).await.unwrap();
        let want = Rights::DATA_X | Rights::DATA_S;
        let ino = a.create(ROOT, "f", FileKind::Regular, want).await.unwrap().attr.ino;
        data.stall(true);
        assert!(admin.call(Op::Evict { client: a.id() }).await.is_ok());
        let (_, layout) = b.acquire(ino, Rights::DATA_S).await.unwrap();
        assert!(layout.unwrap().frozen);
        let frozen_later = async |time: Duration| {
            let until = bed.env.now() + time;
            while bed.env.now() < until {
                bed.sleep(Duration::from_secs(1)).await;
                b.call(Op::Renew {}).await.unwrap();
            }
            let layout = Op::Layout { ino, from: FileBlock(0) };
            let Ok(OpReply::Layout { slice: part }) = b.call(layout).await else { panic!() };
            part.frozen
        };
        assert!(frozen_later(LEASE * 3).await, "the device still holds submitted writes");
        data.stall(false);
        assert!(
            frozen_later(Duration::from_secs(4)).await,
            "the device may be about to complete them"
        );
        assert!(!frozen_later(Duration::from_secs(3)).await);
    });
}

/// PROTOCOLS 7.3.
#[test]
fn new_requests_wait_until_absent_clients_are_evicted() {
    run(|bed| async move {
        let (a, b) = (bed.client("a").await, bed.client("b").await);
        let ino = b.create(ROOT, "f", FileKind::Regular, Rights::DATA_X).await.unwrap().attr.ino;
        b.sync().await;
        a.sync().await;
        bed.restart().await;
        let begun = bed.env.now();
        assert_eq!(a.connect(a.id()).await.unwrap().state, RECOVERED);
        a.call(Op::ReclaimDone {}).await.unwrap();
        let waiting = a.request(3, vec![create("late")]);
        let a2 = a.clone();
        let late = bed.env.spawn_join(async move { a2.exchange(waiting).await.unwrap() });
        while bed.env.now().since(begun) < LEASE / 2 {
            bed.sleep(Duration::from_millis(500)).await;
            a.call(Op::Renew {}).await.unwrap();
        }
        assert!(!bed.logged("has not come back"));
        assert!(late.await.results[0].is_ok());
        assert!(bed.env.now().since(begun) >= LEASE);
        assert!(bed.logged("has not come back"));
        assert_eq!(b.connect(b.id()).await.unwrap_err().fault, Fault::Evicted);
        let (_, layout) = a.acquire(ino, Rights::DATA_S).await.unwrap();
        assert!(layout.unwrap().frozen, "the server does not know what the absent client held");
        let until = bed.env.now() + LEASE * 2;
        while bed.env.now() < until {
            bed.sleep(Duration::from_secs(1)).await;
            a.call(Op::Renew {}).await.unwrap();
        }
        let (_, layout) = a.acquire(ino, Rights::DATA_S).await.unwrap();
        assert!(!layout.unwrap().frozen);
    });
}

#[test]
fn client_silent_in_its_recovery_counts_as_holding_every_file() {
    run(|bed| async move {
        let (a, b) = (bed.client("a").await, bed.client("b").await);
        let ino = b.create(ROOT, "f", FileKind::Regular, Rights::DATA_X).await.unwrap().attr.ino;
        b.sync().await;
        a.sync().await;
        bed.restart().await;
        assert_eq!(b.connect(b.id()).await.unwrap().state, RECOVERED);
        assert_eq!(a.connect(a.id()).await.unwrap().state, RECOVERED);
        a.call(Op::ReclaimDone {}).await.unwrap();
        while !bed.logged("did not finish") {
            bed.sleep(LEASE / 4).await;
            a.call(Op::Renew {}).await.unwrap();
        }
        let (_, layout) = a.acquire(ino, Rights::DATA_S).await.unwrap();
        assert!(layout.unwrap().frozen, "it may still write any file");
        let until = bed.env.now() + LEASE * 2;
        while bed.env.now() < until {
            bed.sleep(LEASE / 4).await;
            a.call(Op::Renew {}).await.unwrap();
        }
        let (_, layout) = a.acquire(ino, Rights::DATA_S).await.unwrap();
        assert!(!layout.unwrap().frozen);
    });
}

#[test]
fn client_heard_during_the_eviction_of_others_is_not_evicted() {
    run(|bed| async move {
        let (absent, late) = (bed.client("absent").await, bed.client("late").await);
        absent.sync().await;
        late.sync().await;
        let data = data_device(&bed.world);
        bed.restart().await;
        assert_eq!(late.connect(late.id()).await.unwrap().state, RECOVERED);
        data.stall(true);
        while !bed.logged("has not come back") {
            bed.sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(late.connect(late.id()).await.unwrap().state, RECOVERED);
        bed.sleep(Duration::from_secs(1)).await;
        assert!(!bed.logged("has been evicted"), "the device has not flushed");
        late.call(Op::ReclaimDone {}).await.unwrap();
        data.stall(false);
        late.file(ROOT, "after").await;
        assert!(bed.logged("has been evicted") && !bed.logged("did not finish its recovery"));
    });
}

#[test]
fn open_orphan_survives_a_restart_and_others_are_freed() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let mut inos = Vec::new();
        for text in ["open", "shut"] {
            let ino = c.create(ROOT, text, FileKind::Regular, Rights::OPEN).await.unwrap().attr.ino;
            c.unlink(ROOT, text).await.unwrap();
            inos.push(ino);
        }
        c.sync().await;
        bed.restart().await;
        c.connect(c.id()).await.unwrap();
        let leases =
            vec![HeldLease { ino: inos[0], rights: Rights::OPEN, open: true, ranges: vec![] }];
        c.call(Op::Reclaim { leases, locks: vec![] }).await.unwrap();
        c.ignore_recalls();
        c.call(Op::ReclaimDone {}).await.unwrap();
        for _ in &inos {
            let (ino, seq, give) = c.recall().await;
            let still_open = ino == inos[0];
            c.call(Op::Return { ino, seq, give, still_open, range: None }).await.unwrap();
        }
        bed.sleep(Duration::from_millis(500)).await;
        let held = c.attr(inos[0]).await.unwrap();
        assert_eq!(held.rights, Rights::OPEN);
        assert_eq!(c.attr(inos[1]).await, Err(Fault::Stale));
        let (ino, give) = (inos[0], Rights::OPEN);
        let close = |seq| Op::Return { ino, seq, give, still_open: false, range: None };
        let seq = held.seq;
        assert_eq!(
            c.call(close(seq - 1)).await,
            Ok(OpReply::StaleReturn { seq }),
            "a sequence number of the previous server"
        );
        assert_eq!(c.call(close(seq)).await, Ok(OpReply::Done {}));
        bed.sleep(Duration::from_millis(500)).await;
        assert_eq!(c.attr(inos[0]).await, Err(Fault::Stale));
    });
}

#[test]
fn replayed_unlink_keeps_a_file_that_an_absent_client_has_open() {
    run(|bed| async move {
        let (c, o) = (bed.client("c").await, bed.client("o").await);
        let held = Rights::OPEN | Rights::DATA_X;
        let created = c.create(ROOT, "f", FileKind::Regular, held).await.unwrap();
        let ino = created.attr.ino;
        o.acquire(ino, Rights::OPEN).await.unwrap();
        o.keep_open();
        c.sync().await;
        let unlink = Op::Unlink { dir: ROOT, name: name("f"), unused: Some(ino) };
        let request = c.request(1, vec![unlink]);
        let reply = c.exchange(request.clone()).await.unwrap();
        let kept = |reply: &Reply| match &reply.results[0] {
            Ok(OpReply::Removed { kept, .. }) => *kept,
            other => panic!("{other:?}"),
        };
        assert!(kept(&reply));
        bed.restart().await;
        assert_eq!(c.connect(c.id()).await.unwrap().state, RECOVERED);
        let leases = vec![HeldLease { ino, rights: held, open: false, ranges: vec![] }];
        c.call(Op::Reclaim { leases, locks: vec![] }).await.unwrap();
        assert!(kept(&c.exchange(replay(&request, &reply)).await.unwrap()));
        c.call(Op::ReclaimDone {}).await.unwrap();
        o.connect(o.id()).await.unwrap();
        let leases = vec![HeldLease { ino, rights: Rights::OPEN, open: true, ranges: vec![] }];
        o.call(Op::Reclaim { leases, locks: vec![] }).await.unwrap();
        o.call(Op::ReclaimDone {}).await.unwrap();
        // The client that removed the file may still commit what it wrote.
        assert!(c.attr(ino).await.unwrap().rights.contains(Rights::DATA_X));
        assert!(o.attr(ino).await.unwrap().rights.contains(Rights::OPEN));
    });
}

#[test]
fn replay_finds_its_slot_though_its_server_made_nothing_durable() {
    run(|bed| async move {
        let (c, o) = (bed.client("c").await, bed.client("o").await);
        let d = c.dir(ROOT, "d").await;
        let ino = o.create(ROOT, "f", FileKind::Regular, Rights::OPEN).await.unwrap().attr.ino;
        c.sync().await;
        let back = |client: Client, held: Vec<HeldLease>, again: Vec<Request>| async move {
            assert_eq!(client.connect(client.id()).await.unwrap().state, RECOVERED);
            client.call(Op::Reclaim { leases: held, locks: vec![] }).await.unwrap();
            for request in again {
                let reply = client.exchange(request).await.unwrap();
                assert!(reply.results[0].is_ok(), "{reply:?}");
            }
            client.call(Op::ReclaimDone {}).await.unwrap();
        };
        let open = vec![HeldLease { ino, rights: Rights::OPEN, open: true, ranges: vec![] }];
        bed.restart().await;
        back(c.clone(), vec![], vec![]).await;
        back(o.clone(), open.clone(), vec![]).await;
        // Nothing of this server becomes durable. It gives the directory's first inodes a new chunk
        // …
        let make = Op::Create {
            dir: d,
            name: name("x"),
            node: node(FileKind::Regular, 0o644),
            want: Rights::empty(),
        };
        let make = c.request(1, vec![make]);
        let created = c.exchange(make.clone()).await.unwrap();
        assert!(created.results[0].is_ok(), "{created:?}");
        let unlink = Op::Unlink { dir: ROOT, name: name("f"), unused: None };
        let unlink = o.request(1, vec![unlink]);
        let removed = o.exchange(unlink.clone()).await.unwrap();
        assert!(removed.results[0].is_ok(), "{removed:?}");
        bed.restart().await;
        // … which the replay of another client, whose unlink moves a file to the orphan directory,
        // must not take.
        back(o, open, vec![replay(&unlink, &removed)]).await;
        back(c.clone(), vec![], vec![replay(&make, &created)]).await;
        assert_eq!(c.names(d).await, ["x"]);
    });
}

#[test]
fn locks_and_rights_are_reclaimed_and_still_exclude_others() {
    run(|bed| async move {
        let (a, b) = (bed.client("a").await, bed.client("b").await);
        let ino = a.create(ROOT, "f", FileKind::Regular, Rights::DATA_X).await.unwrap().attr.ino;
        let lock =
            Lock { flock: true, owner: LockOwner(1), pid: 1, exclusive: true, start: 0, end: 0 };
        a.call(Op::Lock { ino, lock: lock.clone(), wait: false }).await.unwrap();
        a.sync().await;
        bed.restart().await;
        for (c, leases, locks) in [
            (
                &a,
                vec![HeldLease { ino, rights: Rights::DATA_X, open: false, ranges: vec![] }],
                vec![(ino, lock.clone())],
            ),
            (&b, vec![], vec![]),
        ] {
            c.connect(c.id()).await.unwrap();
            c.call(Op::Reclaim { leases, locks }).await.unwrap();
            c.call(Op::ReclaimDone {}).await.unwrap();
        }
        assert_eq!(b.call(Op::Lock { ino, lock, wait: false }).await, Err(Fault::WouldBlock));
        a.ignore_recalls();
        let b2 = b.clone();
        let got = bed.env.spawn_join(async move { b2.acquire(ino, Rights::DATA_S).await });
        // The server may also ask whether it has the file open.
        let of_data = |take: Rights| take.contains(Rights::DATA_X);
        let recall = a.push(|push| matches!(push, Push::Recall { take, .. } if of_data(*take)));
        let Push::Recall { seq, take, .. } = recall.await else { unreachable!() };
        a.reserved(Op::Return { ino, seq, give: take, still_open: false, range: None }).await;
        assert!(got.await.is_ok());
    });
}

#[test]
fn grace_ends_at_once_without_known_clients() {
    run(|bed| async move {
        let c = bed.client("c").await;
        c.file(ROOT, "f").await;
        assert_eq!(c.call(Op::Goodbye {}).await, Ok(OpReply::Done {}));
        bed.restart().await;
        let begun = bed.env.now();
        let c = bed.client("d").await;
        assert_eq!(c.names(ROOT).await, ["f"]);
        assert!(bed.env.now().since(begun) < LEASE / 2);
    });
}

#[test]
fn failing_store_ends_the_server_and_loses_nothing_acknowledged() {
    run(|bed| async move {
        let c = bed.client("c").await;
        c.file(ROOT, "f").await;
        c.sync().await;
        let disk = bed.meta();
        disk.fail_from(env::sim::DiskAction::Write, 1, env::sim::DiskFault::Io);
        c.file(ROOT, "g").await;
        let request = c.request(1, vec![Op::Sync {}]);
        let unanswered = c.exchange(request);
        assert!(
            bed.env.timeout(Duration::from_secs(2), unanswered).await.is_none_or(|r| r.is_none())
        );
        assert!(bed.ended_with_error(), "a poisoned store ends the server");
        disk.heal();
        bed.restart().await;
        assert_eq!(c.connect(c.id()).await.unwrap().state, RECOVERED);
        c.call(Op::ReclaimDone {}).await.unwrap();
        assert_eq!(c.names(ROOT).await, ["f"], "a change not acknowledged as durable is lost");
    });
}

#[test]
fn malformed_bytes_end_only_their_own_connection() {
    run(|bed| async move {
        let c = bed.client("c").await;
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 100], &[0; 5000]] {
            let stream = bed.world.node("x").connect(ADDRESS).await.unwrap();
            stream.write_all(bytes.to_vec()).await.0.unwrap();
            let mut ended = false;
            while !ended {
                ended = !matches!(stream.read(Vec::new(), 4096).await.0, Ok(1..));
            }
        }
        c.file(ROOT, "still there").await;
    });
}

#[test]
fn compound_is_replayed_with_the_result_of_each_operation() {
    run(|bed| async move {
        let c = bed.client("c").await;
        c.file(ROOT, "before").await;
        c.sync().await;
        let node = |kind| node(kind, 0o755);
        let make = |text: &str, kind| Op::Create {
            dir: ROOT,
            name: name(text),
            node: node(kind),
            want: Rights::empty(),
        };
        let request = c.request(
            1,
            vec![
                Op::GetAttr { ino: ROOT, want: Rights::empty() },
                make("d", FileKind::Directory),
                make("f", FileKind::Regular),
                make("g", FileKind::Regular),
            ],
        );
        bed.sleep(Duration::from_millis(50)).await;
        let first = c.exchange(request.clone()).await.unwrap();
        assert_eq!(first.results.len(), 4);
        bed.restart().await;
        c.connect(c.id()).await.unwrap();
        bed.sleep(Duration::from_millis(50)).await;
        let again = c.exchange(replay(&request, &first)).await.unwrap();
        for (old, new) in first.results.iter().zip(&again.results).skip(1) {
            let (
                Ok(OpReply::Created { leased: old, .. }),
                Ok(OpReply::Created { leased: new, .. }),
            ) = (old, new)
            else {
                panic!("{again:?}")
            };
            assert_eq!(old.attr, new.attr);
        }
        c.call(Op::ReclaimDone {}).await.unwrap();
        assert_eq!(c.names(ROOT).await, ["before", "d", "f", "g"]);
    });
}

#[test]
fn replay_in_another_order_takes_no_directory_time_back() {
    run(|bed| async move {
        let (a, b) = (bed.client("a").await, bed.client("b").await);
        let (dir, ahead) = (a.dir(ROOT, "d").await, a.dir(ROOT, "ahead").await);
        a.sync().await;
        let make = |dir, text: &str| {
            let node = node(FileKind::Regular, 0o644);
            Op::Create { dir, name: name(text), node, want: Rights::empty() }
        };
        let far = SetAttr {
            mode: None,
            uid: None,
            gid: None,
            atime: None,
            mtime: Some(SetTime::At { time: Timestamp { seconds: 1 << 40, nanos: 0 } }),
            kill_setid: false,
            judged_by: 0,
        };
        let mut done = Vec::new();
        for (slot, client, op) in [
            (1, &a, make(dir, "a")),
            (2, &a, Op::SetAttr { ino: ahead, set: far }),
            (3, &a, make(ahead, "a")),
            (1, &b, make(dir, "b")),
        ] {
            bed.sleep(Duration::from_millis(1)).await;
            let request = client.request(slot, vec![op]);
            let reply = client.exchange(request.clone()).await.unwrap();
            assert!(reply.results[0].is_ok(), "{reply:?}");
            done.push((client, request, reply));
        }
        let times = |ino| {
            let a = a.clone();
            async move {
                let attr = a.attr(ino).await.unwrap().attr;
                (attr.mtime, attr.ctime)
            }
        };
        let before = [times(dir).await, times(ahead).await];
        bed.restart().await;
        for client in [&a, &b] {
            assert_eq!(client.connect(client.id()).await.unwrap().state, RECOVERED);
        }
        done.rotate_right(1);
        for (client, request, reply) in &done {
            let again = client.exchange(replay(request, reply)).await.unwrap();
            assert!(again.results[0].is_ok(), "{again:?}");
        }
        for client in [&a, &b] {
            client.call(Op::ReclaimDone {}).await.unwrap();
        }
        assert_eq!([times(dir).await, times(ahead).await], before);
    });
}

#[test]
fn client_that_reads_nothing_is_disconnected_and_logged() {
    run(|bed| async move {
        let c = bed.client("c").await;
        c.stop_reading();
        for _ in 0..60 {
            for slot in 0..64 {
                let request = c.request(slot, vec![Op::Status {}]);
                c.send(&Message::Request { request });
            }
            // A slot is used again when its request is answered.
            bed.sleep(Duration::from_millis(5)).await;
        }
        bed.sleep(Duration::from_secs(70)).await;
        assert!(bed.logged("has read nothing for 60 s"), "{:?}", bed.log.borrow());
        assert!(bed.logged(&format!("client {}", c.id())));
    });
}
