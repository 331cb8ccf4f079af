//! Files in objects that follow their directory to another server: who may write them then, who is
//! refused, and who has the object destroyed.

use std::cell::RefCell;
use std::rc::Rc;

use commitment::Protocol;
use proto::capability::{Capability, READ, WRITE};
use proto::mds::{ObjectLayout, Op, OpReply};
use types::*;

use crate::bed::*;
use crate::target::Target;

/// The targets of files.
const ZONES: [PagId; 2] = [PagId(10), PagId(11)];

impl Client {
    /// Where the file lies, and what the client may do there with these rights.
    async fn object(&self, ino: Ino, rights: Rights) -> ObjectLayout {
        let (rights, from) = (rights | Rights::OPEN, FileBlock(0));
        let op = Op::Acquire { ino, rights, from, range: None, ahead: Ahead::default() };
        match self.call(ino, op).await {
            Ok(OpReply::Acquired { layout: Some(slice), .. }) => slice.object.unwrap(),
            reply => panic!("{reply:?}"),
        }
    }

    /// Writes the file, as far as its server learns of that.
    async fn commit(&self, ino: Ino, size: u64) -> Capability {
        let may = self.object(ino, Rights::DATA_X).await.may;
        let (mtime, ctime, edits) = (None, None, Vec::new());
        let size = Some(size);
        let op = Op::Commit { ino, edits, size, mtime, ctime, merge: false, tail_zero: true };
        self.call(ino, op).await.unwrap();
        may
    }

    /// A directory at server 0, the files of which lie in objects.
    async fn directory_of_objects(&self, text: &str) -> Ino {
        let dir = self.mkdir_on(0, ROOT, text).await;
        self.set_layout(dir, "policy=objects width=2").await.unwrap();
        dir
    }

    /// Moves the directory to the server, and has its file follow it.
    async fn both_move(&self, shard: u8, (dir, text): (Ino, &str), ino: Ino) -> Result<(), Fault> {
        self.move_to(shard, dir).await?;
        self.follow(shard, ino, (dir, text)).await.map(drop)
    }
}

impl Bed {
    /// Removes the only name of a file. Who does so gives up what it has of the file unasked, and
    /// this client has nothing.
    async fn remove(&self, (dir, text): (Ino, &str)) {
        assert_eq!(self.client("remover").await.unlink(dir, text).await.unwrap().nlink, 0);
    }
}

/// Waits until the condition holds, for a minute at most: after a restart nothing is freed before
/// all clients had time to come back.
async fn soon(bed: &Bed, what: &str, done: impl Fn() -> bool) {
    for _ in 0..3000 {
        if done() {
            return;
        }
        bed.env.sleep(Duration::from_millis(20)).await;
    }
    panic!("not in time: {what}");
}

/// Each target has destroyed this object once, and no other.
fn have_destroyed(targets: &[Rc<Target>], object: ObjectId) -> bool {
    targets.iter().all(|target| *target.destroyed.borrow() == [object])
}

#[test]
fn file_keeps_its_object_and_the_server_that_has_it_allows_and_destroys() {
    for protocol in Protocol::ALL {
        run(94, 2, protocol, |bed| async move {
            let targets = bed.targets(2).await;
            let (c, other) = (bed.client("c").await, bed.client("other").await);
            let dir = c.directory_of_objects("dir").await;
            let file = c.file(dir, "file").await.unwrap();
            let mut size = 5000;
            c.commit(file, size).await;
            let before = other.object(file, Rights::DATA_S).await;
            assert_eq!(before.targets, ZONES);
            for shard in [1, 0, 1] {
                c.both_move(shard, (dir, "file"), file).await.unwrap();
                for (client, rights, may) in
                    [(&c, Rights::DATA_X, READ | WRITE), (&other, Rights::DATA_S, READ)]
                {
                    let now = client.object(file, rights).await;
                    let place = |of: &ObjectLayout| (of.object, of.part, of.targets.clone());
                    assert_eq!(place(&now), place(&before));
                    assert_eq!((now.may.shard(), now.may.rights), (ShardId(shard), may));
                    assert!(targets.iter().all(|target| target.accepts(&now.may)));
                }
                assert_eq!(c.attr(file).await.unwrap().size, size);
                size += 5000;
                assert_eq!(other.commit(file, size).await.shard(), ShardId(shard));
            }
            // Over a restart of both, too.
            for shard in [0, 1] {
                bed.kill(shard);
                bed.start(shard).await;
            }
            assert_eq!(c.object(file, Rights::DATA_X).await.object, before.object);
            // The former server issues no number again.
            let more = c.directory_of_objects("more").await;
            let new = c.file(more, "new").await.unwrap();
            let new = c.object(new, Rights::DATA_X).await.object;
            assert!(new > before.object && new.shard() == before.object.shard());
            bed.remove((dir, "file")).await;
            soon(&bed, "destroyed", || have_destroyed(&targets, before.object)).await;
            let refused: u64 = targets.iter().map(|target| target.refused.get()).sum();
            assert_eq!(refused, 0);
        });
    }
}

