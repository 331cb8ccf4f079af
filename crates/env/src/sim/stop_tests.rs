//! Nodes that are stopped, and nodes whose term is over.

use std::cell::Cell;
use std::rc::Rc;

use types::Duration;

use super::*;
use crate::{DiskOptions, Env, IoBuf};

const WRITE: DiskOptions = DiskOptions { write: true, exclusive: false };

fn block(env: &Env, fill: u8) -> IoBuf {
    let mut buf = env.buffer(4096);
    buf.fill(fill);
    buf
}

#[test]
fn a_node_begins_nothing_after_its_term() {
    let world = SimWorld::new(1);
    world.disk("disk", 1 << 20);
    world.run(|env| async move {
        let disk = env.open_disk("disk", WRITE).await.unwrap();
        let listener = env.listen("server:0").await.unwrap();
        let stream = env.connect(&listener.local_address()).await.unwrap();
        env.end_io_at(Some(env.now() + Duration::from_secs(1)));
        stream.write_all(vec![1]).await.0.unwrap();
        disk.write(0, block(&env, 1)).await.0.unwrap();
        env.sleep(Duration::from_secs(1)).await;
        assert!(env.io_has_ended());
        let error = disk.write(0, block(&env, 2)).await.0.unwrap_err();
        assert!(error.to_string().contains("the term"), "{error}");
        let (sent, _) = stream.write_all(vec![2]).await;
        assert!(sent.is_err());
        env.end_io_at(None);
        let (read, buf) = disk.read(0, block(&env, 3)).await;
        read.unwrap();
        assert_eq!(buf[0], 1);
    });
}

/// Whether two reads had answers in time, and how long that took; the node that reads is stopped
/// for ten seconds during the first.
fn reads_of_a_stopped_node(seed: u64, awake: bool, stalled: bool) -> (bool, Duration) {
    let world = SimWorld::new(seed);
    let disk = world.disk("disk", 1 << 20);
    let (handle, result) = (world.clone(), Rc::new(Cell::new(None)));
    let seen = result.clone();
    world.run(|env| async move {
        let node = handle.node("node");
        let open = node.open_disk("disk", WRITE).await.unwrap();
        disk.stall(stalled);
        let (begun, its) = (env.now(), node.clone());
        let asked = node.spawn_join(async move {
            let (of, five) = (its.clone(), Duration::from_secs(5));
            let reads = its.spawn_join(async move {
                for _ in 0..2 {
                    open.read(0, of.buffer(4096)).await.0.unwrap();
                }
            });
            let answer = match awake {
                true => its.timeout_awake(five, reads).await,
                false => its.timeout(five, reads).await,
            };
            answer.is_some()
        });
        env.sleep(Duration::from_micros(1)).await;
        handle.pause("node");
        env.sleep(Duration::from_secs(10)).await;
        handle.resume("node");
        let answered = asked.await;
        seen.set(Some((answered, env.now() - begun)));
        disk.stall(false);
    });
    result.get().unwrap()
}

#[test]
fn stop_of_a_process_is_not_taken_for_silence_of_a_server() {
    let mut silent = 0;
    for seed in 0..20 {
        silent += usize::from(!reads_of_a_stopped_node(seed, false, false).0);
        assert!(reads_of_a_stopped_node(seed, true, false).0, "seed {seed}");
        let (answered, took) = reads_of_a_stopped_node(seed, true, true);
        assert!(!answered && took < Duration::from_secs(15), "seed {seed}: {took:?}");
    }
    assert!(silent > 0, "otherwise there is nothing to tell apart");
}
