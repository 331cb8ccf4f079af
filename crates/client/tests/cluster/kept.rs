//! The list of requests that are kept until they are durable is full.

use std::cell::Cell;
use std::rc::Rc;

use client::{ClientConfig, KeptLimits};
use types::{Duration, Ino};

use crate::harness::{LEASE, WRONLY, check, logged};

const LIMIT: usize = 16;

/// PROTOCOLS 3.11, SEMANTICS 3.12.
#[test]
fn full_list_delays_changes_but_no_recall_and_no_renewal_until_the_log_is_flushed() {
    for seed in [70, 71] {
        check(seed, |cluster| async move {
            let kept = KeptLimits { requests: LIMIT, ..KeptLimits::default() };
            let config = ClientConfig { kept, ..ClientConfig::default() };
            let a = Rc::new(cluster.try_mount("a", config).await.unwrap());
            let b = Rc::new(cluster.mount("b").await);
            let dir = a.mkdir(Ino::ROOT, "d").await.unwrap().attr.ino;
            let (dirty, opened) = a.create(dir, "dirty", WRONLY).await;
            // A grant of space waits for the log: the client has one before the log stalls.
            let (_, granted) = a.create(dir, "granted", WRONLY).await;
            a.write(granted.handle, 0, &[4; 9000]).await;
            a.client.syncfs().await.unwrap();
            assert_eq!(a.client.status().replay, 0);

            cluster.meta.stall(true);
            a.write(opened.handle, 0, &[5; 9000]).await;
            let made = Rc::new(Cell::new(0));
            for index in 0..60 {
                let (a, made) = (a.clone(), made.clone());
                cluster.env.spawn(async move {
                    a.mkdir(dir, &format!("d{index}")).await.unwrap();
                    made.set(made.get() + 1);
                });
            }
            cluster.env.sleep(Duration::from_millis(200)).await;
            let read = Rc::new(Cell::new(0));
            let (reader, got, ino) = (b.clone(), read.clone(), dirty.attr.ino);
            cluster.env.spawn(async move {
                let handle = reader.open(ino, crate::harness::RDONLY).await;
                got.set(reader.read(handle, 0, 10_000).await.len());
            });
            for _ in 0..12 {
                cluster.env.sleep(LEASE / 4).await;
                let status = a.client.status();
                assert!(status.replay <= LIMIT, "{status:?}");
                assert!(status.connected && a.client.lease_left() > Duration::ZERO);
            }
            assert!(made.get() < LIMIT, "{} were made", made.get());

            cluster.meta.stall(false);
            cluster.env.sleep(LEASE).await;
            assert_eq!((made.get(), read.get()), (60, 9000));
            assert!(!logged().iter().any(|line| line.contains("evicted")), "{:?}", logged());
            a.client.syncfs().await.unwrap();
            cluster.restart_server().await;
            assert_eq!(b.list(dir, true).await.len(), 62);
        });
    }
}
