//! A stopped client holds nobody up for longer than its lease, and what it lost is
//! reported when it wakes.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{
    Cluster, Content, Mapping, Spec, eventually, on_blocks_and_objects, pattern, redbud, signal,
};

on_blocks_and_objects!(
    stopped_client_loses_dirty_data_reports_it_and_blocks_nobody,
    stopped_client_loses_dirty_mappings_and_keeps_writes_of_others,
    client_stopped_for_less_than_its_lease_loses_nothing,
);

fn two_mounts(content: Content) -> Cluster {
    let lease = Duration::from_secs(2);
    let mut cluster = Cluster::start(&Spec { lease, content, ..Spec::default() });
    cluster.mount();
    cluster.mount();
    cluster
}

fn stopped_client_loses_dirty_data_reports_it_and_blocks_nobody(content: Content) {
    let cluster = two_mounts(content);
    let (mine, other) = (cluster.path(0).join("precious"), cluster.path(1).join("precious"));
    let file = File::create(&mine).unwrap();
    file.write_all_at(&pattern(1, 100_000), 0).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(&pattern(2, 50_000), 0).unwrap();
    signal(cluster.client_pid(0), Signal::STOP);
    // The other client reads, and writes, as soon as the lease has run out.
    let content = fs::read(&other).unwrap();
    assert_eq!(content.len(), 100_000);
    // What was not synced may have arrived or not, block by block; what was is not harmed
    // otherwise.
    assert!(content[53_248..] == pattern(1, 100_000)[53_248..]);
    let file2 = OpenOptions::new().write(true).open(&other).unwrap();
    file2.write_all_at(&pattern(3, 60_000), 10).unwrap();
    file2.sync_all().unwrap();
    fs::write(cluster.path(1).join("new"), b"new").unwrap();

    signal(cluster.client_pid(0), Signal::CONT);
    let error = file.sync_all().expect_err("lost data is reported");
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
    drop(file);
    eventually("the loss is in the log by name", || cluster.client_log(0).contains("precious"));
    // The mount goes on with a new session.
    eventually("the woken client works", || {
        fs::read(cluster.path(0).join("new")).is_ok_and(|content| content == b"new")
    });
    let mut expected = pattern(3, 60_000);
    let mut seen = vec![0; 60_000];
    File::open(&mine).unwrap().read_exact_at(&mut seen, 10).unwrap();
    assert!(seen == expected);
    let again = OpenOptions::new().write(true).open(&mine).unwrap();
    again.write_all_at(b"again", 10).unwrap();
    again.sync_all().unwrap();
    expected[..5].copy_from_slice(b"again");
    File::open(&other).unwrap().read_exact_at(&mut seen, 10).unwrap();
    assert!(seen == expected);
    drop((again, file2));
    cluster.finish();
}

fn stopped_client_loses_dirty_mappings_and_keeps_writes_of_others(content: Content) {
    let cluster = two_mounts(content);
    let (mine, other) = (cluster.path(0).join("mapped"), cluster.path(1).join("mapped"));
    fs::write(&mine, pattern(1, 8192)).unwrap();
    let open = || OpenOptions::new().read(true).write(true).open(&mine).unwrap();
    let (file, second) = (open(), open());
    file.sync_all().unwrap();
    let mapping = Mapping::of(&file);
    mapping.store(100, 7);
    signal(cluster.client_pid(0), Signal::STOP);
    let theirs = OpenOptions::new().write(true).open(&other).unwrap();
    theirs.write_all_at(&pattern(2, 8192), 0).unwrap();
    theirs.sync_all().unwrap();
    signal(cluster.client_pid(0), Signal::CONT);
    for file in [&file, &second] {
        let failed = (0..3).filter(|_| file.sync_all().is_err()).count();
        assert!((1..=2).contains(&failed), "the kernel tells, and the client: {failed}");
        file.sync_all().unwrap();
    }
    let log = || cluster.client_log(0);
    eventually("the log names the file", || {
        log().lines().any(|line| line.contains("mapped)") && line.contains("stored into a mapping"))
    });
    assert!(fs::read(&mine).unwrap() == pattern(2, 8192));
    assert!(fs::read(&other).unwrap() == pattern(2, 8192));
    // The mapping's pages are fetched anew, and what is stored now arrives.
    mapping.store(100, 9);
    let mut expected = pattern(2, 8192);
    expected[100] = 9;
    assert!(fs::read(&other).unwrap() == expected);
    file.sync_all().unwrap();
    drop((mapping, file, second, theirs));
    cluster.finish();
}

