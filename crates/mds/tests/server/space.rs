//! Data space.

use proto::mds::*;
use proto::wire::Bytes;
use types::*;

use crate::bed::*;

const ROOT: Ino = Ino::ROOT;

fn segment(file: u64, len: u64, run: &PagRun) -> Segment {
    let state = SegmentState::Written;
    Segment { file: FileBlock(file), len, pag: run.pag, addr: run.addr, state }
}

async fn free(c: &Client) -> u64 {
    match c.call(Op::Statfs {}).await {
        Ok(OpReply::Statfs { statfs }) => statfs.blocks_free,
        other => panic!("{other:?}"),
    }
}

#[test]
fn zones_that_a_client_cannot_reach_are_not_granted() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let ask = |unreachable| Op::Space { hint: Some(PagId(0)), blocks: 10, unreachable };
        assert_eq!(c.call(ask(vec![PagId(0)])).await, Err(Fault::NoSpace));
        let far_too_many = vec![PagId(7); types::limits::PAGS_MAX + 1];
        assert_eq!(c.call(ask(far_too_many)).await, Err(Fault::TooBig));
        let granted = c.call(ask(vec![PagId(7)])).await;
        assert!(matches!(granted, Ok(OpReply::Space { .. })), "{granted:?}");
    });
}

#[test]
fn granted_blocks_are_mapped_unmapped_and_freed() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let before = free(&c).await;
        let ino = c
            .create(ROOT, "f", FileKind::Regular, Rights::DATA_X | Rights::OPEN)
            .await
            .unwrap()
            .attr
            .ino;
        let run = c.space(100).await.unwrap().remove(0);
        assert_eq!(run.len, 100);
        let attr = c
            .commit(ino, vec![Edit::Map { segment: segment(5, 60, &run) }], Some(65 * 4096))
            .await
            .unwrap();
        assert_eq!((attr.size, attr.blocks), (65 * 4096, 60));
        let (_, layout) = c.acquire(ino, Rights::DATA_S).await.unwrap();
        assert_eq!(layout.unwrap().segments, [segment(5, 60, &run)]);
        let foreign = PagRun { addr: PagBlock(500_000), ..run.clone() };
        let stolen =
            c.commit(ino, vec![Edit::Map { segment: segment(0, 1, &foreign) }], None).await;
        assert_eq!(stolen, Err(Fault::Invalid));
        let cut = vec![Edit::Unmap { from: FileBlock(10), to: u64::MAX >> 13 }];
        assert_eq!(c.commit(ino, cut, Some(0)).await.unwrap().blocks, 5);
        let remainder = PagRun { pag: run.pag, addr: PagBlock(run.addr.0 + 60), len: 40 };
        c.call(Op::ReturnSpace { runs: vec![remainder] }).await.unwrap();
        c.call(Op::Unlink { dir: ROOT, name: name("f"), unused: Some(ino) }).await.unwrap();
        bed.sleep(Duration::from_secs(3)).await;
        assert_eq!(free(&c).await, before);
    });
}

#[test]
fn commit_of_many_edits_is_applied_whole() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let ino = c.create(ROOT, "f", FileKind::Regular, Rights::DATA_X).await.unwrap().attr.ino;
        let run = c.space(1000).await.unwrap().remove(0);
        let part = |index: u64| PagRun { addr: PagBlock(run.addr.0 + index), ..run.clone() };
        let edits = (0..400).map(|i| Edit::Map { segment: segment(i * 2, 1, &part(i)) }).collect();
        assert_eq!(c.commit(ino, edits, Some(1 << 30)).await.unwrap().blocks, 400);
        let edits = vec![
            Edit::Unmap { from: FileBlock(0), to: 700 },
            Edit::Map { segment: segment(0, 100, &part(500)) },
        ];
        let attr = c.commit(ino, edits, Some(5)).await.unwrap();
        assert_eq!((attr.blocks, attr.size), (150, 5));
    });
}

