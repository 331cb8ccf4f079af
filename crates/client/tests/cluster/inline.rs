//! Small files that lie with their inodes, between clients and through crashes.

use client::SetAttrRequest;
use store::{Feature, Features, SlotSize};
use types::{Duration, Ino};

use crate::harness::{Cluster, Mount, RDWR, ROOT, check_with};

fn features() -> Features {
    Features::USUAL.with_slots(SlotSize::Bytes1024).with(Feature::INLINE_DATA)
}

/// Reads, writes and flushes of the data device so far.
fn accesses(cluster: &Cluster) -> (u64, u64, u64) {
    let counts = cluster.data.counts();
    (counts.reads, counts.writes, counts.flushes)
}

async fn shorten(mount: &Mount, text: &str) {
    let set = SetAttrRequest { size: Some(10), ..SetAttrRequest::default() };
    mount.client.setattr(&ROOT, mount.ino(text).await, set).await.unwrap();
}

#[test]
fn small_files_are_synced_and_read_by_another_client_without_the_data_device() {
    for seed in [1, 2] {
        check_with(seed, features(), |cluster| async move {
            let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
            let before = accesses(&cluster);
            for index in 0..20u8 {
                let text = format!("f{index}");
                let (_, opened) = a.create(Ino::ROOT, &text, RDWR).await;
                a.write(opened.handle, 0, &vec![index; 30 * usize::from(index) + 1]).await;
                a.client.fsync(opened.handle, false).await.unwrap();
                a.close(opened.handle).await;
            }
            for index in 0..20u8 {
                assert_eq!(
                    b.get(&format!("f{index}")).await,
                    vec![index; 30 * usize::from(index) + 1]
                );
            }
            assert_eq!(accesses(&cluster), before);
            // One grows out of its slot under the other's hand.
            let handle = b.open(b.ino("f3").await, RDWR).await;
            b.write(handle, 91, &[200; 2000]).await;
            assert_eq!(a.get("f3").await, [vec![3; 91], vec![200; 2000]].concat());
            assert!(accesses(&cluster).1 > before.1);
            shorten(&b, "f3").await;
            assert_eq!(a.get("f3").await, vec![3; 10]);
            shorten(&a, "f4").await;
            assert_eq!(b.get("f4").await, vec![4; 10]);
        });
    }
}

#[test]
fn a_crash_of_the_server_or_the_client_leaves_content_whole() {
    for seed in [3, 4] {
        check_with(seed, features(), |cluster| async move {
            let a = cluster.mount("a").await;
            for index in 0..30u8 {
                a.put(&format!("f{index}"), &[index + 1; 300]).await;
            }
            // Committed, answered, and not durable: replayed to the next server.
            cluster.env.sleep(Duration::from_millis(1500)).await;
            for index in 0..10 {
                let handle = a.open(a.ino(&format!("f{index}")).await, RDWR).await;
                a.write(handle, 300, &[99; 3000]).await;
            }
            cluster.restart_server().await;
            let b = cluster.mount("b").await;
            for index in 0..30u8 {
                let mut want = vec![index + 1; 300];
                if index < 10 {
                    want.extend([99; 3000]);
                }
                assert_eq!(b.get(&format!("f{index}")).await, want, "f{index}");
            }
            // What was synced outlives its client.
            let (_, opened) = a.create(Ino::ROOT, "synced", RDWR).await;
            a.write(opened.handle, 0, b"there").await;
            a.client.fsync(opened.handle, false).await.unwrap();
            a.write(opened.handle, 0, &[7; 4096]).await;
            cluster.world.kill("a");
            assert_eq!(b.get("synced").await, b"there");
        });
    }
}
