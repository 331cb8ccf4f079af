//! A server that works on few requests at once.

use env::sync::oneshot;
use proto::mds::*;
use types::*;

use crate::bed::*;

const ROOT: Ino = Ino::ROOT;

/// How long four clients take that make a file each at the same time, durably.
async fn four_creates(bed: &Bed, turn: u32) -> Duration {
    let mut clients = Vec::new();
    for name in ["a", "b", "c", "d"] {
        clients.push(bed.client(name).await);
    }
    // The server has ended its recovery.
    clients[0].attr(ROOT).await.unwrap();
    let begun = bed.env.now();
    let mut all = Vec::new();
    for client in &clients {
        let (client, text) = (client.clone(), format!("{turn}-{}", client.id()));
        let (name, node) = (name(&text), node(FileKind::Regular, 0o644));
        let make = Op::Create { dir: ROOT, name, node, want: Rights::empty() };
        let request = Request { sync: true, ..client.request(1, vec![make]) };
        all.push(bed.env.spawn_join(async move { client.exchange(request).await }));
    }
    for answer in all {
        assert!(answer.await.unwrap().results[0].is_ok());
    }
    bed.env.now().since(begun)
}

#[test]
fn one_worker_makes_clients_wait_for_each_other() {
    run(|bed| async move {
        let many = four_creates(&bed, 1).await;
        bed.serve_by(Some(1)).await;
        let one = four_creates(&bed, 2).await;
        bed.serve_by(Some(4)).await;
        let four = four_creates(&bed, 3).await;
        assert!(one * 2 > many * 3, "{one:?} with one, {many:?} without a bound");
        assert!(four < one, "{four:?} with four, {one:?} with one");
    });
}

/// What a request waits for may need the worker.
#[test]
fn request_that_waits_for_another_client_leaves_its_worker_to_others() {
    run(|bed| async move {
        bed.serve_by(Some(1)).await;
        let (a, b) = (bed.client("a").await, bed.client("b").await);
        let ino = a.create(ROOT, "f", FileKind::Regular, Rights::DATA_X | Rights::ATTR).await;
        let ino = ino.unwrap().attr.ino;
        a.ignore_recalls();
        let (send, mut read) = oneshot();
        let reader = b.clone();
        b.env.spawn(async move { send.send(reader.acquire(ino, Rights::DATA_S).await) });
        let (_, seq, take) = a.recall().await;
        let waits = bed.env.timeout(Duration::from_millis(500), &mut read).await;
        assert!(waits.is_none(), "it has a worker, and waits");
        a.commit(ino, vec![], Some(4096)).await.unwrap();
        let give = take | Rights::ATTR;
        a.reserved(Op::Return { ino, seq, give, still_open: false, range: None }).await;
        assert_eq!(read.await.unwrap().unwrap().0.attr.size, 4096);
        let request = b.request(0, vec![Op::GetAttr { ino, want: Rights::empty() }]);
        assert_eq!(b.exchange(request).await.unwrap().load, 1, "itself");
    });
}
