//! Renames that move a directory, replace a name, or exchange two, over several shards.

use std::cell::RefCell;
use std::rc::Rc;

use commitment::Protocol;
use proto::mds::OpReply;
use types::*;

use crate::bed::*;

const NO_REPLACE: u32 = 1;
const EXCHANGE: u32 = 2;

/// The answer of a rename: what moved, and what had the new name.
fn renamed(reply: Result<OpReply, Fault>) -> (Ino, Option<Ino>) {
    match reply {
        Ok(OpReply::Renamed { moved, replaced, .. }) => {
            (moved.attr.ino, replaced.map(|attr| attr.ino))
        }
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn directory_moves_to_each_shard_and_back_with_its_content() {
    for protocol in Protocol::ALL {
        run(21, 3, protocol, |bed| async move {
            let c = bed.client("c").await;
            let parents = [
                c.mkdir_on(0, ROOT, "p0").await,
                c.mkdir_on(1, ROOT, "p1").await,
                c.mkdir_on(2, ROOT, "p2").await,
            ];
            for home in 0..3 {
                let d = c.mkdir_on(home, parents[0], "d").await;
                let (inner, file) = (c.mkdir(d, "inner").await.unwrap(), c.file(d, "f").await);
                let mut at = parents[0];
                // From each parent to each other one; home, and away.
                for to in [1, 2, 0, 2, 1, 0].map(|to| parents[to]) {
                    let reply = c.rename((at, "d"), (to, "d")).await;
                    assert_eq!(renamed(reply), (d, None));
                    assert_eq!(c.lookup(at, "d").await, Ok(None));
                    assert_eq!(c.lookup(to, "d").await, Ok(Some(d)));
                    assert_eq!((c.links(at).await, c.links(to).await), (2, 3));
                    assert_eq!(c.links(d).await, 3);
                    at = to;
                }
                assert_eq!(c.lookup(d, "inner").await, Ok(Some(inner)));
                assert_eq!(c.lookup(d, "f").await, Ok(Some(file.unwrap())));
                c.unlink(d, "f").await.unwrap();
                c.rmdir(d, "inner").await.unwrap();
                c.rmdir(at, "d").await.unwrap();
                assert_eq!(c.links(at).await, 2);
            }
        });
    }
}

#[test]
fn directory_moves_under_none_of_its_own_subdirectories() {
    run(22, 3, Protocol::OnePhase, |bed| async move {
        let c = bed.client("c").await;
        // A way down that changes the shard at each step, and comes back.
        let a = c.mkdir_on(1, ROOT, "a").await;
        let b = c.mkdir_on(2, a, "b").await;
        let d = c.mkdir_on(1, b, "d").await;
        let e = c.mkdir_on(0, d, "e").await;
        for (dir, text) in [(ROOT, "a"), (a, "b"), (b, "d")] {
            assert_eq!(c.rename((dir, text), (e, "x")).await.unwrap_err(), Fault::Invalid);
        }
        assert_eq!(c.rename((ROOT, "a"), (a, "x")).await.unwrap_err(), Fault::Invalid);
        assert_eq!(c.rename((ROOT, "a"), (b, "x")).await.unwrap_err(), Fault::Invalid);
        // On one shard, and only the others know what is between.
        assert_eq!(c.rename((ROOT, "a"), (d, "x")).await.unwrap_err(), Fault::Invalid);
        let f = c.mkdir(ROOT, "f").await.unwrap();
        assert_eq!(f.shard(), ShardId(1));
        // An exchange would put the upper one under the lower one.
        let swapped = c.rename_as((d, "e"), (ROOT, "a"), EXCHANGE).await;
        assert_eq!(swapped.unwrap_err(), Fault::Invalid);
        let swapped = c.rename_as((ROOT, "a"), (d, "e"), EXCHANGE).await;
        assert_eq!(swapped.unwrap_err(), Fault::Invalid);
        let over = c.rename((d, "e"), (ROOT, "a")).await;
        assert_eq!(over.unwrap_err(), Fault::NotEmpty);
        // What is no cycle goes through: within a shard whose way up leaves it, too.
        let inner = c.mkdir_on(1, d, "inner").await;
        renamed(c.rename((d, "inner"), (a, "up")).await);
        assert_eq!(c.lookup(a, "up").await, Ok(Some(inner)));
        let top = c.mkdir_on(0, ROOT, "top").await;
        renamed(c.rename((ROOT, "top"), (e, "down")).await);
        assert_eq!(c.lookup(e, "down").await, Ok(Some(top)));
        assert_eq!(c.rename((ROOT, "a"), (top, "x")).await.unwrap_err(), Fault::Invalid);
        renamed(c.rename((a, "b"), (f, "b")).await);
        assert_eq!(c.rename((ROOT, "f"), (top, "x")).await.unwrap_err(), Fault::Invalid);
        renamed(c.rename((ROOT, "a"), (top, "a")).await);
        assert_eq!(c.lookup(top, "a").await, Ok(Some(a)));
    });
}

/// Makes what may be renamed: a file or a directory of each shard, under `parent`.
async fn things(c: &Client, parent: Ino, kind: FileKind, at: &str) -> Vec<Ino> {
    let mut made = Vec::new();
    for home in 0..3 {
        let text = format!("{at}{home}");
        made.push(match kind {
            FileKind::Directory => c.mkdir_on(home, parent, &text).await,
            _ => {
                // It is made in a directory of its shard, and comes here by a rename.
                let dir = c.mkdir_on(home, parent, "made").await;
                let file = c.file(dir, "f").await.unwrap();
                renamed(c.rename((dir, "f"), (parent, &text)).await);
                c.rmdir(parent, "made").await.unwrap();
                file
            }
        });
        assert_eq!(made[usize::from(home)].shard(), ShardId(home));
    }
    made
}

#[test]
fn name_is_replaced_wherever_it_leads() {
    for (seed, protocol) in (30..).zip(Protocol::ALL) {
        run(seed, 3, protocol, |bed| async move {
            let c = bed.client("c").await;
            for kind in [FileKind::Regular, FileKind::Directory] {
                let from = c.mkdir_on(0, ROOT, "from").await;
                for to in 0..3 {
                    // Over a name of another directory, and over one of the same.
                    let to = if to == 0 { from } else { c.mkdir_on(to, ROOT, "to").await };
                    let (a, b) =
                        (things(&c, from, kind, "a").await, things(&c, to, kind, "b").await);
                    let before = (c.links(from).await, c.links(to).await);
                    for (at, &ino) in a.iter().enumerate() {
                        let gone = b[(at + 1) % 3];
                        let (source, over) = (format!("a{at}"), format!("b{}", (at + 1) % 3));
                        let kept = c.rename_as((from, &source), (to, &over), NO_REPLACE).await;
                        assert_eq!(kept.unwrap_err(), Fault::Exists);
                        let reply = c.rename((from, &source), (to, &over)).await;
                        assert_eq!(renamed(reply), (ino, Some(gone)));
                        assert_eq!(c.lookup(from, &source).await, Ok(None));
                        assert_eq!(c.lookup(to, &over).await, Ok(Some(ino)));
                        assert_eq!(c.attr(gone).await.unwrap_err(), Fault::Stale);
                    }
                    let directory = kind == FileKind::Directory;
                    let gone = if directory { 3 } else { 0 };
                    assert_eq!(c.links(from).await, before.0 - gone);
                    if to != from {
                        assert_eq!(c.links(to).await, before.1);
                    }
                    for (at, &ino) in a.iter().enumerate() {
                        assert_eq!(c.links(ino).await, 1 + u32::from(directory));
                        let text = format!("b{}", (at + 1) % 3);
                        match directory {
                            true => c.rmdir(to, &text).await.unwrap(),
                            false => drop(c.unlink(to, &text).await.unwrap()),
                        }
                    }
                    if to != from {
                        c.rmdir(ROOT, "to").await.unwrap();
                    }
                }
                c.rmdir(ROOT, "from").await.unwrap();
            }
        });
    }
}

#[test]
fn replacement_of_another_kind_or_of_a_full_directory_is_refused() {
    run(35, 3, Protocol::OnePhase, |bed| async move {
        let c = bed.client("c").await;
        let here = c.mkdir_on(0, ROOT, "here").await;
        let there = c.mkdir_on(1, ROOT, "there").await;
        let full = c.mkdir_on(2, there, "full").await;
        c.file(full, "f").await.unwrap();
        c.file(here, "file").await.unwrap();
        let dir = c.mkdir_on(2, here, "dir").await;
        let over = |from: &'static str, to: &'static str| c.rename((here, from), (there, to));
        assert_eq!(over("dir", "full").await.unwrap_err(), Fault::NotEmpty);
        assert_eq!(over("file", "full").await.unwrap_err(), Fault::IsDirectory);
        c.file(there, "g").await.unwrap();
        assert_eq!(over("dir", "g").await.unwrap_err(), Fault::NotDirectory);
        assert_eq!(over("gone", "g").await.unwrap_err(), Fault::NotFound);
        let swap = c.rename_as((here, "dir"), (there, "gone"), EXCHANGE).await;
        assert_eq!(swap.unwrap_err(), Fault::NotFound);
        assert_eq!(c.lookup(here, "dir").await, Ok(Some(dir)));
        // Two names of one inode stay both.
        let file = c.lookup(here, "file").await.unwrap().unwrap();
        c.link(file, there, "too").await.unwrap();
        assert_eq!(renamed(over("file", "too").await), (file, Some(file)));
        assert_eq!(c.links(file).await, 2);
        assert_eq!(c.lookup(here, "file").await, Ok(Some(file)));
    });
}

#[test]
fn names_are_exchanged_wherever_they_lead() {
    for (seed, protocol) in (40..).zip(Protocol::ALL) {
        run(seed, 3, protocol, |bed| async move {
            let c = bed.client("c").await;
            let from = c.mkdir_on(0, ROOT, "from").await;
            for (home, kinds) in [
                (1, [FileKind::Directory, FileKind::Directory]),
                (1, [FileKind::Directory, FileKind::Regular]),
                (0, [FileKind::Directory, FileKind::Regular]),
                (1, [FileKind::Regular, FileKind::Regular]),
            ] {
                let text = format!("to{home}{:?}{:?}", kinds[0], kinds[1]);
                let to = c.mkdir_on(home, ROOT, &text).await;
                let a = things(&c, from, kinds[0], "a").await;
                let b = things(&c, to, kinds[1], "b").await;
                let links = (c.links(from).await, c.links(to).await);
                for (at, &ino) in a.iter().enumerate() {
                    for (other, &its) in b.iter().enumerate() {
                        let (one, two) = (format!("a{at}"), format!("b{other}"));
                        let swapped = c.rename_as((from, &one), (to, &two), EXCHANGE).await;
                        assert_eq!(renamed(swapped), (ino, Some(its)));
                        assert_eq!(c.lookup(from, &one).await, Ok(Some(its)));
                        assert_eq!(c.lookup(to, &two).await, Ok(Some(ino)));
                        let moved = u32::from(kinds[0] != kinds[1]);
                        assert_eq!(c.links(from).await, links.0 - moved);
                        assert_eq!(c.links(to).await, links.1 + moved);
                        let back = c.rename_as((to, &two), (from, &one), EXCHANGE).await;
                        assert_eq!(renamed(back), (ino, Some(its)));
                    }
                }
                for at in 0..3 {
                    for (dir, text, kind) in [(from, "a", kinds[0]), (to, "b", kinds[1])] {
                        let text = format!("{text}{at}");
                        match kind {
                            FileKind::Directory => c.rmdir(dir, &text).await.unwrap(),
                            _ => drop(c.unlink(dir, &text).await.unwrap()),
                        }
                    }
                }
            }
        });
    }
}

#[test]
fn opposite_streams_of_moves_both_go_on() {
    for (seed, protocol) in (50..).zip(Protocol::ALL) {
        run(seed, 2, protocol, |bed| async move {
            let c = bed.client("c").await;
            let dirs = [c.mkdir_on(0, ROOT, "a").await, c.mkdir_on(1, ROOT, "b").await];
            const MOVES: usize = 20;
            for (at, &dir) in dirs.iter().enumerate() {
                for nth in 0..MOVES {
                    c.file(dir, &format!("f{at}.{nth}")).await.unwrap();
                    c.mkdir(dir, &format!("d{at}.{nth}")).await.unwrap();
                }
            }
            let begun = bed.env.now();
            let longest: Rc<RefCell<Vec<Duration>>> = Rc::default();
            for at in 0..2 {
                let (c, env) = (bed.client(&format!("c{at}")).await, bed.env.clone());
                let (from, to, longest) = (dirs[at], dirs[1 - at], longest.clone());
                bed.env.spawn(async move {
                    let mut most = Duration::ZERO;
                    for name in
                        (0..MOVES).flat_map(|nth| [format!("f{at}.{nth}"), format!("d{at}.{nth}")])
                    {
                        let since = env.now();
                        c.rename((from, &name), (to, &name)).await.unwrap();
                        most = most.max(env.now().since(since));
                    }
                    longest.borrow_mut().push(most);
                });
            }
            while longest.borrow().len() < 2 {
                bed.env.sleep(Duration::from_millis(10)).await;
            }
            // Nobody has waited until patience ended.
            let (longest, all) = (longest.take(), bed.env.now().since(begun));
            let most = Duration::from_secs(2);
            assert!(longest.iter().all(|&it| it < most), "{protocol:?}: {longest:?} of {all:?}");
        });
    }
}

#[test]
fn moves_into_each_other_make_no_circle() {
    for seed in 60..90 {
        run(seed, 3, Protocol::ALL[seed as usize % 4], |bed| async move {
            let c = bed.client("c").await;
            // Two trees of two levels on different shards, and each is to go below the other.
            let (a, b) = (c.mkdir_on(1, ROOT, "a").await, c.mkdir_on(2, ROOT, "b").await);
            let (low, deep) = (c.mkdir_on(2, a, "low").await, c.mkdir_on(0, b, "deep").await);
            let done: Rc<RefCell<Vec<Result<OpReply, Fault>>>> = Rc::default();
            for (nth, (text, under)) in [("a", deep), ("b", low)].into_iter().enumerate() {
                let (c, done) = (bed.client(&format!("c{nth}")).await, done.clone());
                let (env, pause) = (bed.env.clone(), (seed - 60) * 40 * nth as u64);
                bed.env.spawn(async move {
                    env.sleep(Duration::from_micros(pause)).await;
                    let moved = c.rename((ROOT, text), (under, "x")).await;
                    done.borrow_mut().push(moved);
                });
            }
            while done.borrow().len() < 2 {
                bed.env.sleep(Duration::from_millis(10)).await;
            }
            let done = done.take();
            assert_eq!(done.iter().filter(|it| it.is_ok()).count(), 1, "{done:?}");
            let refused = done.iter().find_map(|it| it.as_ref().err());
            assert_eq!(refused, Some(&Fault::Invalid));
            // Both trees can be reached from the root.
            let (top, text) = match c.lookup(ROOT, "a").await.unwrap() {
                Some(top) => (top, "low"),
                None => (b, "deep"),
            };
            assert!(c.lookup(top, text).await.unwrap().is_some());
            assert_eq!(c.links(ROOT).await, 3);
        });
    }
}
