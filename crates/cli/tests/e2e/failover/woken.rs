//! An owner that is stopped, replaced behind a fence, and woken: it writes, and nothing lands.
//!
//! Each server reaches the metadata device through a path of its own, as in the tests of fences.
//! `REDBUD_WAKES` says how often each server is stopped and woken; the gate does it twice.

use std::fs;
use std::sync::{Arc, Mutex};

use rustix::process::Signal;

use super::Servers;
use super::etcd::Etcd;
use crate::fence::Paths;
use crate::harness::{eventually, signal};
use crate::kill::{Load, Promised, forget, prepare, verify};

/// The name of a server's host.
fn host(index: usize) -> String {
    format!("mds{index}")
}

/// Gives each server a path to the metadata device, and a file that names it.
fn give_paths(servers: &mut Servers) -> Paths {
    let mut paths = Paths::new(&servers.cluster, "metadata.img");
    let text = fs::read_to_string(&servers.cluster.config).unwrap();
    let (text, _) = text.split_once("[[fence]]").expect("the file has a fence");
    for index in 0..2 {
        let device = paths.add(&host(index), "0");
        let device = format!("path = \"{}\"", device.display());
        let text = text.replacen("path = \"metadata.img\"", &device, 1);
        let file = servers.own_directory(index).join("cluster.toml");
        fs::write(&file, text + &paths.table("agent", "mds*")).unwrap();
        servers.configs[index] = file;
    }
    paths
}

/// Stops the owner, waits for its successor, wakes it: how many of its writes failed.
fn wake_replaced_owner(servers: &mut Servers, paths: &Paths) -> usize {
    let (owner, epoch) = (servers.owner(), servers.epoch());
    let woken = servers.pid(owner);
    signal(woken, Signal::STOP);
    servers.wait_taken_over(0, epoch);
    let at = paths.fenced_at(&host(owner));
    signal(woken, Signal::CONT);
    // It ends, or stands by again in the same process: in both cases it owns nothing any more.
    eventually("the woken server has noticed", || {
        let ended = servers.running[owner].as_mut().is_some_and(|it| it.has_ended());
        ended || servers.standbys().contains(&woken)
    });
    let results = paths.results(&host(owner), at);
    assert!(results.iter().all(|result| result.starts_with("-1")), "{results:?}");
    // It gets its access back, as an administrator would give it.
    servers.running[owner].take().expect("it was started").kill();
    fs::remove_file(paths.file(&host(owner), "cut")).unwrap();
    servers.start_one(owner);
    results.len()
}

#[test]
fn woken_owner_is_cut_off_and_nothing_that_it_writes_lands() {
    let wakes = std::env::var("REDBUD_WAKES").map_or(2, |text| text.parse().expect("a number"));
    let mut servers = Servers::formatted_at(2, Some(Etcd::start()));
    let paths = give_paths(&mut servers);
    (0..2).for_each(|index| servers.start_one(index));
    servers.cluster.mount();
    let root = servers.cluster.root();
    prepare(&root);
    let promised = Arc::new(Mutex::new(Promised::default()));
    let mut late = 0;
    for round in 0..2 * wakes {
        let load = Load::start(root.clone(), round, &promised);
        load.work(round);
        late += wake_replaced_owner(&mut servers, &paths);
        load.work(round);
        let errors = load.end();
        assert!(errors.is_empty(), "round {round}: {errors:?}");
        let mut promised = promised.lock().unwrap();
        verify(&root, &promised);
        forget(&root, &mut promised);
    }
    println!("{late} late writes failed in {} turns", 2 * wakes);
    assert!(late > 0, "no woken owner wrote anything");
    let reasons = servers.record()["history"].to_string();
    assert!(reasons.contains("has ended: it is cut off by agent"), "{reasons}");
    servers.stop(1);
    paths.end();
    servers.cluster.assert_clean();
}
