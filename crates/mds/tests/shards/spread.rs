//! Spread directories: files whose names and inodes lie on different shards from the beginning.

use std::cell::RefCell;
use std::rc::Rc;

use commitment::Protocol;
use proto::mds::{Leased, NewNode, Op, OpReply, SetAttr};
use types::*;

use crate::bed::*;

/// Rights that a client wants of a file that it creates and opens.
const OPENED: Rights = Rights::ATTR.union(Rights::OPEN).union(Rights::DATA_X);

impl Client {
    /// Has the server of a shard make a new inode in `dir`.
    async fn make_at(
        &self,
        shard: u8,
        (dir, text): (Ino, &str),
        kind: FileKind,
        want: Rights,
    ) -> Result<Leased, Fault> {
        let node = NewNode::plain(kind, 0o755, 0o022);
        match self.call_at(shard, Op::Create { dir, name: name(text), node, want }).await? {
            OpReply::Created { leased, .. } => Ok(leased),
            reply => panic!("{reply:?}"),
        }
    }

    async fn file_at(&self, shard: u8, dir: Ino, text: &str) -> Result<Ino, Fault> {
        let made = self.make_at(shard, (dir, text), FileKind::Regular, Rights::empty()).await?;
        Ok(made.attr.ino)
    }
}

#[test]
fn file_lies_where_it_is_made_and_its_name_with_its_directory() {
    for protocol in Protocol::ALL {
        run(51, 3, protocol, |bed| async move {
            let c = bed.client("c").await;
            let dir = c.mkdir_on(1, ROOT, "d").await;
            c.set_layout(dir, "spread=on").await.unwrap();
            assert!(c.attr(dir).await.unwrap().spread);
            let mut made = Vec::new();
            for shard in 0..3 {
                let text = format!("f{shard}");
                let ino = c.file_at(shard, dir, &text).await.unwrap();
                assert_eq!(ino.shard(), ShardId(shard));
                assert_eq!(c.lookup(dir, &text).await, Ok(Some(ino)));
                let attr = c.attr(ino).await.unwrap();
                assert_eq!(
                    (attr.kind, attr.nlink, attr.uid, attr.gid, attr.mode),
                    (FileKind::Regular, 1, 1000, 1000, 0o755)
                );
                made.push(ino);
                for again in 0..3 {
                    assert_eq!(c.file_at(again, dir, &text).await, Err(Fault::Exists));
                }
            }
            let listed: Vec<Ino> = c.list(dir).await.iter().map(|(ino, _)| *ino).collect();
            assert!(listed.len() == 3 && made.iter().all(|ino| listed.contains(ino)), "{listed:?}");
            assert_eq!(c.rmdir(ROOT, "d").await, Err(Fault::NotEmpty));
            // Further names, and moves to other directories.
            c.link(made[2], ROOT, "further").await.unwrap();
            c.rename((dir, "f0"), (ROOT, "moved")).await.unwrap();
            assert_eq!(c.lookup(ROOT, "moved").await, Ok(Some(made[0])));
            for text in ["f1", "f2"] {
                c.unlink(dir, text).await.unwrap();
            }
            assert_eq!(c.links(made[2]).await, 1);
            c.unlink(ROOT, "further").await.unwrap();
            c.unlink(ROOT, "moved").await.unwrap();
            c.rmdir(ROOT, "d").await.unwrap();
            bed.env.sleep(Duration::from_secs(1)).await;
            for ino in made {
                assert!(c.attr(ino).await.is_err());
            }
            assert_eq!(c.file_at(0, dir, "late").await.unwrap_err(), Fault::Stale);
        });
    }
}