/// PROTOCOLS 6.5.
#[test]
fn commit_that_fails_midway_reports_how_far_it_came() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let ino = c.create(ROOT, "f", FileKind::Regular, Rights::DATA_X).await.unwrap().attr.ino;
        let run = c.space(1000).await.unwrap().remove(0);
        let part = |index: u64| PagRun { addr: PagBlock(run.addr.0 + index), ..run.clone() };
        let map = |i: u64| Edit::Map { segment: segment(i * 2, 1, &part(i)) };
        let mut edits: Vec<Edit> = (0..100).map(map).collect();
        edits[70] = Edit::Unmap { from: FileBlock(9), to: 9 };
        let size = Some(1 << 20);
        let op = |edits| Op::Commit {
            ino,
            edits,
            size,
            mtime: None,
            ctime: None,
            merge: false,
            tail_zero: false,
        };
        let request = c.request(3, vec![op(edits.clone()), op(Vec::new())]);
        let reply = c.exchange(request.clone()).await.unwrap();
        let [Ok(OpReply::Partial { done, fault: Fault::Invalid })] = reply.results[..] else {
            panic!("{:?}", reply.results)
        };
        assert!((1..=70).contains(&done), "{done}");
        // The other edits can be sent on their own; the edits that are done cannot be repeated.
        edits[70] = map(70);
        let again = c.commit(ino, edits.clone(), size).await;
        assert_eq!(again, Err(Fault::Invalid));
        let remainder = c.request(4, vec![op(edits[done as usize..].to_vec())]);
        let remainder_reply = c.exchange(remainder.clone()).await.unwrap();
        assert!(remainder_reply.results[0].is_ok(), "{remainder_reply:?}");
        // Both are replayed as they were, and no further.
        let sent = [(&request, &reply), (&remainder, &remainder_reply)];
        bed.restart().await;
        assert_eq!(c.connect(c.id()).await.unwrap().state, RECOVERED);
        for (request, reply) in sent {
            let replay = Replay { transno: reply.transno, results: reply.results.clone() };
            let replay = Request { replay: Some(replay), ..request.clone() };
            let again = c.exchange(replay).await.unwrap();
            assert_eq!(again.results.len(), 1);
            match (&again.results[0], &reply.results[0]) {
                (Ok(OpReply::Partial { .. }), part) => assert_eq!(&again.results[0], part),
                (result, _) => assert!(result.is_ok(), "{again:?}"),
            }
        }
        c.call(Op::ReclaimDone {}).await.unwrap();
        let OpReply::Attr { leased } = remainder_reply.results[0].clone().unwrap() else {
            panic!()
        };
        assert_eq!((leased.attr.blocks, leased.attr.size), (100, 1 << 20));
        let (now, layout) = c.acquire(ino, Rights::DATA_S).await.unwrap();
        assert_eq!((now.attr.blocks, now.attr.size), (100, 1 << 20));
        assert_eq!(layout.unwrap().segments[70], segment(140, 1, &part(70)));
    });
}

#[test]
fn full_device_reports_no_space_and_unlink_makes_room() {
    with_blocks(2000, |bed| async move {
        let c = bed.client("c").await;
        let ino = c
            .create(ROOT, "f", FileKind::Regular, Rights::DATA_X | Rights::OPEN)
            .await
            .unwrap()
            .attr
            .ino;
        let (mut at_block, mut fault) = (0, None);
        while fault.is_none() {
            match c.space(4096).await {
                Ok(runs) => {
                    for run in runs {
                        let edit = Edit::Map { segment: segment(at_block, run.len, &run) };
                        at_block += run.len;
                        c.commit(ino, vec![edit], Some(at_block * 4096)).await.unwrap();
                    }
                }
                Err(other) => fault = Some(other),
            }
        }
        assert_eq!(fault, Some(Fault::NoSpace));
        assert_eq!(at_block, 1999, "all but the label's block");
        c.file(ROOT, "names still fit").await;
        c.call(Op::Unlink { dir: ROOT, name: name("f"), unused: Some(ino) }).await.unwrap();
        let runs = c.space(10).await.unwrap();
        assert_eq!(
            runs.iter().map(|run| run.len).sum::<u64>(),
            10,
            "no wait is needed by the client"
        );
    });
}

#[test]
fn pool_of_a_leaving_client_is_free_again() {
    run(|bed| async move {
        let (a, b) = (bed.client("a").await, bed.client("b").await);
        let before = free(&b).await;
        a.space(3000).await.unwrap();
        assert_eq!(free(&b).await, before - 3000);
        a.call(Op::Goodbye {}).await.unwrap();
        assert_eq!(free(&b).await, before);
    });
}

/// Gives `client` all blocks; returns its pool.
async fn take_all(client: &Client) -> Vec<PagRun> {
    let mut pool = Vec::new();
    while let Ok(runs) = client.space(4096).await {
        pool.extend(runs);
    }
    pool
}