/// What an evicted client may have in flight, nobody shall meet: not the server that gets the file,
/// either.
#[test]
fn file_stays_until_its_targets_have_refused_who_was_evicted() {
    run(95, 2, Protocol::OnePhase, |bed| async move {
        let targets = bed.targets(2).await;
        let (c, dead) = (bed.client("c").await, bed.client("dead").await);
        let dir = c.directory_of_objects("dir").await;
        let file = c.file(dir, "file").await.unwrap();
        let may = dead.commit(file, 9000).await;
        targets[1].kill(&bed.world);
        bed.world.kill("dead");
        // Its right is free when it is evicted. One target is away meanwhile.
        let _ = c.object(file, Rights::DATA_X).await;
        assert_eq!(*targets[0].fenced.borrow(), [may.client]);
        c.move_to(1, dir).await.unwrap();
        // No quarantine is that long.
        bed.env.sleep(Duration::from_secs(30)).await;
        for _ in 0..3 {
            let stays = c.follow(1, file, (dir, "file")).await;
            assert_eq!(stays, Err(Fault::WouldBlock), "the target may let it write");
        }
        targets[1].start(&bed.world);
        soon(&bed, "refused", || *targets[1].fenced.borrow() == [may.client]).await;
        bed.env.sleep(Duration::from_secs(1)).await;
        assert_eq!(c.follow(1, file, (dir, "file")).await, Ok(OpReply::Moved { there: false }));
        assert_eq!(c.object(file, Rights::DATA_X).await.may.shard(), ShardId(1));
    });
}

#[test]
fn file_stays_where_the_other_server_does_not_know_its_targets() {
    run(96, 2, Protocol::OnePhase, |bed| async move {
        let targets = [1, 2].map(|n| Target::new(TARGETS + n, 4096));
        targets.iter().for_each(|target| target.start(&bed.world));
        for (shard, target, id) in [(0, 0, 10), (0, 1, 11), (1, 0, 10)] {
            bed.add_target(shard, &targets[target], PagId(id)).await;
        }
        let c = bed.client("c").await;
        let dir = c.directory_of_objects("dir").await;
        let file = c.file(dir, "file").await.unwrap();
        let stays = c.both_move(1, (dir, "file"), file).await;
        assert_eq!(stays, Err(Fault::CrossDevice));
        assert_eq!(c.object(file, Rights::DATA_X).await.may.shard(), ShardId(0));
        bed.add_target(1, &targets[1], PagId(11)).await;
        assert_eq!(c.follow(1, file, (dir, "file")).await, Ok(OpReply::Moved { there: false }));
    });
}

/// As in `file_moves`, with a file in an object.
fn crash(protocol: Protocol, victims: &[u8], at: u64) {
    let victims = victims.to_vec();
    run(at, 2, protocol, |bed| async move {
        let targets = bed.targets(2).await;
        let c = bed.client("c").await;
        let dir = c.directory_of_objects("dir").await;
        let file = c.file(dir, "file").await.unwrap();
        c.commit(file, 9000).await;
        let object = c.object(file, Rights::DATA_S).await.object;
        let answers: Rc<RefCell<Vec<_>>> = Rc::default();
        let (doer, noted) = (c.clone(), answers.clone());
        bed.env.spawn(async move {
            for shard in [1, 0, 1] {
                let moved = doer.both_move(shard, (dir, "file"), file).await;
                noted.borrow_mut().push(moved);
            }
        });
        bed.restart_after(Duration::from_micros(at), &victims).await;
        while answers.borrow().len() < 3 {
            bed.env.sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(*answers.borrow(), [Ok(()), Ok(()), Ok(())]);
        let now = c.object(file, Rights::DATA_X).await;
        assert_eq!((now.object, now.may.shard()), (object, ShardId(1)));
        assert_eq!((c.home(file), c.attr(file).await.unwrap().size), (1, 9000));
        bed.remove((dir, "file")).await;
        soon(&bed, "destroyed", || have_destroyed(&targets, object)).await;
    });
}

#[test]
fn move_of_a_file_in_an_object_ends_though_servers_are_killed_at_any_moment() {
    for protocol in Protocol::ALL {
        for victims in [&[0][..], &[1], &[0, 1]] {
            for at in (0..9000).step_by(1100) {
                crash(protocol, victims, at);
            }
        }
    }
}
