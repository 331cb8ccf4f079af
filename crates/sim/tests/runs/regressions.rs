//! Fault scripts that random runs once found.
#![allow(missing_docs)]

use std::cell::Cell;
use std::rc::Rc;

use client::{Caller, Client, OpenFlags, Place, WriteFlags};
use redbud_sim::Events;
use redbud_sim::cluster::{self, Cluster, SERVER};
use types::{Duration, Ino, LockOwner, Name};

const ME: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const LEN: usize = 4096;

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a legal name")
}

fn run<F: Future<Output = ()>>(seed: u64, script: impl FnOnce(Cluster) -> F) {
    let (world, disks) = cluster::world(seed);
    let inner = world.clone();
    world.run(|env| async move {
        let cluster = Cluster::new(inner, env, disks, Rc::default(), Events::default());
        cluster.start_server();
        script(cluster).await;
    });
}

async fn write(client: &Client, ino: Ino, byte: u8, sync: bool) {
    let flags = OpenFlags(OpenFlags::READ_WRITE);
    let file = client.open(&ME, ino, flags).await.expect("it is there").handle;
    let mut data = env::IoBuf::zeroed(LEN);
    data.fill(byte);
    let written = client.write(&ME, file, 0, data, LEN, WriteFlags::default()).await;
    assert_eq!(written, Ok(LEN as u32));
    if sync {
        client.fsync(file, false).await.expect("durable");
    }
    client.flush(file, LockOwner(1)).await.expect("nothing failed");
    client.release(file, None).await;
}

async fn read(client: &Client, ino: Ino) -> Vec<u8> {
    let file = client.open(&ME, ino, OpenFlags(0)).await.expect("it is there").handle;
    let bytes = client.read(file, 0, 2 * LEN as u32, false).await.expect("it can be read");
    client.release(file, None).await;
    bytes.to_vec()
}

async fn create(client: &Client, text: &str) -> Ino {
    let name = name(text);
    let place = Place { dir: Ino::ROOT, name: &name };
    let flags = OpenFlags(OpenFlags::READ_WRITE);
    let (entry, file) = client.create(&ME, place, 0o644, 0, flags).await.expect("it is made");
    client.release(file.handle, None).await;
    entry.attr.ino
}

#[test]
fn file_linked_during_its_unlink_keeps_the_removers_writes() {
    let linked = Rc::new(Cell::new(0));
    for delay in 0..60 {
        let linked = linked.clone();
        run(delay, |cluster| async move {
            let one = cluster.connect("one").await.expect("it mounts");
            let other = cluster.connect("other").await.expect("it mounts");
            let ino = create(&one, "a").await;
            let old = name("a");
            assert!(one.lookup(&ME, Ino::ROOT, &old).await.expect("it asks").is_ok());
            write(&one, ino, 7, false).await;
            let link = cluster.env.spawn_join({
                let (other, new) = (other.clone(), name("b"));
                async move { other.link(&ME, ino, Place { dir: Ino::ROOT, name: &new }).await }
            });
            cluster.env.sleep(Duration::from_micros(20 * delay)).await;
            one.unlink(&ME, Place { dir: Ino::ROOT, name: &old }).await.expect("it is there");
            let link = link.await;
            if link.is_err() {
                return;
            }
            cluster.kill_server();
            cluster.start_server();
            assert_eq!(read(&other, ino).await, [7; LEN], "delay {delay}");
            linked.set(linked.get() + 1);
        });
    }
    assert!(linked.get() > 20, "{} links came in time", linked.get());
}

