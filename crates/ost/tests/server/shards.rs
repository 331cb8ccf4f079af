//! Metadata servers of several shards at one target: epochs, fences and admission of one leave
//! those of the others alone. An object is of the server that has its file, whichever has issued
//! its number.

use proto::capability::{READ, WRITE};
use proto::ost::Op;
use types::{ClientId, Epoch, Fault, ObjectId, ShardId};

use super::bed::{Bed, Client, key, run};

/// The number of an object of a shard.
fn object(shard: u8, number: u64) -> u64 {
    ObjectId::of(ShardId(shard), number).0
}

/// A client on the node `name`, with the number 7 of the shard.
async fn client(bed: &Bed, name: &str, shard: u8) -> Client {
    bed.client(name, ClientId::of(ShardId(shard), 7).0).await
}

async fn fence(server: &Client, shard: u8, client: ClientId) -> Result<(), Fault> {
    server.serve_shard(shard, |may| Op::Fence { may, client }).await
}

async fn destroy(server: &Client, shard: u8, object: u64) -> Result<(), Fault> {
    let objects = vec![ObjectId(object)];
    server.serve_shard(shard, |may| Op::Destroy { may, objects }).await
}

async fn admit(server: &Client, shard: u8) -> Result<(), Fault> {
    // After a restart of the target it learns the new epoch with that.
    server.empty_sync().await?;
    let epoch = server.session.epoch();
    server.serve_shard(shard, |may| Op::Admit { may, epoch }).await
}

/// Old epochs of a shard are void, also after a restart of the target; lower ones of another shard
/// are not.
#[test]
fn newer_server_of_a_shard_makes_older_capabilities_of_that_shard_void() {
    run(31, |bed| async move {
        let (zero, one) = (client(&bed, "a", 0).await, client(&bed, "b", 1).await);
        let server = bed.client("mds1", 0).await;
        zero.write(object(0, 5), 0, 1, 1, true).await.unwrap();
        one.epoch.set(Epoch(8));
        one.write(object(1, 5), 0, 1, 1, true).await.unwrap();
        server.epoch.set(Epoch(9));
        destroy(&server, 1, object(1, 99)).await.unwrap();
        for _ in 0..2 {
            let refused = one.write(object(1, 5), 0, 1, 2, true).await;
            assert_eq!(refused, Err(Fault::AccessDenied));
            assert!(zero.has(object(0, 5), 0, 1, 1).await, "its epoch 1 is the newest one");
            zero.write(object(0, 5), 0, 1, 1, true).await.unwrap();
            server.epoch.set(Epoch(8));
            assert_eq!(destroy(&server, 1, object(1, 5)).await, Err(Fault::AccessDenied));
            bed.restart().await;
            server.epoch.set(Epoch(9));
            admit(&server, 1).await.unwrap();
        }
        one.epoch.set(Epoch(9));
        assert!(one.has(object(1, 5), 0, 1, 1).await);
    });
}

/// The same number within two shards is two clients; a process that both know loses what it does
/// under the one that has evicted it.
#[test]
fn fence_of_a_shard_refuses_its_own_client_only() {
    run(32, |bed| async move {
        let (zero, one) = (client(&bed, "a", 0).await, client(&bed, "b", 1).await);
        // The session of `a` has files of both servers, as one of each process has.
        let both = Client { number: one.number, ..zero.clone() };
        let server = bed.client("mds1", 0).await;
        for (of, shard) in [(&zero, 0), (&both, 1)] {
            of.write(object(shard, 5), 0, 1, 1, true).await.unwrap();
        }
        fence(&server, 1, one.number).await.unwrap();
        assert_eq!(both.write(object(1, 5), 0, 1, 2, true).await, Err(Fault::AccessDenied));
        assert_eq!(both.read(object(1, 5), 0, 1).await, Err(Fault::AccessDenied));
        zero.write(object(0, 5), 0, 1, 2, true).await.unwrap();
        bed.restart().await;
        admit(&server, 1).await.unwrap();
        assert!(zero.has(object(0, 5), 0, 1, 2).await);
        assert_eq!(one.write(object(1, 5), 0, 1, 2, true).await, Err(Fault::AccessDenied));
    });
}

