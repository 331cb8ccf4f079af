//! Scrubs of the metadata device while clients use it.

use types::*;

use crate::bed::*;
use proto::mds::*;

const ROOT: Ino = Ino::ROOT;

async fn status(admin: &Client) -> String {
    match admin.call(Op::Status {}).await {
        Ok(OpReply::Text { text }) => text[text.find("\"scrub\"").unwrap()..].to_owned(),
        other => panic!("{other:?}"),
    }
}

async fn until(bed: &Bed, admin: &Client, state: &str) -> String {
    let wanted = format!("\"state\":\"{state}\"");
    for _ in 0..10_000 {
        let now = status(admin).await;
        if now.contains(&wanted) {
            return now;
        }
        bed.sleep(Duration::from_millis(10)).await;
    }
    panic!("the scrub never became {state}: {}", status(admin).await);
}

#[test]
fn scrub_rewrites_a_damaged_block_while_clients_work() {
    run(|bed| async move {
        let (admin, c) = (Client::new(bed.world.node("admin")), bed.client("c").await);
        admin.connect_as(ClientId(0), 1, 1).await.unwrap();
        for n in 0..200 {
            c.create(ROOT, &format!("f{n}"), FileKind::Regular, Rights::empty()).await.unwrap();
        }
        c.sync().await;
        assert!(status(&admin).await.contains("\"state\":\"never\""));
        // Wait for the checkpoint, so that the block is on the device and in the cache.
        bed.sleep(Duration::from_secs(120)).await;
        assert_eq!(admin.call(Op::Scrub { rate: Some(0) }).await, Ok(OpReply::Done {}));
        let sound = until(&bed, &admin, "whole").await;
        assert!(
            sound.contains("\"findings\":0") && sound.contains("\"written_anew\":0"),
            "{sound}"
        );

        // The log comes first on the device: the last match is the block's home.
        let device = bed.meta().peek(0, bed.meta().size() as usize);
        let at = device.windows(4).rposition(|bytes| bytes == b"f123").unwrap();
        bed.meta().flip_bit(at as u64, 3);
        admin.call(Op::Scrub { rate: Some(1 << 20) }).await.unwrap();
        until(&bed, &admin, "running").await;
        c.create(ROOT, "meanwhile", FileKind::Regular, Rights::empty()).await.unwrap();
        let mended = until(&bed, &admin, "whole").await;
        assert!(mended.contains("\"written_anew\":1"), "{mended}");
        assert!(bed.logged("has been rewritten"));
        assert_eq!(c.names(ROOT).await.len(), 201);
    });
}

#[test]
fn scrubs_run_periodically_one_at_a_time_and_can_be_cancelled() {
    run(|bed| async move {
        let admin = Client::new(bed.world.node("admin"));
        bed.scrub_every(Duration::from_secs(50));
        bed.restart().await;
        admin.connect_as(ClientId(0), 1, 1).await.unwrap();
        bed.sleep(Duration::from_secs(40)).await;
        assert!(status(&admin).await.contains("\"state\":\"never\""));
        bed.sleep(Duration::from_secs(15)).await;
        until(&bed, &admin, "whole").await;

        admin.call(Op::Scrub { rate: Some(1) }).await.unwrap();
        let slow = until(&bed, &admin, "running").await;
        assert!(slow.contains("\"rate\":1,"), "{slow}");
        admin.call(Op::Scrub { rate: Some(0) }).await.unwrap();
        assert!(status(&admin).await.contains("\"rate\":1,"), "the running scrub goes on");
        admin.call(Op::Scrub { rate: None }).await.unwrap();
        until(&bed, &admin, "broken off").await;
        admin.call(Op::Scrub { rate: Some(0) }).await.unwrap();
        until(&bed, &admin, "whole").await;
    });
}