/// PROTOCOLS 6.4.
#[test]
fn unused_pools_are_reclaimed_before_a_client_gets_no_space() {
    with_blocks(2000, |bed| async move {
        let (a, b) = (bed.client("a").await, bed.client("b").await);
        let mut pool = take_all(&a).await;
        let asker = b.clone();
        let granted = bed.env.spawn_join(async move { asker.space(100).await });
        a.push(|push| *push == Push::SpaceWanted {}).await;
        let unused = pool.split_off(1);
        assert!(unused.iter().map(|run| run.len).sum::<u64>() > 100);
        a.reserved(Op::ReturnSpace { runs: unused }).await;
        let runs = granted.await.unwrap();
        assert!(runs.iter().map(|run| run.len).sum::<u64>() > 0, "{runs:?}");
        // The remaining blocks are in use: the server does not wait for a client that says so.
        take_all(&b).await;
        // Taking all blocks has asked, too.
        a.forget_pushes();
        let (asker, before) = (b.clone(), bed.env.now());
        let refused = bed.env.spawn_join(async move { asker.space(100).await });
        a.push(|push| *push == Push::SpaceWanted {}).await;
        a.reserved(Op::ReturnSpace { runs: vec![] }).await;
        assert_eq!(refused.await, Err(Fault::NoSpace));
        assert!(bed.env.now().since(before) < Duration::from_secs(1));
    });
}

/// PROTOCOLS 6.4.
#[test]
fn unanswered_pool_reclaim_delays_others_for_a_bounded_time() {
    with_blocks(2000, |bed| async move {
        let (a, b) = (bed.client("a").await, bed.client("b").await);
        take_all(&a).await;
        let before = bed.env.now();
        assert_eq!(b.space(100).await, Err(Fault::NoSpace));
        let waited = bed.env.now().since(before);
        assert!(waited <= LEASE, "{} ms", waited.as_millis());
        // The server asks again: the next answer counts.
        let asker = b.clone();
        let granted = bed.env.spawn_join(async move { asker.space(1).await });
        a.push(|push| *push == Push::SpaceWanted {}).await;
        a.push(|push| *push == Push::SpaceWanted {}).await;
        a.disconnect();
        assert_eq!(granted.await, Err(Fault::NoSpace));
    });
}

#[test]
fn client_can_mount_and_unlink_with_a_full_metadata_zone() {
    with_sizes(7, (10 << 20, 2000), |bed| async move {
        let c = bed.client("c").await;
        // Fill the zone with large attributes first, then with names.
        let mut created = 0;
        let mut name = || {
            created += 1;
            format!("f{}", created - 1)
        };
        loop {
            let ino = c.file(ROOT, &name()).await;
            let value = Bytes(vec![7; 60_000]);
            let name = Bytes(b"user.a".to_vec());
            let set = Op::SetXattr { ino, name, value, flags: 0, kill_setgid: false };
            match c.call(set).await {
                Ok(_) => {}
                Err(fault) => break assert_eq!(fault, Fault::NoSpace),
            }
        }
        let refused = loop {
            match c.create(ROOT, &name(), FileKind::Directory, Rights::empty()).await {
                Ok(created) => {
                    let dir = created.attr.ino;
                    _ = c.create(dir, "x", FileKind::Regular, Rights::empty()).await;
                }
                Err(fault) => break fault,
            }
        };
        assert_eq!(refused, Fault::NoSpace);
        let d = bed.client("d").await;
        c.disconnect();
        bed.restart().await;
        for client in [&c, &d] {
            assert_eq!(client.connect(client.id()).await.unwrap().state, RECOVERED);
            client.call(Op::ReclaimDone {}).await.unwrap();
        }
        d.unlink(ROOT, "f0").await.unwrap();
        d.file(ROOT, "again").await;
    });
}

/// Fills a metadata zone with attributes and names, `what` and a number.
async fn fill_metadata(c: &Client, what: &str) {
    let mut made = 0;
    loop {
        match c.create(ROOT, &format!("{what}{made}"), FileKind::Regular, Rights::empty()).await {
            Ok(file) => {
                made += 1;
                let (ino, value) = (file.attr.ino, Bytes(vec![7; 60_000]));
                let name = Bytes(b"user.a".to_vec());
                let set = Op::SetXattr { ino, name, value, flags: 0, kill_setgid: false };
                _ = c.call(set).await;
            }
            Err(fault) => {
                assert_eq!(fault, Fault::NoSpace);
                return;
            }
        }
    }
}

