//! Renames over a name: even if the client dies, the name leads to the old or the new content,
//! whole.

use client::Place;
use env::sim::{DiskAction, DiskFault};
use types::{Duration, Fault, Ino};

use crate::harness::{Cluster, LEASE, Mount, RDWR, ROOT, check, name};

const EXCHANGE: u32 = 2;
/// Empty, less than a block, some blocks, and many.
const LENGTHS: [usize; 4] = [0, 100, 20_000, 900_000];

async fn rename(mount: &Mount, from: &str, to: &str, flags: u32) -> Result<(), Fault> {
    let (from, to) = (name(from), name(to));
    let place = |name| Place { dir: Ino::ROOT, name };
    mount.client.rename(&ROOT, place(&from), place(&to), flags).await
}

/// Makes files whose content is durable.
async fn put_durably(cluster: &Cluster, mount: &Mount, names: &[&str], bytes: &[u8]) {
    for text in names {
        mount.put(text, bytes).await;
    }
    cluster.env.sleep(Duration::from_secs(5)).await;
}

fn flushes(cluster: &Cluster) -> u64 {
    cluster.data.counts().flushes
}

/// SEMANTICS 2.4.
#[test]
fn replaced_name_leads_to_whole_new_content_if_the_client_dies_at_once() {
    for (index, len) in LENGTHS.into_iter().enumerate() {
        for flags in [0, EXCHANGE] {
            check(300 + 10 * index as u64 + u64::from(flags), |cluster| async move {
                let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
                put_durably(&cluster, &a, &["f", "g"], &[1; 5000]).await;
                let (new, both) = (vec![2; len], vec![3; len + 7]);
                a.put("t", &new).await;
                a.put("u", &both).await;
                rename(&a, "t", "f", flags).await.unwrap();
                if flags == EXCHANGE {
                    // Both files get a new name.
                    rename(&a, "g", "u", flags).await.unwrap();
                } else {
                    rename(&a, "u", "g", flags).await.unwrap();
                }
                cluster.world.kill("a");
                assert!(b.get("f").await == new);
                assert!(b.get("g").await == both);
            });
        }
    }
}

/// SEMANTICS 2.4.
#[test]
fn dirty_data_of_another_client_is_committed_before_a_replacing_rename() {
    for (index, len) in LENGTHS.into_iter().enumerate() {
        check(340 + index as u64, |cluster| async move {
            let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
            put_durably(&cluster, &a, &["f", "g"], &[1; 5000]).await;
            let new = vec![2; len];
            for (text, to) in [("t", "f"), ("u", "g")] {
                a.put(text, &new).await;
                // One client knows the first name, but not the second.
                if text == "t" {
                    b.ino(text).await;
                }
                rename(&b, text, to, 0).await.unwrap();
            }
            let c = cluster.mount("c").await;
            cluster.world.kill("a");
            cluster.world.kill("b");
            assert!(c.get("f").await == new);
            assert!(c.get("g").await == new);
        });
    }
}

/// SEMANTICS 2.4.
#[test]
fn replacing_rename_adds_one_flush_and_two_messages_or_none_if_committed() {
    check(350, |cluster| async move {
        let a = cluster.mount("a").await;
        put_durably(&cluster, &a, &["f", "other"], &[1; 20_000]).await;
        // The kernel looks both names up before a rename.
        a.list(Ino::ROOT, true).await;
        for len in [100, 20_000, 900_000] {
            a.put("t", &vec![2; len]).await;
            let (requests, before) = (a.requests(), flushes(&cluster));
            rename(&a, "t", "f", 0).await.unwrap();
            assert!(a.requests() - requests <= 3, "{len}: {}", a.requests() - requests);
            assert!(flushes(&cluster) - before <= 1, "{len}: {}", flushes(&cluster) - before);
            // Nothing is flushed later.
            cluster.env.sleep(Duration::from_secs(5)).await;
            assert!(flushes(&cluster) - before <= 1, "{len}");

            put_durably(&cluster, &a, &["t"], &vec![3; len]).await;
            let (requests, before) = (a.requests(), flushes(&cluster));
            rename(&a, "t", "f", 0).await.unwrap();
            assert_eq!((a.requests() - requests, flushes(&cluster) - before), (1, 0), "{len}");

            // This replaces nothing, so it waits for nothing.
            a.put("t", &vec![4; len]).await;
            let (requests, before) = (a.requests(), flushes(&cluster));
            rename(&a, "t", "fresh", 0).await.unwrap();
            assert_eq!((a.requests() - requests, flushes(&cluster) - before), (1, 0), "{len}");
            a.unlink(Ino::ROOT, "fresh").await.unwrap();
        }
    });
}

#[test]
fn concurrent_replacing_renames_share_flushes() {
    check(351, |cluster| async move {
        const FILES: usize = 100;
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        for index in 0..FILES {
            a.put(&format!("f{index}"), &[1; 9000]).await;
        }
        cluster.env.sleep(Duration::from_secs(5)).await;
        for index in 0..FILES {
            a.put(&format!("t{index}"), &[2; 9000]).await;
        }
        let before = flushes(&cluster);
        let renames: Vec<_> = (0..FILES)
            .map(|index| {
                let a = a.clone();
                cluster.env.spawn_join(async move {
                    rename(&a, &format!("t{index}"), &format!("f{index}"), 0).await
                })
            })
            .collect();
        for renamed in renames {
            renamed.await.unwrap();
        }
        assert!(flushes(&cluster) - before <= 10, "{}", flushes(&cluster) - before);
        cluster.world.kill("a");
        for index in 0..FILES {
            assert_eq!(b.get(&format!("f{index}")).await, [2; 9000]);
        }
    });
}