#[test]
fn creator_gets_what_it_wants() {
    for protocol in Protocol::ALL {
        run(52, 2, protocol, |bed| async move {
            let (c, other) = (bed.client("c").await, bed.client("other").await);
            for dir in [ROOT, c.mkdir_on(1, ROOT, "d").await] {
                let shard = 1 - dir.shard().0;
                let made = c.make_at(shard, (dir, "f"), FileKind::Regular, OPENED).await.unwrap();
                assert!(made.rights.contains(OPENED), "{made:?}");
                let (ino, seq, give) = (made.attr.ino, made.seq, Rights::all());
                let back = Op::Return { ino, seq, give, still_open: false, range: None };
                assert_eq!(c.call(ino, back).await, Ok(OpReply::Done {}));
                other.unlink(dir, "f").await.unwrap();
                bed.env.sleep(Duration::from_secs(1)).await;
                assert_eq!(c.attr(ino).await, Err(Fault::Stale));
            }
        });
    }
}

#[test]
fn file_inherits_from_a_directory_of_another_shard() {
    run(53, 2, Protocol::OnePhase, |bed| async move {
        let c = bed.client("c").await;
        let attr = c.attr(ROOT).await.unwrap();
        let set = SetAttr {
            mode: Some(0o2777),
            uid: None,
            gid: Some(77),
            atime: None,
            mtime: None,
            kill_setid: false,
            judged_by: attr.uid,
        };
        c.call(ROOT, Op::SetAttr { ino: ROOT, set }).await.unwrap();
        c.set_layout(ROOT, "policy=striping part=8192 zones=0 spread=on").await.unwrap();
        let ino = c.file_at(1, ROOT, "f").await.unwrap();
        assert_eq!(c.attr(ino).await.unwrap().gid, 77);
        let value = c.layout(ino).await.unwrap();
        // The zones are those of the directory's server.
        assert_eq!(value, "policy=striping part=8192");
        let here = c.file_at(0, ROOT, "here").await.unwrap();
        assert_eq!(c.layout(here).await.unwrap(), "policy=striping part=8192 zones=0");
        let after = c.attr(ROOT).await.unwrap();
        assert!(after.mtime >= c.attr(ino).await.unwrap().btime && after.version > attr.version);
    });
}

#[test]
fn what_is_not_spread_is_sent_to_the_own_server() {
    run(54, 2, Protocol::OnePhase, |bed| async move {
        let c = bed.client("c").await;
        for kind in [FileKind::Symlink, FileKind::Fifo, FileKind::Directory] {
            let made = c.make_at(1, (ROOT, "x"), kind, Rights::empty()).await;
            assert_eq!(made.unwrap_err(), Fault::Moved, "{kind:?}");
        }
        c.set_layout(ROOT, "policy=objects spread=on").await.unwrap();
        assert!(!c.attr(ROOT).await.unwrap().spread);
        let before = c.inodes(1).await;
        assert_eq!(c.file_at(1, ROOT, "f").await, Err(Fault::Moved));
        c.set_layout(ROOT, "spread=off").await.unwrap();
        assert!(!c.attr(ROOT).await.unwrap().spread);
        // A client that does not know it yet makes the file where it would.
        let late = c.file_at(1, ROOT, "f").await.unwrap();
        assert_eq!(late.shard(), ShardId(1));
        assert_eq!(c.file_at(1, ROOT, "f").await, Err(Fault::Exists));
        // Inodes of those that were refused are freed.
        bed.env.sleep(Duration::from_secs(1)).await;
        assert_eq!(c.inodes(1).await, before + 1);
    });
}

#[test]
fn directory_is_spread_with_many_names_and_no_more_when_they_are_gone() {
    run(55, 2, Protocol::OnePhase, |bed| async move {
        let c = bed.client("c").await;
        let dir = c.mkdir(ROOT, "d").await.unwrap();
        let is_spread = async || c.attr(dir).await.unwrap().spread;
        for at in 0..SPREAD_AT {
            assert!(!is_spread().await, "{at}");
            c.file_at(0, dir, &format!("f{at}")).await.unwrap();
        }
        assert!(is_spread().await);
        c.file_at(1, dir, "other").await.unwrap();
        let inner = c.mkdir(dir, "inner").await.unwrap();
        assert!(!c.attr(inner).await.unwrap().spread);
        c.rmdir(dir, "inner").await.unwrap();
        for at in 0..SPREAD_AT {
            assert_eq!(is_spread().await, SPREAD_AT + 1 - at >= SPREAD_AT / 4, "{at}");
            c.unlink(dir, &format!("f{at}")).await.unwrap();
        }
        assert!(!is_spread().await);
        c.unlink(dir, "other").await.unwrap();
    });
}

