//! Names that lead to other shards.

use commitment::Protocol;
use proto::mds::{JointId, Letter, OpReply};
use proto::wire::Bytes;
use types::*;

use crate::bed::*;

#[test]
fn directory_lives_where_its_parent_says() {
    for protocol in Protocol::ALL {
        run(1, 2, protocol, |bed| async move {
            let c = bed.client("c").await;
            let before = c.attr(ROOT).await.unwrap();
            c.set_layout(ROOT, "mds=1").await.unwrap();
            let dir = c.mkdir(ROOT, "d").await.unwrap();
            assert_eq!(dir.shard(), ShardId(1));
            let attr = c.attr(dir).await.unwrap();
            assert_eq!(
                (attr.kind, attr.nlink, attr.uid, attr.mode),
                (FileKind::Directory, 2, 1000, 0o755)
            );
            assert_eq!(c.attr(ROOT).await.unwrap().nlink, before.nlink + 1);
            assert_eq!(c.lookup(ROOT, "d").await, Ok(Some(dir)));
            assert_eq!(c.mkdir(ROOT, "d").await, Err(Fault::Exists));
            // What is made inside is local there, directories too.
            let inner = c.mkdir(dir, "e").await.unwrap();
            assert_eq!(inner.shard(), ShardId(1));
            let file = c.file(dir, "f").await.unwrap();
            assert_eq!(file.shard(), ShardId(1));
            assert_eq!(c.rmdir(ROOT, "d").await, Err(Fault::NotEmpty));
            assert_eq!(c.unlink(ROOT, "d").await, Err(Fault::IsDirectory));
            c.unlink(dir, "f").await.unwrap();
            c.rmdir(dir, "e").await.unwrap();
            c.rmdir(ROOT, "d").await.unwrap();
            assert_eq!(c.lookup(ROOT, "d").await, Ok(None));
            assert_eq!(c.rmdir(ROOT, "d").await, Err(Fault::NotFound));
            assert_eq!(c.file(dir, "g").await.unwrap_err(), Fault::Stale);
            assert_eq!(c.attr(ROOT).await.unwrap().nlink, before.nlink);
        });
    }
}

#[test]
fn directories_take_turns_and_their_own_subtrees_do_not() {
    run(2, 4, Protocol::OnePhase, |bed| async move {
        let c = bed.client("c").await;
        c.set_layout(ROOT, "mds=spread").await.unwrap();
        let mut counts = [0; 4];
        for at in 0..8 {
            let dir = c.mkdir(ROOT, &format!("d{at}")).await.unwrap();
            counts[usize::from(dir.shard().0)] += 1;
            let inner = c.mkdir(dir, "inner").await.unwrap();
            assert_eq!(inner.shard(), dir.shard());
        }
        assert_eq!(counts, [2; 4]);
    });
}

#[test]
fn file_has_names_on_several_shards() {
    for protocol in Protocol::ALL {
        run(3, 2, protocol, |bed| async move {
            let c = bed.client("c").await;
            let here = c.mkdir(ROOT, "here").await.unwrap();
            c.set_layout(ROOT, "mds=1").await.unwrap();
            let there = c.mkdir(ROOT, "there").await.unwrap();
            let file = c.file(here, "f").await.unwrap();
            assert_eq!(c.link(file, there, "g").await.unwrap().nlink, 2);
            assert_eq!(c.link(file, there, "h").await.unwrap().nlink, 3);
            assert_eq!(c.link(file, there, "g").await.unwrap_err(), Fault::Exists);
            assert_eq!(c.lookup(there, "g").await, Ok(Some(file)));
            assert_eq!(c.attr(file).await.unwrap().nlink, 3);
            assert_eq!(c.unlink(here, "f").await.unwrap().nlink, 2);
            assert_eq!(c.unlink(there, "g").await.unwrap().nlink, 1);
            assert_eq!(c.rmdir(ROOT, "there").await, Err(Fault::NotEmpty));
            assert_eq!(c.unlink(there, "h").await.unwrap().nlink, 0);
            assert_eq!(c.attr(file).await.unwrap_err(), Fault::Stale);
            c.rmdir(ROOT, "there").await.unwrap();
        });
    }
}

#[test]
fn placement_on_a_server_that_does_not_exist_is_refused() {
    run(4, 2, Protocol::OnePhase, |bed| async move {
        let c = bed.client("c").await;
        assert_eq!(c.set_layout(ROOT, "mds=2").await, Err(Fault::Invalid));
        assert_eq!(c.set_layout(ROOT, "mds=nowhere").await, Err(Fault::Invalid));
        c.set_layout(ROOT, "mds=0").await.unwrap();
        assert_eq!(c.mkdir(ROOT, "d").await.unwrap().shard(), ShardId(0));
    });
}

#[test]
fn file_moves_to_another_shard_and_back_over_another() {
    for protocol in Protocol::ALL {
        run(5, 2, protocol, |bed| async move {
            let c = bed.client("c").await;
            let here = c.mkdir(ROOT, "here").await.unwrap();
            c.set_layout(ROOT, "mds=1").await.unwrap();
            let there = c.mkdir(ROOT, "there").await.unwrap();
            let file = c.file(here, "f").await.unwrap();
            let other = c.file(there, "g").await.unwrap();
            // Over a file of the other shard, which goes.
            c.rename((here, "f"), (there, "g")).await.unwrap();
            assert_eq!(c.lookup(here, "f").await, Ok(None));
            assert_eq!(c.lookup(there, "g").await, Ok(Some(file)));
            assert_eq!(c.attr(other).await.unwrap_err(), Fault::Stale);
            assert_eq!(c.attr(file).await.unwrap().nlink, 1);
            // Within the other shard only the name moves.
            c.rename((there, "g"), (there, "h")).await.unwrap();
            let inner = c.mkdir(there, "inner").await.unwrap();
            c.rename((there, "h"), (inner, "h")).await.unwrap();
            // Home again, and it is a file of one shard.
            c.rename((inner, "h"), (here, "back")).await.unwrap();
            assert_eq!(c.lookup(here, "back").await, Ok(Some(file)));
            assert_eq!(c.attr(file).await.unwrap().nlink, 1);
            c.rename((here, "back"), (here, "again")).await.unwrap();
            assert_eq!(c.unlink(here, "again").await.unwrap().nlink, 0);
        });
    }
}

#[test]
fn letters_of_two_shards_over_one_session_are_refused() {
    run(6, 3, Protocol::OnePhase, |bed| async move {
        let server = bed.server_session(0).await;
        // They are to an epoch that is over, and change nothing.
        let letter = |from, to| Letter {
            from,
            from_epoch: Epoch(1),
            to,
            to_epoch: Epoch(0),
            id: JointId { coordinator: from, epoch: Epoch(1), number: 1 },
            protocol: 4,
            forced: 0,
            lazy: 0,
            messages: 0,
            message: 9,
            oldest: None,
            body: Bytes::default(),
        };
        let tell = async |letters| tell(&server, letters).await;
        assert_eq!(tell(vec![letter(7, 0)]).await, Err(Fault::Protocol));
        assert_eq!(tell(vec![letter(1, 2)]).await, Err(Fault::Protocol));
        assert_eq!(tell(vec![letter(1, 0), letter(1, 0)]).await, Ok(OpReply::Done {}));
        assert_eq!(tell(vec![letter(2, 0)]).await, Err(Fault::Protocol));
        assert_eq!(tell(vec![letter(1, 0)]).await, Ok(OpReply::Done {}));
    });
}
