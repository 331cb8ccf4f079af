//! Files that follow their directory to another server, with their blocks and their number.

use std::cell::RefCell;
use std::rc::Rc;

use commitment::Protocol;
use proto::mds::{Edit, LayoutSlice, Op, OpReply, PagRun};
use types::*;

use crate::bed::*;

/// Bytes of a file that [`Client::write`] has mapped.
const SIZE: u64 = 5 * 4096;

impl Client {
    /// Moves a file, the only name of which is this one.
    pub async fn follow(&self, shard: u8, ino: Ino, at: (Ino, &str)) -> Result<OpReply, Fault> {
        let (dir, name) = (at.0, name(at.1));
        self.call(ino, Op::MoveFile { ino, dir, name, shard }).await
    }

    /// Maps blocks of the file's server into it, two runs with a hole between them.
    async fn write(&self, ino: Ino) {
        let blocks = Op::Space { hint: None, blocks: 4, unreachable: Vec::new() };
        let Ok(OpReply::Space { runs, .. }) = self.call(ino, blocks).await else { panic!("space") };
        let PagRun { pag, addr, len } = runs[0];
        assert!(len >= 4, "{runs:?}");
        let (rights, from) = (Rights::DATA_X | Rights::OPEN, FileBlock(0));
        let op = Op::Acquire { ino, rights, from, range: None, ahead: Ahead::default() };
        self.call(ino, op).await.unwrap();
        let map = |file, nth| Edit::Map {
            segment: Segment {
                file: FileBlock(file),
                len: 2,
                pag,
                addr: PagBlock(addr.0 + nth),
                state: SegmentState::Written,
            },
        };
        let edits = vec![map(0, 0), map(3, 2)];
        let (size, mtime, ctime) = (Some(SIZE), None, None);
        let op = Op::Commit { ino, edits, size, mtime, ctime, merge: false, tail_zero: true };
        self.call(ino, op).await.unwrap();
    }

    /// The segments of the file, as its server says.
    async fn segments(&self, ino: Ino) -> Vec<Segment> {
        let (rights, from) = (Rights::DATA_S | Rights::OPEN, FileBlock(0));
        let op = Op::Acquire { ino, rights, from, range: None, ahead: Ahead::default() };
        match self.call(ino, op).await {
            Ok(OpReply::Acquired { layout: Some(LayoutSlice { segments, .. }), .. }) => segments,
            reply => panic!("{reply:?}"),
        }
    }
}

#[test]
fn file_follows_its_directory_to_another_server_and_back() {
    for protocol in Protocol::ALL {
        run(91, 3, protocol, |bed| async move {
            let (c, other) = (bed.client("c").await, bed.client("other").await);
            let side = c.mkdir_on(2, ROOT, "side").await;
            let dir = c.mkdir_on(0, ROOT, "dir").await;
            let file = c.file(dir, "file").await.unwrap();
            c.write(file).await;
            let fifo = c.make(dir, "fifo", FileKind::Fifo).await.unwrap();
            // The writer gives up its right.
            let segments = other.segments(file).await;
            let mut attr = other.attr(file).await.unwrap();
            assert_eq!((attr.size, attr.blocks, segments.len()), (SIZE, 4, 2));
            for shard in [1, 0, 1, 0] {
                c.move_to(shard, dir).await.unwrap();
                for (ino, text) in [(file, "file"), (fifo, "fifo")] {
                    let moved = c.follow(shard, ino, (dir, text)).await;
                    assert_eq!(moved, Ok(OpReply::Moved { there: false }), "{protocol:?} {text}");
                    let again = c.follow(shard, ino, (dir, text)).await;
                    assert_eq!(again, Ok(OpReply::Moved { there: true }), "it is there");
                }
                for client in [&c, &other] {
                    assert_eq!(client.lookup(dir, "file").await, Ok(Some(file)));
                    assert_eq!(client.attr(file).await, Ok(attr));
                    assert_eq!(client.segments(file).await, segments);
                    assert_eq!((client.home(file), client.links(fifo).await), (shard, 1));
                }
                // Nothing of it concerns its former server now.
                other.rename((dir, "file"), (dir, "else")).await.unwrap();
                c.rename((dir, "else"), (side, "file")).await.unwrap();
                assert_eq!(c.link(file, dir, "file").await.unwrap().nlink, 2);
                let stays = c.follow(2, file, (side, "file")).await;
                assert_eq!(stays, Err(Fault::TooManyLinks));
                assert_eq!(other.unlink(side, "file").await.unwrap().nlink, 1);
                let now = other.attr(file).await.unwrap();
                let Attr { ctime, version, .. } = now;
                assert_eq!(Attr { ctime, version, ..attr }, now);
                attr = now;
            }
        });
    }
}

