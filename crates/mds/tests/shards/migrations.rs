//! Directories that move to other servers, and keep their numbers and names.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use commitment::Protocol;
use proto::mds::{Op, OpReply};
use types::*;

use crate::bed::*;

/// The names of a directory, sorted, as the server lists them.
async fn names(c: &Client, dir: Ino) -> Vec<(String, Ino)> {
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let (want, want_dir) = (Rights::empty(), Rights::empty());
        let op = Op::ReadDir { dir, cookie, max: 7, plus: false, want, want_dir };
        let Ok(OpReply::Entries { entries, .. }) = c.call(dir, op).await else { panic!("a list") };
        let Some(last) = entries.last() else { break };
        cookie = last.cookie;
        let text = |name: &Name| String::from_utf8_lossy(name.as_bytes()).into_owned();
        all.extend(entries.iter().map(|entry| (text(&entry.name), entry.ino)));
    }
    all.sort_unstable();
    all
}

/// Makes, renames, links and removes in a directory, and leaves it as it was.
async fn use_all(c: &Client, dir: Ino, other: Ino) {
    let before = (names(c, dir).await, c.links(dir).await, c.links(other).await);
    let file = c.file(dir, "new").await.unwrap();
    assert_eq!(c.lookup(dir, "new").await, Ok(Some(file)));
    assert_eq!(c.link(file, other, "second").await.unwrap().nlink, 2);
    c.rename((dir, "new"), (dir, "newer")).await.unwrap();
    c.rename((dir, "newer"), (other, "newest")).await.unwrap();
    c.rename((other, "newest"), (dir, "new")).await.unwrap();
    assert_eq!(c.unlink(other, "second").await.unwrap().nlink, 1);
    assert_eq!(c.unlink(dir, "new").await.unwrap().nlink, 0);
    let made = c.mkdir(dir, "made").await.unwrap();
    c.file(made, "f").await.unwrap();
    assert_eq!(c.rmdir(dir, "made").await, Err(Fault::NotEmpty));
    c.rename((dir, "made"), (other, "made")).await.unwrap();
    c.unlink(made, "f").await.unwrap();
    c.rmdir(other, "made").await.unwrap();
    assert_eq!((names(c, dir).await, c.links(dir).await, c.links(other).await), before);
}

#[test]
fn directory_moves_to_each_server_and_back_with_all_its_names() {
    for protocol in Protocol::ALL {
        run(81, 3, protocol, |bed| async move {
            let (c, other) = (bed.client("c").await, bed.client("other").await);
            let side = c.mkdir_on(1, ROOT, "side").await;
            let parent = c.mkdir_on(0, ROOT, "parent").await;
            let dir = c.mkdir(parent, "dir").await.unwrap();
            let file = c.file(dir, "file").await.unwrap();
            let both = c.file(dir, "both").await.unwrap();
            c.link(both, dir, "again").await.unwrap();
            c.link(both, side, "both").await.unwrap();
            let below = c.mkdir(dir, "below").await.unwrap();
            let deep = c.file(below, "deep").await.unwrap();
            for shard in 0..3 {
                c.mkdir_on(shard, dir, &format!("on {shard}")).await;
            }
            let (all, links) = (names(&c, dir).await, c.links(dir).await);
            for shard in [1, 2, 1, 0, 0, 2, 0] {
                c.move_to(shard, dir).await.unwrap();
                for client in [&c, &other] {
                    assert_eq!(names(client, dir).await, all);
                    assert_eq!(client.home(dir), shard, "{protocol:?}");
                    assert_eq!(client.links(dir).await, links);
                    assert_eq!(client.lookup(parent, "dir").await, Ok(Some(dir)));
                    assert_eq!(client.lookup(below, "deep").await, Ok(Some(deep)));
                    assert_eq!((client.links(both).await, client.links(file).await), (3, 1));
                }
                use_all(&other, dir, side).await;
                use_all(&c, dir, below).await;
                c.rename((parent, "dir"), (side, "here")).await.unwrap();
                c.rename((side, "here"), (parent, "dir")).await.unwrap();
                let circle = c.rename((parent, "dir"), (below, "circle")).await;
                assert_eq!(circle.unwrap_err(), Fault::Invalid);
            }
            // What is below it goes, too, and what is above.
            for (shard, which) in [(1, below), (2, dir), (1, parent), (1, dir), (0, below)] {
                c.move_to(shard, which).await.unwrap();
                assert_eq!(names(&other, dir).await, all);
                assert_eq!(other.lookup(below, "deep").await, Ok(Some(deep)));
                use_all(&other, dir, below).await;
                use_all(&c, parent, side).await;
            }
            for text in ["file", "both", "again"] {
                c.unlink(dir, text).await.unwrap();
            }
            c.unlink(below, "deep").await.unwrap();
            for text in ["below", "on 0", "on 1", "on 2"] {
                c.rmdir(dir, text).await.unwrap();
            }
            c.rmdir(parent, "dir").await.unwrap();
            assert!(other.attr(dir).await.is_err());
            c.rmdir(ROOT, "parent").await.unwrap();
            assert_eq!(c.unlink(side, "both").await.unwrap().nlink, 0);
        });
    }
}