#[test]
fn name_made_by_another_client_meanwhile_is_replaced_by_whole_content() {
    for seed in 360..384 {
        check(seed, |cluster| async move {
            let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
            for round in 0..6 {
                let text = format!("f{round}");
                let other = text.clone();
                a.put("t", &[round; 9000]).await;
                assert!(a.find(Ino::ROOT, &text).await.is_none());
                let maker = b.clone();
                let made = cluster.env.spawn_join(async move {
                    maker.env.sleep(Duration::from_micros(seed * 17 % 200)).await;
                    let (other, node) = (name(&other), types::FileKind::Regular);
                    let node = client::NodeSpec { kind: node, mode: 0o644, umask: 0, rdev: 0 };
                    let place = Place { dir: Ino::ROOT, name: &other };
                    let _ = maker.client.mknod(&ROOT, place, node).await;
                });
                cluster.env.sleep(Duration::from_micros(u64::from(round) * 40)).await;
                rename(&a, "t", &text, 0).await.unwrap();
                made.await;
            }
            let replaced: Vec<bool> = {
                let mut replaced = Vec::new();
                for round in 0..6 {
                    let ino = b.ino(&format!("f{round}")).await;
                    replaced.push(b.client.getattr(ino).await.unwrap().0.size == 9000);
                }
                replaced
            };
            assert_eq!(replaced, [true; 6]);
        });
    }
}

/// SEMANTICS 2.4.
#[test]
fn replacing_rename_fails_and_keeps_the_old_content_if_the_device_fails() {
    for action in [DiskAction::Write, DiskAction::Flush] {
        check(352, |cluster| async move {
            let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
            put_durably(&cluster, &a, &["f"], &[1; 20_000]).await;
            a.put("t", &[2; 20_000]).await;
            cluster.data.fail_from(action, 1, DiskFault::Io);
            assert_eq!(rename(&a, "t", "f", EXCHANGE).await, Err(Fault::Io));
            a.put("t", &[4; 20_000]).await;
            assert_eq!(rename(&a, "t", "f", 0).await, Err(Fault::Io));
            // This replaces nothing, so it does not need the device.
            a.put("t", &[5; 20_000]).await;
            rename(&a, "t", "fresh", 0).await.unwrap();
            assert_eq!(rename(&a, "fresh", "missing", EXCHANGE).await, Err(Fault::NotFound));
            cluster.data.heal();
            assert_eq!(b.get("f").await, [1; 20_000]);
            a.put("u", &[3; 20_000]).await;
            rename(&a, "u", "f", 0).await.unwrap();
            cluster.world.kill("a");
            assert_eq!(b.get("f").await, [3; 20_000]);
        });
    }
}

/// SEMANTICS 2.4. The data went with the client's session, after the last close.
#[test]
fn rename_of_a_file_whose_lost_content_nobody_heard_of_fails_once() {
    for flags in [0, EXCHANGE] {
        check(353, |cluster| async move {
            let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
            put_durably(&cluster, &a, &["f", "t", "u"], &[1; 20_000]).await;
            for text in ["t", "u"] {
                let handle = a.open(a.ino(text).await, RDWR).await;
                a.write(handle, 0, &[2; 20_000]).await;
                a.close(handle).await;
            }
            cluster.world.pause("a");
            let _ = b.get("t").await;
            let _ = b.get("u").await;
            cluster.world.resume("a");
            cluster.env.sleep(Duration::from_secs(5)).await;
            assert_eq!(rename(&a, "t", "f", flags).await, Err(Fault::Io));
            assert_eq!(b.get("f").await, [1; 20_000]);
            rename(&a, "t", "f", flags).await.unwrap();
            // Whoever cuts a file to nothing wants nothing of what was in it.
            let cut = client::SetAttrRequest { size: Some(0), ..Default::default() };
            a.client.setattr(&ROOT, a.ino("u").await, cut).await.unwrap();
            let handle = a.open(a.ino("u").await, RDWR).await;
            a.write(handle, 0, &[3; 100]).await;
            a.close(handle).await;
            rename(&a, "u", "f", flags).await.unwrap();
            assert_eq!(b.get("f").await, [3; 100]);
        });
    }
}

/// Recalls of the file and of its directory arrive while the rename waits for the commit.
#[test]
fn replacing_rename_does_not_deadlock_with_recalls() {
    for seed in 390..410 {
        check(seed, |cluster| async move {
            let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
            put_durably(&cluster, &a, &["f"], &[1; 9000]).await;
            for round in 0..10u8 {
                let (entry, opened) = a.create(Ino::ROOT, "t", RDWR).await;
                a.write(opened.handle, 0, &[round; 9000]).await;
                let (c, ino) = (b.clone(), entry.attr.ino);
                let reading = cluster.env.spawn_join(async move {
                    c.env.sleep(Duration::from_micros(seed * 31 % 300)).await;
                    let _ = c.client.getattr(ino).await;
                    c.list(Ino::ROOT, true).await;
                    let handle = c.open(ino, RDWR).await;
                    c.write(handle, 0, &[round; 100]).await;
                    c.close(handle).await;
                });
                let renamed = rename(&a, "t", "f", 0);
                let renamed = cluster.env.timeout(Duration::from_secs(2), renamed).await;
                renamed.expect("it ends long before a lease").unwrap();
                reading.await;
                a.close(opened.handle).await;
                assert_eq!(b.get("f").await, [round; 9000]);
            }
            assert!(LEASE > Duration::from_secs(2));
        });
    }
}