#[test]
fn blocks_of_a_file_stay_with_the_server_where_it_was_removed() {
    run(92, 2, Protocol::OnePhase, |bed| async move {
        let c = bed.client("c").await;
        let dir = c.mkdir(ROOT, "dir").await.unwrap();
        let [kept, gone] = ["kept", "gone"].map(|text| (text, c.file(dir, text)));
        let [kept, gone] = [kept.1.await.unwrap(), gone.1.await.unwrap()];
        c.write(kept).await;
        c.write(gone).await;
        let segments = c.segments(kept).await;
        c.move_to(1, dir).await.unwrap();
        for (ino, text) in [(kept, "kept"), (gone, "gone")] {
            assert_eq!(c.follow(1, ino, (dir, text)).await, Ok(OpReply::Moved { there: false }));
        }
        let before = (c.free(0).await, c.free(1).await);
        assert_eq!(c.unlink(dir, "gone").await.unwrap().nlink, 0);
        while c.free(1).await < before.1 + 4 {
            bed.env.sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(c.free(0).await, before.0);
        // After a restart of both all is as it was.
        for shard in [0, 1] {
            bed.kill(shard);
            bed.start(shard).await;
        }
        assert_eq!(c.segments(kept).await, segments);
        c.move_to(0, dir).await.unwrap();
        assert_eq!(c.follow(0, kept, (dir, "kept")).await, Ok(OpReply::Moved { there: false }));
        assert_eq!(c.segments(kept).await, segments);
        let new = c.file(dir, "new").await.unwrap();
        c.write(new).await;
        let taken = c.segments(new).await;
        let overlap = |a: &Segment| segments.iter().any(|b| (a.pag, a.addr) == (b.pag, b.addr));
        assert!(!taken.iter().any(overlap), "{taken:?}");
    });
}

#[test]
fn what_cannot_follow_stays_and_says_why() {
    run(93, 3, Protocol::OnePhase, |bed| async move {
        let c = bed.client("c").await;
        let dir = c.mkdir_on(0, ROOT, "dir").await;
        let far = c.mkdir_on(2, ROOT, "far").await;
        let file = c.file(dir, "file").await.unwrap();
        c.write(file).await;
        let follow = |shard, at| c.follow(shard, file, at);
        assert_eq!(follow(1, (dir, "file")).await, Err(Fault::TooManyLinks), "its name is here");
        c.move_to(1, dir).await.unwrap();
        assert_eq!(follow(7, (dir, "file")).await, Err(Fault::Invalid), "there is no such server");
        assert_eq!(follow(1, (dir, "other")).await, Err(Fault::NotFound));
        let mds = Op::MoveFile { ino: dir, dir: ROOT, name: name("dir"), shard: 2 };
        assert_eq!(c.call(dir, mds).await, Err(Fault::IsDirectory));
        c.segments(file).await;
        c.keep_open(true);
        assert_eq!(follow(1, (dir, "file")).await, Err(Fault::WouldBlock), "it is open");
        c.keep_open(false);
        assert_eq!(follow(1, (dir, "file")).await, Ok(OpReply::Moved { there: false }));
        // To a third server its blocks do not go.
        c.move_to(2, dir).await.unwrap();
        assert_eq!(follow(2, (dir, "file")).await, Err(Fault::CrossDevice));
        assert_eq!((c.home(file), c.attr(file).await.unwrap().size), (1, SIZE));
        c.rename((dir, "file"), (far, "file")).await.unwrap();
        c.unlink(far, "file").await.unwrap();
    });
}

/// Kills `victims` so many microseconds after a file began to follow its directory, there and
/// back, starts them again, and wants it to be where the answers say.
fn crash(protocol: Protocol, victims: &[u8], at: u64) {
    let victims = victims.to_vec();
    run(at, 2, protocol, |bed| async move {
        let c = bed.client("c").await;
        let dir = c.mkdir(ROOT, "dir").await.unwrap();
        let file = c.file(dir, "file").await.unwrap();
        c.write(file).await;
        let segments = c.segments(file).await;
        let answers: Rc<RefCell<Vec<_>>> = Rc::default();
        let (doer, noted) = (c.clone(), answers.clone());
        bed.env.spawn(async move {
            for shard in [1, 0, 1] {
                doer.move_to(shard, dir).await.unwrap();
                let moved = doer.follow(shard, file, (dir, "file")).await;
                noted.borrow_mut().push(moved);
            }
        });
        bed.restart_after(Duration::from_micros(at), &victims).await;
        while answers.borrow().len() < 3 {
            bed.env.sleep(Duration::from_millis(20)).await;
        }
        let done = |answer: &Result<OpReply, Fault>| matches!(answer, Ok(OpReply::Moved { .. }));
        assert!(answers.borrow().iter().all(done), "{answers:?}");
        assert_eq!(c.segments(file).await, segments);
        assert_eq!((c.home(file), c.links(file).await), (1, 1));
        assert_eq!(c.unlink(dir, "file").await.unwrap().nlink, 0);
        // Nothing is left open.
        bed.env.sleep(Duration::from_secs(5)).await;
        assert!(!bed.logged("does not answer"), "{:#?}", bed.log);
    });
}

#[test]
fn move_of_a_file_ends_though_servers_are_killed_at_any_moment() {
    for protocol in Protocol::ALL {
        for victims in [&[0][..], &[1], &[0, 1]] {
            for at in (0..9000).step_by(730) {
                crash(protocol, victims, at);
            }
        }
    }
}