#[test]
fn client_that_asks_gives_up_what_it_holds_of_the_directory() {
    run(84, 2, Protocol::OnePhase, |bed| async move {
        let (c, other) = (bed.client("c").await, bed.client("other").await);
        let dir = c.mkdir(ROOT, "dir").await.unwrap();
        c.file(dir, "file").await.unwrap();
        for shard in [1, 0, 1] {
            for client in [&c, &other] {
                let want_dir = Rights::NAMES | Rights::ATTR;
                let name = name("file");
                let op = Op::Lookup { dir, name, want: Rights::ATTR, want_dir };
                client.call(dir, op).await.unwrap();
            }
            let before = (c.recalls(), other.recalls());
            c.move_to(shard, dir).await.unwrap();
            assert!(c.recalls() > before.0 && other.recalls() > before.1, "to {shard}");
        }
    });
}

#[test]
fn what_cannot_move_is_refused() {
    run(82, 2, Protocol::OnePhase, |bed| async move {
        let c = bed.client("c").await;
        let dir = c.mkdir(ROOT, "dir").await.unwrap();
        let file = c.file(ROOT, "file").await.unwrap();
        assert_eq!(c.move_to(1, ROOT).await, Err(Fault::Invalid));
        assert_eq!(c.move_to(1, file).await, Err(Fault::NotDirectory));
        assert_eq!(c.move_to(7, dir).await, Err(Fault::Invalid), "there is no such server");
        assert_eq!(c.move_to(0, dir).await, Ok(()), "it is there");
        for n in 0..1000 {
            c.make(dir, &format!("a name that is not very short {n}"), FileKind::Fifo)
                .await
                .unwrap();
        }
        assert_eq!(c.move_to(1, dir).await, Err(Fault::TooBig), "for one entry");
        c.make(dir, "one more", FileKind::Fifo).await.unwrap();
        assert_eq!(c.move_to(1, dir).await, Err(Fault::TooBig));
        for n in 100..1000 {
            c.unlink(dir, &format!("a name that is not very short {n}")).await.unwrap();
        }
        c.move_to(1, dir).await.unwrap();
        assert_eq!(names(&c, dir).await.len(), 101);
        c.rmdir(ROOT, "dir").await.unwrap_err();
    });
}

#[test]
fn names_that_others_make_meanwhile_are_all_there() {
    for protocol in Protocol::ALL {
        run(83, 3, protocol, |bed| async move {
            let c = bed.client("c").await;
            let dir = c.mkdir(ROOT, "dir").await.unwrap();
            let (ended, made) = (Rc::new(Cell::new(0)), Rc::<RefCell<Vec<_>>>::default());
            for k in 0..3 {
                let client = bed.client(&format!("c{k}")).await;
                let (ended, made) = (ended.clone(), made.clone());
                bed.env.spawn(async move {
                    for n in 0..20 {
                        let text = format!("{k} {n}");
                        let ino = match n % 4 {
                            0 => client.mkdir(dir, &text).await.unwrap(),
                            _ => client.file(dir, &text).await.unwrap(),
                        };
                        if n % 3 == 0 {
                            let to = format!("moved {text}");
                            client.rename((dir, &text), (dir, &to)).await.unwrap();
                            made.borrow_mut().push((to, ino));
                        } else {
                            made.borrow_mut().push((text, ino));
                        }
                    }
                    ended.set(ended.get() + 1);
                });
            }
            let mut moves = 0_u64;
            while ended.get() < 3 {
                moves += 1;
                c.move_to((moves % 3) as u8, dir).await.unwrap();
                bed.env.sleep(Duration::from_millis(1)).await;
            }
            println!("{protocol:?}: {moves} moves");
            assert!(moves > 3, "{moves}");
            let mut made = made.take();
            made.sort_unstable();
            assert_eq!(names(&c, dir).await, made);
            assert_eq!(c.links(dir).await, 2 + 15);
        });
    }
}

/// Kills `victims` so many microseconds after a directory began to move away, to a third server
/// and back, starts them again, and wants it to be where the answers say.
fn crash(protocol: Protocol, victims: &[u8], at: u64) {
    let victims = victims.to_vec();
    run(at, 3, protocol, |bed| async move {
        let c = bed.client("c").await;
        let dir = c.mkdir(ROOT, "dir").await.unwrap();
        let below = c.mkdir_on(0, dir, "below").await;
        c.mkdir_on(1, dir, "there").await;
        let file = c.file(dir, "file").await.unwrap();
        c.link(file, below, "linked").await.unwrap();
        let all = names(&c, dir).await;
        let answers: Rc<RefCell<Vec<_>>> = Rc::default();
        let (doer, noted) = (c.clone(), answers.clone());
        bed.env.spawn(async move {
            for shard in [1, 2, 0, 1] {
                let moved = doer.move_to(shard, dir).await;
                noted.borrow_mut().push(moved);
            }
        });
        bed.restart_after(Duration::from_micros(at), &victims).await;
        while answers.borrow().len() < 4 {
            bed.env.sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(answers.take(), [Ok(()); 4]);
        assert_eq!(names(&c, dir).await, all);
        assert_eq!(c.home(dir), 1);
        assert_eq!((c.links(dir).await, c.links(file).await), (4, 2));
        use_all(&c, dir, below).await;
        c.unlink(dir, "file").await.unwrap();
        assert_eq!(c.links(file).await, 1);
        // Nothing is left open.
        bed.env.sleep(Duration::from_secs(5)).await;
        assert!(!bed.logged("does not answer"), "{:#?}", bed.log);
    });
}

#[test]
fn move_ends_though_servers_are_killed_at_any_moment() {
    for protocol in Protocol::ALL {
        for victims in [&[0][..], &[1], &[0, 1]] {
            for at in (0..6000).step_by(610) {
                crash(protocol, victims, at);
            }
        }
    }
}
