//! Kills of the coordinator, of a worker, and of all servers, at moments of an operation.

use std::cell::RefCell;
use std::rc::Rc;

use commitment::Protocol;
use types::*;

use crate::bed::*;

/// Kills `victims` so many microseconds after an operation has begun, starts them again, and wants
/// an answer that agrees with what is there.
fn crash(protocol: Protocol, victims: &'static [u8], at: u64) {
    run(at, 2, protocol, |bed| async move {
        let c = bed.client("c").await;
        c.set_layout(ROOT, "mds=1").await.unwrap();
        let old = c.mkdir(ROOT, "old").await.unwrap();
        let there = c.mkdir(ROOT, "there").await.unwrap();
        let file = c.file(ROOT, "f").await.unwrap();
        let replaced = c.file(there, "f").await.unwrap();
        let answers: Rc<RefCell<Vec<_>>> = Rc::default();
        let (doer, noted) = (c.clone(), answers.clone());
        bed.env.spawn(async move {
            let made = doer.mkdir(ROOT, "new").await;
            let removed = doer.rmdir(ROOT, "old").await;
            let moved = doer.rename((ROOT, "f"), (there, "f")).await;
            noted.borrow_mut().push((made, removed, moved));
        });
        bed.env.sleep(Duration::from_micros(at)).await;
        victims.iter().for_each(|&shard| bed.kill(shard));
        bed.env.sleep(Duration::from_millis(50)).await;
        for &shard in victims {
            bed.start(shard).await;
        }
        while answers.borrow().is_empty() {
            bed.env.sleep(Duration::from_millis(20)).await;
        }
        let (made, removed, moved) = answers.borrow_mut().remove(0);
        let made = made.unwrap();
        removed.unwrap();
        moved.unwrap();
        assert_eq!(c.lookup(ROOT, "f").await, Ok(None));
        assert_eq!(c.lookup(there, "f").await, Ok(Some(file)));
        assert!(c.attr(replaced).await.is_err());
        assert_eq!(c.attr(file).await.unwrap().nlink, 1);
        assert_eq!(c.lookup(ROOT, "new").await, Ok(Some(made)));
        assert_eq!(c.lookup(ROOT, "old").await, Ok(None));
        assert_eq!(c.attr(made).await.unwrap().nlink, 2);
        assert!(c.attr(old).await.is_err());
        assert_eq!(c.attr(ROOT).await.unwrap().nlink, 4);
        c.file(made, "f").await.unwrap();
        // Nothing is left open.
        bed.env.sleep(Duration::from_secs(5)).await;
        assert!(!bed.logged("does not answer"), "{:#?}", bed.log);
    });
}

#[test]
fn operation_ends_though_servers_are_killed_at_any_moment() {
    for protocol in Protocol::ALL {
        for victims in [&[0][..], &[1], &[0, 1]] {
            for at in (0..4200).step_by(170) {
                crash(protocol, victims, at);
            }
        }
    }
}

/// The same with renames of directories: to another shard, over one, within a shard, and back in
/// exchange for another one.
fn crash_renames(protocol: Protocol, shards: u8, victims: &[u8], at: u64) {
    let victims = victims.to_vec();
    run(at, shards, protocol, |bed| async move {
        let c = bed.client("c").await;
        let last = shards - 1;
        let zero = c.mkdir_on(0, ROOT, "zero").await;
        let one = c.mkdir_on(1, ROOT, "one").await;
        let other = c.mkdir_on(1, ROOT, "other").await;
        let dir = c.mkdir_on(last, zero, "dir").await;
        let over = c.mkdir_on(0, one, "over").await;
        let file = c.file(dir, "f").await.unwrap();
        let answers: Rc<RefCell<Vec<_>>> = Rc::default();
        let (doer, noted) = (c.clone(), answers.clone());
        bed.env.spawn(async move {
            let out = doer.rename((zero, "dir"), (one, "over")).await;
            let within = doer.rename((one, "over"), (other, "dir")).await;
            let under = doer.rename((ROOT, "other"), (dir, "x")).await;
            let swapped = doer.rename_as((other, "dir"), (ROOT, "zero"), 2).await;
            noted.borrow_mut().push((out, within, under, swapped));
        });
        bed.restart_after(Duration::from_micros(at), &victims).await;
        while answers.borrow().is_empty() {
            bed.env.sleep(Duration::from_millis(20)).await;
        }
        let (out, within, under, swapped) = answers.borrow_mut().remove(0);
        out.unwrap();
        within.unwrap();
        assert_eq!(under.unwrap_err(), Fault::Invalid);
        swapped.unwrap();
        assert_eq!(c.lookup(zero, "dir").await, Ok(None));
        assert_eq!(c.lookup(one, "over").await, Ok(None));
        assert_eq!(c.attr(over).await.unwrap_err(), Fault::Stale);
        assert_eq!(c.lookup(other, "dir").await, Ok(Some(zero)));
        assert_eq!(c.lookup(ROOT, "zero").await, Ok(Some(dir)));
        assert_eq!(c.lookup(dir, "f").await, Ok(Some(file)));
        let mut links = Vec::new();
        for ino in [ROOT, zero, one, other, dir] {
            links.push(c.links(ino).await);
        }
        assert_eq!(links, [5, 2, 2, 3, 2]);
        // Nothing is left open.
        bed.env.sleep(Duration::from_secs(5)).await;
        assert!(!bed.logged("does not answer"), "{:#?}", bed.log);
    });
}

