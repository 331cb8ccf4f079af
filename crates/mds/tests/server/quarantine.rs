//! How long the blocks and files of an evicted client are kept apart.

use proto::mds::*;
use types::*;

use crate::bed::*;

const ROOT: Ino = Ino::ROOT;

/// Is the file frozen after this time, in which the client renews its lease?
async fn frozen_after(bed: &Bed, client: &Client, ino: Ino, time: Duration) -> bool {
    let until = bed.env.now() + time;
    while bed.env.now() < until {
        bed.sleep(Duration::from_secs(1)).await;
        client.call(Op::Renew {}).await.unwrap();
    }
    let layout = Op::Layout { ino, from: FileBlock(0) };
    let Ok(OpReply::Layout { slice }) = client.call(layout).await else { panic!() };
    slice.frozen
}

/// SEMANTICS 3.5: a device that was silent when the server started counts as absent. It may carry
/// out what it was given before, like one that owes a flush.
#[test]
fn quarantine_lasts_while_a_device_is_absent_that_does_not_answer() {
    run(|bed| async move {
        let data = data_device(&bed.world);
        bed.restart().await;
        let (admin, a, b) =
            (Client::new(bed.world.node("admin")), bed.client("a").await, bed.client("b").await);
        admin.connect_as(ClientId(0), 1, 1).await.unwrap();
        let want = Rights::DATA_X | Rights::DATA_S;
        let ino = a.create(ROOT, "f", FileKind::Regular, want).await.unwrap().attr.ino;
        a.sync().await;
        data.stall(true);
        assert!(admin.call(Op::Evict { client: a.id() }).await.is_ok());
        bed.restart().await;
        assert!(bed.logged("is absent on this host: it has not answered for 5 s"));
        assert_eq!(b.connect(b.id()).await.unwrap().state, RECOVERED);
        b.call(Op::ReclaimDone {}).await.unwrap();
        let (_, layout) = b.acquire(ino, Rights::DATA_S).await.unwrap();
        assert!(layout.unwrap().frozen);
        assert!(frozen_after(&bed, &b, ino, LEASE * 8).await, "the device holds writes");
        data.stall(false);
        assert!(frozen_after(&bed, &b, ino, Duration::from_secs(4)).await, "it may complete them");
        assert!(!frozen_after(&bed, &b, ino, Duration::from_secs(3)).await);
    });
}

/// A device that answers with errors holds nothing back: waiting for it would never end.
#[test]
fn quarantine_ends_though_a_device_is_absent_that_fails() {
    run(|bed| async move {
        let data = data_device(&bed.world);
        bed.restart().await;
        let (admin, a, b) =
            (Client::new(bed.world.node("admin")), bed.client("a").await, bed.client("b").await);
        admin.connect_as(ClientId(0), 1, 1).await.unwrap();
        let want = Rights::DATA_X | Rights::DATA_S;
        let ino = a.create(ROOT, "f", FileKind::Regular, want).await.unwrap().attr.ino;
        data.fail_from(env::sim::DiskAction::Read, 1, env::sim::DiskFault::Io);
        bed.sleep(Duration::from_secs(11)).await;
        assert!(bed.logged("is absent on this host"));
        a.call(Op::Renew {}).await.unwrap();
        assert!(admin.call(Op::Evict { client: a.id() }).await.is_ok());
        let (_, layout) = b.acquire(ino, Rights::DATA_S).await.unwrap();
        assert!(layout.unwrap().frozen);
        assert!(!frozen_after(&bed, &b, ino, LEASE * 2).await);
    });
}