#[test]
fn one_of_several_creations_of_a_name_wins() {
    for (seed, protocol) in (60..).zip(Protocol::ALL) {
        run(seed, 3, protocol, |bed| async move {
            let clients = [bed.client("a").await, bed.client("b").await, bed.client("c").await];
            for round in 0..12 {
                let text = format!("f{round}");
                let answers: Rc<RefCell<Vec<Made>>> = Rc::default();
                for shard in 0..3 {
                    let client = clients[(usize::from(shard) + round) % 3].clone();
                    let (text, answers) = (text.clone(), answers.clone());
                    bed.env.spawn(async move {
                        let made = client.file_at(shard, ROOT, &text).await;
                        answers.borrow_mut().push(made);
                    });
                }
                while answers.borrow().len() < 3 {
                    bed.env.sleep(Duration::from_millis(1)).await;
                }
                let answers = answers.take();
                let made: Vec<Ino> = answers.iter().filter_map(|made| made.ok()).collect();
                let lost = answers.iter().filter(|made| **made == Err(Fault::Exists)).count();
                assert_eq!((made.len(), lost), (1, 2), "{answers:?}");
                assert_eq!(clients[0].lookup(ROOT, &text).await, Ok(Some(made[0])));
            }
        });
    }
}

/// The answer to a creation.
type Made = Result<Ino, Fault>;

/// Kills servers at a moment while files are made at both, of directories of both.
fn crash(protocol: Protocol, victims: &'static [u8], at: u64) {
    run(at, 2, protocol, |bed| async move {
        let c = bed.client("c").await;
        let dir = c.mkdir_on(1, ROOT, "d").await;
        let before = [c.inodes(0).await, c.inodes(1).await];
        let answers: Rc<RefCell<Vec<Vec<Made>>>> = Rc::default();
        let (doer, noted) = (c.clone(), answers.clone());
        bed.env.spawn(async move {
            let mut made = vec![doer.file_at(1, ROOT, "a").await];
            made.push(doer.file_at(0, dir, "a").await);
            made.push(doer.file_at(1, ROOT, "a").await);
            made.push(doer.file_at(1, ROOT, "b").await);
            noted.borrow_mut().push(made);
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
        let made = answers.borrow_mut().remove(0);
        assert_eq!(made[2], Err(Fault::Exists), "{made:?}");
        for (at, (dir, text), shard) in
            [(0, (ROOT, "a"), 1), (1, (dir, "a"), 0), (3, (ROOT, "b"), 1)]
        {
            let ino = made[at].unwrap();
            assert_eq!(ino.shard(), ShardId(shard));
            assert_eq!(c.lookup(dir, text).await, Ok(Some(ino)));
            assert_eq!(c.links(ino).await, 1);
        }
        // Nothing is left open, and no inode without a name.
        bed.env.sleep(Duration::from_secs(5)).await;
        assert_eq!([c.inodes(0).await, c.inodes(1).await], [before[0] + 1, before[1] + 2]);
        assert!(!bed.logged("does not answer"), "{:#?}", bed.log);
    });
}

#[test]
fn creation_ends_though_servers_are_killed_at_any_moment() {
    for protocol in Protocol::ALL {
        for victims in [&[0][..], &[1], &[0, 1]] {
            for at in (0..4200).step_by(170) {
                crash(protocol, victims, at);
            }
        }
    }
}
