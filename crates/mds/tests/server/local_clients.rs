//! Clients on the server's host, whose death shows by their locks on the data devices.

use types::*;

use crate::bed::*;

const ROOT: Ino = Ino::ROOT;

/// Locks the client's byte of the data device, which proves that it lives, until the disk is
/// dropped.
async fn lock_own_byte(client: &Client) -> env::Disk {
    let disk = client.env.open_disk("data", env::DiskOptions { write: true, exclusive: false });
    let disk = disk.await.unwrap();
    disk.lock_byte(client.id().0).await.unwrap();
    disk
}

/// PROTOCOLS 8.2.
#[test]
fn dead_local_client_delays_nobody() {
    run(|bed| async move {
        let a = bed.client("a").await;
        let disk = lock_own_byte(&a).await;
        let ino = a.create(ROOT, "f", FileKind::Regular, Rights::DATA_X).await.unwrap().attr.ino;
        a.space(100).await.unwrap();
        a.sync().await;
        bed.sleep(Duration::from_secs(1)).await;
        drop((a, disk));
        bed.world.kill("a");
        let b = bed.client("b").await;
        let begun = bed.env.now();
        assert_eq!(b.acquire(ino, Rights::DATA_X).await.unwrap().0.attr.ino, ino);
        assert!(bed.env.now().since(begun) < LEASE / 2, "the free lock shows that the client died");
        bed.sleep(Duration::from_secs(1)).await;
        let (_, layout) = b.acquire(ino, Rights::DATA_X).await.unwrap();
        assert!(!layout.unwrap().frozen, "no write of it can be in flight");

        let disk = lock_own_byte(&b).await;
        bed.sleep(Duration::from_secs(3)).await;
        drop((b, disk));
        bed.world.kill("b");
        let begun = bed.env.now();
        bed.restart().await;
        let c = bed.client("c").await;
        assert_eq!(c.names(ROOT).await, ["f"]);
        assert!(bed.env.now().since(begun) < LEASE / 2, "there is no grace for dead clients");
    });
}

/// PROTOCOLS 8.2.
#[test]
fn server_on_another_host_takes_no_free_lock_for_a_dead_client() {
    run(|bed| async move {
        let a = bed.client("a").await;
        let disk = lock_own_byte(&a).await;
        let ino = a.create(ROOT, "f", FileKind::Regular, Rights::DATA_X).await.unwrap().attr.ino;
        a.space(100).await.unwrap();
        a.sync().await;
        bed.sleep(Duration::from_secs(3)).await;
        // The client lives on the old host, and says nothing.
        bed.world.set_host("mds", "another");
        let begun = bed.env.now();
        bed.restart().await;
        let b = bed.client("b").await;
        let (_, layout) = b.acquire(ino, Rights::DATA_X).await.unwrap();
        assert!(bed.env.now().since(begun) >= LEASE, "grace lasts for a lease");
        assert!(layout.unwrap().frozen, "writes of the evicted client may be in flight");
        drop(disk);
    });
}

/// PROTOCOLS 8.2. What the process had in flight to the absent device may still be written.
#[test]
fn free_lock_proves_no_death_to_a_server_started_without_one_of_the_devices() {
    with_zones(2, |bed| async move {
        let a = bed.client("a").await;
        let disk = lock_own_byte(&a).await;
        let ino = a.create(ROOT, "f", FileKind::Regular, Rights::DATA_X).await.unwrap().attr.ino;
        a.sync().await;
        bed.sleep(Duration::from_secs(3)).await;
        drop((a, disk));
        bed.world.kill("a");
        let other = device_of(&bed.world, 1);
        other.fail_from(env::sim::DiskAction::Read, 1, env::sim::DiskFault::Io);
        let begun = bed.env.now();
        bed.restart().await;
        let b = bed.client("b").await;
        let (_, layout) = b.acquire(ino, Rights::DATA_X).await.unwrap();
        assert!(bed.env.now().since(begun) >= LEASE, "grace lasts for a lease");
        assert!(layout.unwrap().frozen);
        other.heal();
        bed.sleep(Duration::from_secs(3)).await;
        let (_, layout) = b.acquire(ino, Rights::DATA_X).await.unwrap();
        assert!(!layout.unwrap().frozen, "the lock is free on both devices");
    });
}
