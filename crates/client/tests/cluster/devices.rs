//! A data device that is missing or dead, for a whole cluster.

use env::sim::{DiskAction, DiskFault, SimDisk};
use types::{Duration, Fault, Ino};

use crate::harness::{LEASE, RDONLY, RDWR, check, logged};

/// Every request to the disk fails until it is healed.
fn kill(disk: &SimDisk) {
    for action in [DiskAction::Read, DiskAction::Write, DiskAction::Flush] {
        disk.fail_from(action, 1, DiskFault::Io);
    }
}

fn count(word: &str) -> usize {
    logged().iter().filter(|line| line.contains(word)).count()
}

/// SEMANTICS 3.12, 3.13.
#[test]
fn server_and_mount_start_without_the_data_device_and_take_it_when_it_comes() {
    for seed in [900, 901] {
        check(seed, |cluster| async move {
            let a = cluster.mount("a").await;
            let ino = a.put("f", &[7; 1 << 20]).await;
            assert_eq!(a.client.unmount().await, None);
            kill(&cluster.data);
            cluster.restart_server().await;
            let b = cluster.mount("b").await;
            assert_eq!(count("mds: data zone 0 at data0 is absent"), 1, "{:?}", logged());
            assert_eq!(b.client.devices()[0].state, "absent");
            let handle = b.open(ino, RDONLY).await;
            let begun = b.env.now();
            let read = b.client.read(handle, 0, 4096, false).await;
            assert_eq!(read.map(|_| ()), Err(Fault::Io));
            assert_eq!(b.env.now(), begun, "at once");
            b.mkdir(Ino::ROOT, "d").await.unwrap();
            assert_eq!(b.list(Ino::ROOT, false).await.len(), 2);

            cluster.data.heal();
            cluster.env.sleep(Duration::from_secs(2)).await;
            assert_eq!(b.read(handle, 0, 4096).await, [7; 4096]);
            assert_eq!(count("mds: data zone 0 at data0 is back"), 1);
            assert_eq!(b.client.devices()[0].state, "present");
            assert_eq!(b.client.unmount().await, None);
        });
    }
}

/// A free lock proves nothing while a device is absent that the server had open.
#[test]
fn absent_device_proves_no_clients_death() {
    check(902, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let (_, opened) = a.create(Ino::ROOT, "f", RDWR).await;
        a.write(opened.handle, 0, b"kept").await;
        a.client.fsync(opened.handle, false).await.unwrap();
        cluster.env.sleep(Duration::from_secs(1)).await;
        kill(&cluster.data);
        // The server looks each 10 s.
        cluster.env.sleep(Duration::from_secs(11)).await;
        assert_eq!(count("mds: data zone 0 at data0 is absent"), 1);
        cluster.world.kill("a");
        // Its open files end with it.
        drop(a);
        cluster.env.sleep(LEASE / 2).await;
        assert_eq!(count("its process has ended"), 0, "nothing is proven");
        cluster.data.heal();
        cluster.env.sleep(Duration::from_secs(3)).await;
        assert_eq!(count("its process has ended"), 1, "{:?}", logged());
        let handle = b.open(b.ino("f").await, RDONLY).await;
        assert_eq!(b.read(handle, 0, 10).await, b"kept");
    });
}

/// FORMAT 1.1: a server that moves to another host raises the labels, and loses nobody.
#[test]
fn client_goes_on_with_a_server_that_has_taken_over() {
    for seed in [903, 904] {
        check(seed, |cluster| async move {
            let a = cluster.mount("a").await;
            let (_, opened) = a.create(Ino::ROOT, "f", RDWR).await;
            a.write(opened.handle, 0, &[1; 300_000]).await;
            cluster.world.set_host("mds", "elsewhere");
            cluster.restart_server().await;
            assert_eq!(count("mds: this server has taken over"), 1, "{:?}", logged());
            // The client looks at the label, before or after the server has greeted it.
            cluster.data.fail(DiskAction::Write, 1, DiskFault::Io);
            a.write(opened.handle, 300_000, &[2; 300_000]).await;
            let _ = a.client.fsync(opened.handle, false).await;
            a.write(opened.handle, 600_000, &[3; 100_000]).await;
            assert_eq!(a.client.fsync(opened.handle, false).await, Ok(()));
            assert_eq!(a.read(opened.handle, 600_000, 4096).await, [3; 4096]);
            cluster.restart_server().await;
            assert_eq!(count("mds: this server has taken over"), 1, "it is the same host");
            a.close(opened.handle).await;
            assert_eq!(a.client.unmount().await, None);
        });
    }
}

/// FORMAT 1.1: who obeys a server that has been replaced writes no more.
#[test]
fn client_of_a_replaced_server_writes_nothing() {
    check(905, |cluster| async move {
        let a = cluster.mount("a").await;
        let (_, opened) = a.create(Ino::ROOT, "f", RDWR).await;
        a.write(opened.handle, 0, &[1; 300_000]).await;
        assert_eq!(a.client.fsync(opened.handle, false).await, Ok(()));
        // Another server raises the label, of which the old one learns nothing in time.
        let options = env::DiskOptions { write: true, exclusive: false };
        let disk = cluster.env.open_disk("data0", options).await.unwrap();
        let found = label::read(&disk).await.unwrap();
        let raise = |label: &mut label::Label| label.fencing_epoch = types::Epoch(1000);
        label::update(&disk, &found, raise).await.unwrap();
        // One request fails, so the client looks at the label.
        cluster.data.fail(DiskAction::Write, 1, DiskFault::Io);
        a.write(opened.handle, 0, &[2; 300_000]).await;
        let _ = a.client.fsync(opened.handle, false).await;
        cluster.env.sleep(Duration::from_millis(100)).await;
        assert_eq!(count("of epoch 1000 has taken over"), 1, "{:?}", logged());
        let before = cluster.data.counts().writes;
        let late = a.env.timeout(LEASE * 4, async {
            let _ = a.try_write(opened.handle, 0, &[4; 300_000]).await;
            a.client.fsync(opened.handle, false).await
        });
        assert_eq!(late.await, None, "it waits for the new server");
        assert_eq!(cluster.data.counts().writes, before);
    });
}