#[test]
fn commit_does_not_revert_the_ctime_of_a_later_link() {
    run(3, |cluster| async move {
        let client = cluster.connect("one").await.expect("it mounts");
        let ino = create(&client, "a").await;
        let made = client.getattr(ino).await.expect("it is there").0.ctime;
        write(&client, ino, 7, false).await;
        let written = client.getattr(ino).await.expect("it is there").0;
        assert!(written.mtime >= made && written.ctime == written.mtime);
        let new = name("b");
        let linked = client.link(&ME, ino, Place { dir: Ino::ROOT, name: &new }).await;
        let linked = linked.expect("it is linked").attr;
        assert!(linked.ctime > written.ctime && linked.mtime == written.mtime);
        client.syncfs().await.expect("durable");
        drop(client);
        cluster.world.kill("one");
        let other = cluster.connect("other").await.expect("it mounts");
        let seen = other.getattr(ino).await.expect("it is there").0;
        assert_eq!((seen.ctime, seen.mtime), (linked.ctime, linked.mtime));
    });
}

#[test]
fn in_place_write_of_a_dead_client_is_durable_once_read() {
    for wait in [1, 5, 20, 100, 400, 800] {
        run(wait, |cluster| async move {
            let one = cluster.connect("one").await.expect("it mounts");
            let other = cluster.connect("other").await.expect("it mounts");
            let ino = create(&one, "a").await;
            write(&one, ino, 1, true).await;
            write(&one, ino, 2, false).await;
            cluster.env.sleep(Duration::from_millis(wait)).await;
            drop(one);
            cluster.world.kill("one");
            let seen = read(&other, ino).await;
            other.syncfs().await.expect("durable");
            drop(other);
            cluster.world.kill("other");
            cluster.world.kill(SERVER);
            let data = cluster.data().iter().map(|disk| disk.stable_only()).collect();
            cluster.replace(Some(cluster.meta().stable_only()), Some(data));
            cluster.start_server();
            let third = cluster.connect("third").await.expect("it mounts");
            assert_eq!(read(&third, ino).await, seen, "after {wait} ms");
        });
    }
}

#[test]
fn new_file_stays_open_if_replaced_before_the_answer_to_create() {
    let replaced = Rc::new(Cell::new(0));
    for delay in 0..60 {
        let replaced = replaced.clone();
        run(delay, |cluster| async move {
            let one = cluster.connect("one").await.expect("it mounts");
            let other = cluster.connect("other").await.expect("it mounts");
            create(&one, "a").await;
            create(&one, "b").await;
            one.syncfs().await.expect("durable");
            let (old, new) = (name("b"), name("a"));
            // The answer to a new create of the name waits until this is durable.
            one.unlink(&ME, Place { dir: Ino::ROOT, name: &new }).await.expect("it is there");
            let making = cluster.env.spawn_join({
                let (other, new) = (other.clone(), new.clone());
                let flags = OpenFlags(OpenFlags::READ_WRITE | OpenFlags::EXCLUSIVE);
                async move {
                    let place = Place { dir: Ino::ROOT, name: &new };
                    other.create(&ME, place, 0o644, 0, flags).await
                }
            });
            cluster.env.sleep(Duration::from_micros(20 * delay)).await;
            let place = |name| Place { dir: Ino::ROOT, name };
            one.rename(&ME, place(&old), place(&new), 0).await.expect("it is there");
            let Ok((_, file)) = making.await else { return };
            let read = other.read(file.handle, 0, LEN as u32, false).await;
            assert_eq!(read.map(|read| read.len()), Ok(0), "delay {delay}");
            let data = env::IoBuf::zeroed(LEN);
            let written = other.write(&ME, file.handle, 0, data, LEN, WriteFlags::default()).await;
            assert_eq!(written, Ok(LEN as u32), "delay {delay}");
            replaced.set(replaced.get() + 1);
        });
    }
    assert!(replaced.get() > 5, "{} files were made in time", replaced.get());
}

#[test]
fn mount_gives_up_on_a_mute_connection() {
    run(11, |cluster| async move {
        cluster.world.mute(SERVER, true);
        let (begun, inner) = (cluster.env.now(), cluster.clone());
        let mount = cluster.env.spawn_join(async move { inner.connect("one").await });
        cluster.env.sleep(Duration::from_secs(1)).await;
        cluster.world.mute(SERVER, false);
        mount.await.expect("it mounts when the server answers");
        let time = cluster.env.now() - begun;
        assert!(time < Duration::from_secs(30), "{time:?}");
    });
}
