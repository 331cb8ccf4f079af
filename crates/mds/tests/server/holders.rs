//! The server says who keeps a client waiting, at once, and to clients only.

use env::sync::oneshot;
use proto::mds::*;
use types::*;

use crate::bed::*;

const ROOT: Ino = Ino::ROOT;

async fn why(client: &Client, ino: Ino, lock: Option<Lock>) -> String {
    // In a slot that no waiting request has.
    let asked = client.request(1, vec![Op::Why { ino, lock }]);
    match client.exchange(asked).await.unwrap().results.remove(0) {
        Ok(OpReply::Text { text }) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn holders_of_locks_rights_and_gates_are_named() {
    run(|bed| async move {
        let (a, b, c) = (bed.client("a").await, bed.client("b").await, bed.client("c").await);
        let ino = a.file(ROOT, "f").await;
        let lock = |owner, pid, start, end| {
            let owner = LockOwner(owner);
            Lock { flock: false, owner, pid, exclusive: true, start, end }
        };
        a.call(Op::Lock { ino, lock: lock(1, 77, 0, 9), wait: false }).await.unwrap();
        let wanted = why(&b, ino, Some(lock(2, 78, 5, 6))).await;
        let name = |client: &Client| format!("\"client\":{},\"name\":\"", client.id().0);
        assert!(wanted.contains(&name(&a)) && wanted.contains("\"process\":77"), "{wanted}");
        let free = why(&b, ino, Some(lock(2, 78, 10, 11))).await;
        assert!(free.contains("\"locks\":[]"), "{free}");

        // a keeps its names, so b's file waits at the directory's gate.
        a.find(ROOT, "f", Rights::ATTR, Rights::NAMES).await;
        a.ignore_recalls();
        let (send, made) = oneshot();
        let maker = b.clone();
        b.env.spawn(async move { send.send(maker.file(ROOT, "g").await) });
        let (at, seq, take) = a.recall().await;
        let said = why(&c, ROOT, None).await;
        let (gates, recalls) = said.split_once("\"recalls\"").unwrap();
        assert!(gates.contains(&name(&b)) && gates.contains("\"own\":false"), "{said}");
        assert!(recalls.contains(&name(&a)) && recalls.contains("NAMES"), "{said}");
        assert!(why(&b, ROOT, None).await.contains("\"own\":true"));
        a.reserved(Op::Return { ino: at, seq, give: take, still_open: false, range: None }).await;
        made.await.unwrap();
        let nobody = why(&c, ROOT, None).await;
        assert!(nobody.contains("\"gates\":[],\"recalls\":[]"), "{nobody}");
    });
}