#[test]
fn renames_of_directories_end_though_servers_are_killed_at_any_moment() {
    for protocol in Protocol::ALL {
        let (shards, victims) = match protocol {
            // With more than one other server it is EP.
            Protocol::OnePhase => (2, &[&[0][..], &[1], &[0, 1]][..]),
            _ => (3, &[&[0][..], &[1], &[2], &[0, 1, 2]][..]),
        };
        for (nth, victims) in (0..).zip(victims) {
            for at in (nth * 170..7000).step_by(690) {
                crash_renames(protocol, shards, victims, at);
            }
        }
    }
}

#[test]
fn directory_stays_open_while_the_server_of_new_ones_is_away() {
    run(9, 2, Protocol::OnePhase, |bed| async move {
        let c = bed.client("c").await;
        c.set_layout(ROOT, "mds=1").await.unwrap();
        bed.kill(1);
        bed.env.sleep(Duration::from_secs(1)).await;
        let made: Rc<RefCell<Option<Ino>>> = Rc::default();
        let (doer, noted) = (c.clone(), made.clone());
        bed.env.spawn(async move {
            let dir = doer.mkdir(ROOT, "d").await.unwrap();
            *noted.borrow_mut() = Some(dir);
        });
        bed.env.sleep(Duration::from_secs(1)).await;
        // Others make and find files beside it.
        c.file(ROOT, "f").await.unwrap();
        assert_eq!(c.lookup(ROOT, "d").await, Ok(None));
        assert_eq!(*made.borrow(), None);
        bed.start(1).await;
        while made.borrow().is_none() {
            bed.env.sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(c.lookup(ROOT, "d").await, Ok(*made.borrow()));
    });
}

#[test]
fn listing_with_attributes_waits_for_what_a_joint_operation_has_closed() {
    let mut waited = 0;
    for at in (900..3300).step_by(200) {
        let waits: Rc<RefCell<bool>> = Rc::default();
        let seen = waits.clone();
        run(at, 2, Protocol::EarlyPrepare, |bed| async move {
            let c = bed.client("c").await;
            let here = c.mkdir_on(0, ROOT, "here").await;
            let there = c.mkdir_on(1, ROOT, "there").await;
            let file = c.file(here, "f").await.unwrap();
            let doer = c.clone();
            bed.env.spawn(async move { _ = doer.link(file, there, "g").await });
            bed.env.sleep(Duration::from_micros(at)).await;
            bed.kill(1);
            bed.env.sleep(Duration::from_millis(20)).await;
            let answers: Rc<RefCell<Vec<u32>>> = Rc::default();
            let (reader, noted) = (c.clone(), answers.clone());
            bed.env.spawn(async move {
                let links = reader.links(file).await;
                noted.borrow_mut().push(links);
            });
            let (reader, noted) = (c.clone(), answers.clone());
            bed.env.spawn(async move {
                let links = reader.list(here).await[0].1;
                noted.borrow_mut().push(links);
            });
            bed.env.sleep(Duration::from_millis(500)).await;
            let early = answers.borrow().len();
            assert!(early == 0 || early == 2, "one of two readers waits");
            *seen.borrow_mut() = early == 0;
            bed.start(1).await;
            while answers.borrow().len() < 2 {
                bed.env.sleep(Duration::from_millis(20)).await;
            }
            assert_eq!(answers.borrow()[0], answers.borrow()[1]);
            bed.env.sleep(Duration::from_secs(10)).await;
        });
        waited += u32::from(*waits.borrow());
    }
    assert!(waited > 0, "the file was never closed");
}