#[test]
fn server_does_nothing_with_clients_of_another_shard() {
    run(33, |bed| async move {
        let (zero, one) = (client(&bed, "a", 0).await, client(&bed, "b", 1).await);
        let server = bed.client("mds1", 0).await;
        zero.write(object(0, 5), 0, 1, 1, true).await.unwrap();
        one.write(object(1, 5), 0, 1, 1, true).await.unwrap();
        assert_eq!(fence(&server, 1, zero.number).await, Err(Fault::Invalid));
        let nobody = ClientId::of(ShardId(1), 0);
        assert_eq!(fence(&server, 1, nobody).await, Err(Fault::Invalid));
        // What a server shows allows nothing with an object, also not with its own number.
        let may = key().issue_to_server(ShardId(1), Epoch(1));
        assert_eq!(may.rights & (READ | WRITE), 0);
        destroy(&server, 1, object(1, 5)).await.unwrap();
        assert!(zero.has(object(0, 5), 0, 1, 1).await, "the same number within its shard");
        assert!(one.has(object(1, 5), 0, 1, 0).await);
    });
}

/// A file has moved with its object: epoch, fences and the end of the object are those of its new
/// server, and what the former one has said of its clients still holds.
#[test]
fn object_of_a_file_that_moved_is_of_the_server_that_has_the_file() {
    run(35, |bed| async move {
        let (zero, one) = (client(&bed, "a", 0).await, client(&bed, "b", 1).await);
        let (first, second) = (bed.client("mds0", 0).await, bed.client("mds1", 0).await);
        let moved = object(0, 5);
        zero.write(moved, 0, 1, 1, true).await.unwrap();
        one.write(moved, 1, 1, 2, true).await.unwrap();
        assert!(one.has(moved, 0, 1, 1).await && one.has(moved, 1, 1, 2).await);
        // The former server starts again, and evicts its client. The other one has epoch 1.
        first.epoch.set(Epoch(9));
        fence(&first, 0, zero.number).await.unwrap();
        zero.epoch.set(Epoch(9));
        assert_eq!(zero.write(moved, 0, 1, 3, true).await, Err(Fault::AccessDenied));
        one.write(moved, 0, 1, 4, true).await.unwrap();
        // The new one starts again: its older capabilities are void here, too.
        second.epoch.set(Epoch(2));
        admit(&second, 1).await.unwrap();
        assert_eq!(one.write(moved, 0, 1, 5, true).await, Err(Fault::AccessDenied));
        one.epoch.set(Epoch(2));
        // What a restart of the target loses is repeated when the new server is there. Nobody waits
        // for the former one.
        one.write(moved, 2, 1, 6, false).await.unwrap();
        bed.kill();
        bed.world.partition("mds1", "ost");
        bed.world.partition("mds0", "ost");
        bed.start().await;
        let task = one.clone();
        let waits = bed.env.spawn_join(async move { task.sync().await });
        bed.wait(2000).await;
        assert!(!waits.is_ready(), "its server may have evicted it");
        bed.world.heal();
        bed.world.partition("mds0", "ost");
        admit(&second, 1).await.unwrap();
        waits.await.unwrap();
        assert!(one.has(moved, 0, 1, 4).await && one.has(moved, 2, 1, 6).await);
        assert_eq!(zero.write(moved, 0, 1, 7, true).await, Err(Fault::AccessDenied));
        destroy(&second, 1, moved).await.unwrap();
        assert!(one.has(moved, 0, 3, 0).await);
        bed.world.heal();
    });
}

/// A restarted target waits for each server alone.
#[test]
fn restarted_target_changes_objects_of_the_shards_whose_servers_are_there() {
    run(34, |bed| async move {
        let (zero, one) = (client(&bed, "a", 0).await, client(&bed, "b", 1).await);
        let (first, second) = (bed.client("mds0", 0).await, bed.client("mds1", 0).await);
        admit(&first, 0).await.unwrap();
        admit(&second, 1).await.unwrap();
        zero.write(object(0, 5), 0, 1, 1, false).await.unwrap();
        one.write(object(1, 5), 0, 1, 1, false).await.unwrap();
        bed.kill();
        bed.world.partition("mds1", "ost");
        bed.start().await;
        admit(&first, 0).await.unwrap();
        // It repeats its write, and goes on. New room waits for all that others may repeat.
        zero.sync().await.unwrap();
        zero.write(object(0, 5), 0, 1, 2, true).await.unwrap();
        let task = one.clone();
        let waits = bed.env.spawn_join(async move { task.sync().await });
        bed.wait(2000).await;
        assert!(!waits.is_ready(), "its server may have evicted it");
        assert!(bed.has_logged(&["until metadata server 1 has named"]));
        assert!(bed.flag("waits_for_metadata_server").await);
        bed.world.heal();
        admit(&second, 1).await.unwrap();
        waits.await.unwrap();
        assert!(one.has(object(1, 5), 0, 1, 1).await && zero.has(object(0, 5), 0, 1, 2).await);
        assert!(!bed.flag("waits_for_metadata_server").await);
    });
}