#[test]
fn server_and_local_stop_cleanly_right_after_they_are_ready() {
    let mut cluster = Cluster::start(&Spec::default());
    for _ in 0..20 {
        cluster.stop_server();
        cluster.start_server();
    }
    for index in 0..10 {
        cluster.mount();
        signal(cluster.client_pid(index), Signal::TERM);
        let status = cluster.wait_client(index);
        assert!(status.success(), "{status}\n{}", cluster.client_log(index));
    }
    cluster.finish();
}

fn client_stopped_for_less_than_its_lease_loses_nothing(content: Content) {
    let cluster = two_mounts(content);
    let file = File::create(cluster.path(0).join("f")).unwrap();
    for round in 0..5 {
        file.write_all_at(&pattern(round, 30_000), round * 30_000).unwrap();
        signal(cluster.client_pid(0), Signal::STOP);
        std::thread::sleep(Duration::from_millis(100));
        signal(cluster.client_pid(0), Signal::CONT);
        // Nobody needed anything from it: even a lease that ran out on a slow machine comes back.
        file.sync_all().unwrap();
    }
    let content = fs::read(cluster.path(1).join("f")).unwrap();
    for round in 0..5u64 {
        let at = round as usize * 30_000;
        assert!(content[at..at + 30_000] == pattern(round, 30_000));
    }
    drop(file);
    // Neither the stopped client nor the other one took the server for dead.
    for index in 0..2 {
        let log = cluster.client_log(index);
        assert!(!log.contains("it answered no probe"), "{log}");
    }
    cluster.finish();
}

#[test]
fn server_that_was_stopped_evicts_nobody_when_it_resumes() {
    let cluster = two_mounts(Content::Blocks);
    let file = File::create(cluster.path(0).join("f")).unwrap();
    file.write_all_at(&pattern(1, 100_000), 0).unwrap();
    let server = cluster.server_pid();
    signal(server, Signal::STOP);
    // This waits for what the first client holds, and is the first that the woken server sees.
    let path = cluster.path(1).join("f");
    let reader = thread::spawn(move || fs::read(path));
    thread::sleep(Duration::from_secs(5));
    signal(server, Signal::CONT);
    assert!(reader.join().unwrap().unwrap() == pattern(1, 100_000));
    file.sync_all().unwrap();
    assert!(!cluster.server_log().contains("evicted"), "{}", cluster.server_log());
    // Who waited for the server noticed that it answers nothing.
    let log = cluster.client_log(1);
    assert!(log.contains("it answered no probe"), "{log}");
    drop(file);
    cluster.finish();
}

#[test]
fn mkfs_refuses_a_busy_device_while_a_mount_does_not_answer() {
    let cluster = two_mounts(Content::Blocks);
    let file = File::create(cluster.path(0).join("f")).unwrap();
    let server = cluster.server_pid();
    signal(server, Signal::STOP);
    // Now the kernel knows no attributes of the open file any more, and nobody tells it.
    thread::sleep(Duration::from_secs(3));
    let mut second = redbud();
    second.arg("mds").arg(&cluster.config).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut second = second.spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while second.try_wait().unwrap().is_none() && Instant::now() < until {
        thread::sleep(Duration::from_millis(50));
    }
    let ended = second.try_wait().unwrap().is_some();
    signal(server, Signal::CONT);
    assert!(ended, "it looks at open files of the mount, which waits for the server");
    let output = second.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains(&server.to_string()), "{text}");
    drop(file);
    cluster.finish();
}