/// Says in the slot of recoveries that there is nothing to reclaim.
async fn recovered(c: &Client) {
    let done = c.exchange(c.request(127, vec![Op::ReclaimDone {}])).await.unwrap();
    assert_eq!(done.results, [Ok(OpReply::Done {})]);
}

/// PROTOCOLS 3.6, 3.8.
#[test]
fn every_client_changes_things_in_every_slot_of_a_full_metadata_zone_exactly_once() {
    with_sizes(7, (10 << 20, 2000), |bed| async move {
        let mut clients = Vec::new();
        for n in 0..12 {
            let c = bed.client(&format!("c{n}")).await;
            let mut files = Vec::new();
            let dir = c.dir(ROOT, &format!("dir{n}")).await;
            for slot in 0..127 {
                let text = format!("{slot}");
                let made = c.create(dir, &text, FileKind::Regular, Rights::DATA_X).await;
                files.push(made.unwrap().attr.ino);
            }
            clients.push((c, dir, files));
        }
        fill_metadata(&clients[0].0, "f").await;
        // A removal, a change of attributes or a commit in each slot, reserved ones included.
        let mut sent = Vec::new();
        for (c, dir, files) in &clients {
            for slot in 0..127 {
                let ino = files[usize::from(slot)];
                let unlink = Op::Unlink { dir: *dir, name: name(&format!("{slot}")), unused: None };
                let mode = SetAttr { mode: Some(0o600), ..no_change() };
                let commit = |ino| Op::Commit {
                    ino,
                    edits: Vec::new(),
                    size: Some(7),
                    mtime: None,
                    ctime: None,
                    merge: false,
                    tail_zero: false,
                };
                let ops = match slot % 3 {
                    0 => vec![unlink],
                    1 => vec![Op::SetAttr { ino, set: mode }],
                    // As long as a compound may be.
                    _ => vec![commit(ino); limits::COMPOUND_OPS_MAX],
                };
                let request = c.request(slot, ops);
                let reply = c.exchange(request.clone()).await.unwrap();
                assert!(reply.results.iter().all(Result::is_ok), "slot {slot}: {reply:?}");
                sent.push((c, request));
            }
            // Nobody else may have what a removal frees.
            fill_metadata(&clients[0].0, &format!("more{dir}-")).await;
        }
        clients[0].0.sync().await;
        bed.restart().await;
        for (c, ..) in &clients {
            assert_eq!(c.connect(c.id()).await.unwrap().state, RECOVERED);
            recovered(c).await;
        }
        // As if no answer had come.
        for (c, request) in sent {
            let slot = request.slot;
            let reply = c.exchange(request).await.unwrap();
            assert!(reply.results.iter().all(Result::is_ok), "slot {slot}: {reply:?}");
        }
        clients[11].0.unlink(ROOT, "f0").await.unwrap();
    });
}

/// PROTOCOLS 3.8.
#[test]
fn long_reply_finds_no_block_in_a_full_metadata_zone_and_nothing_is_done() {
    with_sizes(7, (10 << 20, 2000), |bed| async move {
        let c = bed.client("c").await;
        let dir = c.dir(ROOT, "dir").await;
        for n in 0..8 {
            c.file(dir, &format!("{n}")).await;
        }
        fill_metadata(&c, "f").await;
        let unlink = |n| Op::Unlink { dir, name: name(&format!("{n}")), unused: None };
        let request = c.request(9, (0..8).map(unlink).collect());
        let reply = c.exchange(request.clone()).await.unwrap();
        // Two outcomes fit a short reply.
        assert!(matches!(reply.results[..], [Ok(_), Ok(_), Err(Fault::NoSpace)]), "{reply:?}");
        assert!(c.lookup(dir, "1").await.is_none() && c.lookup(dir, "2").await.is_some());
        // The client asks for the others by themselves.
        for n in 2..8 {
            c.call(unlink(n)).await.unwrap();
        }
        c.sync().await;
        bed.restart().await;
        assert_eq!(c.connect(c.id()).await.unwrap().state, RECOVERED);
        recovered(&c).await;
        let again = c.exchange(request).await.unwrap();
        assert!(matches!(again.results[..], [Ok(_), Ok(_), Err(_)]), "{again:?}");
    });
}
