//! Locks hold between clients, and end with them.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::harness::{Cluster, Spec, eventually, signal};

fn two_mounts(lease: Duration) -> Cluster {
    let mut cluster = Cluster::start(&Spec { lease, ..Spec::default() });
    cluster.mount();
    cluster.mount();
    fs::write(cluster.root().join("f"), b"x").unwrap();
    cluster
}

fn open(root: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(root.join("f")).unwrap()
}

fn is_held(file: &File) -> bool {
    matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

#[test]
fn whole_file_locks_exclude_other_clients() {
    let cluster = two_mounts(Duration::from_secs(30));
    let (near, far) = (open(&cluster.path(0)), open(&cluster.path(1)));
    near.lock().unwrap();
    assert!(is_held(&far));
    near.unlock().unwrap();
    far.try_lock_shared().unwrap();
    near.try_lock_shared().unwrap();
    assert!(is_held(&near));
    drop((near, far));
    cluster.finish();
}

#[test]
fn record_locks_exclude_other_clients() {
    let cluster = two_mounts(Duration::from_secs(30));
    let (near, far) = (open(&cluster.path(0)), open(&cluster.path(1)));
    fcntl_lock(&near, FlockOperation::LockExclusive).unwrap();
    let refused = fcntl_lock(&far, FlockOperation::NonBlockingLockExclusive);
    assert!(matches!(refused, Err(Errno::AGAIN | Errno::ACCESS)), "{refused:?}");
    fcntl_lock(&near, FlockOperation::Unlock).unwrap();
    fcntl_lock(&far, FlockOperation::NonBlockingLockExclusive).unwrap();
    drop((near, far));
    cluster.finish();
}

#[test]
fn waiter_gets_the_lock_when_the_other_client_releases_it() {
    let cluster = two_mounts(Duration::from_secs(30));
    let (near, far) = (open(&cluster.path(0)), open(&cluster.path(1)));
    for _ in 0..10 {
        near.lock().unwrap();
        let copy = far.try_clone().unwrap();
        let waiter = thread::spawn(move || {
            copy.lock().unwrap();
            copy.unlock().unwrap();
        });
        near.unlock().unwrap();
        waiter.join().unwrap();
    }
    drop((near, far));
    cluster.finish();
}

#[test]
fn locks_of_a_killed_client_are_free_after_its_lease() {
    let mut cluster = two_mounts(Duration::from_secs(2));
    let (near, far) = (open(&cluster.path(0)), open(&cluster.path(1)));
    near.lock().unwrap();
    assert!(is_held(&far));
    cluster.kill_client(0);
    drop(near);
    eventually("the lock is free", || far.try_lock().is_ok());
    drop(far);
    cluster.finish();
}

#[test]
fn locks_survive_a_server_restart() {
    let mut cluster = two_mounts(Duration::from_secs(5));
    let (near, far) = (open(&cluster.path(0)), open(&cluster.path(1)));
    near.lock().unwrap();
    cluster.kill_server();
    cluster.start_server();
    assert!(is_held(&far));
    near.unlock().unwrap();
    far.lock().unwrap();
    drop((near, far));
    cluster.finish();
}

#[test]
fn evicted_client_reports_lost_locks_to_their_owners() {
    let cluster = two_mounts(Duration::from_secs(2));
    let (flocked, ranged, free) =
        (open(&cluster.path(0)), open(&cluster.path(0)), open(&cluster.path(0)));
    free.sync_all().unwrap();
    flocked.lock().unwrap();
    fcntl_lock(&ranged, FlockOperation::LockExclusive).unwrap();
    signal(cluster.client_pid(0), Signal::STOP);
    let far = open(&cluster.path(1));
    far.lock().unwrap();
    fcntl_lock(&far, FlockOperation::LockExclusive).unwrap();
    signal(cluster.client_pid(0), Signal::CONT);
    let is_refused = |result: std::io::Result<()>| {
        let code = result.map_err(|error| error.raw_os_error());
        assert_eq!(code, Err(Some(Errno::IO.raw_os_error())));
    };
    for file in [&flocked, &ranged] {
        is_refused(file.write_all_at(b"not mine any more", 0));
        is_refused(file.read_exact_at(&mut [0], 0));
        is_refused(file.sync_all());
        is_refused(file.set_len(0));
    }
    assert_eq!(fs::read(cluster.path(1).join("f")).unwrap(), b"x");
    free.write_all_at(b"y", 0).unwrap();
    free.sync_all().unwrap();
    let log = cluster.client_log(0);
    let line = log.lines().find(|line| line.contains("(/f)") && line.contains("locks"));
    assert!(line.is_some_and(|line| line.contains(&std::process::id().to_string())), "{log}");
    flocked.unlock().unwrap();
    flocked.write_all_at(b"z", 0).unwrap();
    drop((flocked, ranged, free, far));
    let near = open(&cluster.path(0));
    near.lock().unwrap();
    near.write_all_at(b"mine", 0).unwrap();
    near.sync_all().unwrap();
    drop(near);
    cluster.finish();
}
