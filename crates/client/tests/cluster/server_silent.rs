//! The mounted directory while the server is silent.

use std::future::Future;

use types::{Attr, Duration, Fault, Ino, Instant};

use crate::harness::{Cluster, LEASE, Mount, ROOT, check, name};

/// The client answers for the mounted directory after one second of silence, plus a margin.
const SILENCE: Duration = Duration::from_millis(1200);
/// Longer than any reply of the server takes here.
const PROMPT: Duration = Duration::from_millis(200);

async fn root_attr(mount: &Mount) -> Attr {
    let answer = mount.client.getattr(Ino::ROOT).await.expect("the root has attributes");
    // A restarted server starts versions again.
    Attr { version: 0, ..answer.0 }
}

/// Runs `ask`, and measures how long it takes.
async fn timed<T>(cluster: &Cluster, ask: impl Future<Output = T>) -> (T, Duration) {
    let begin: Instant = cluster.env.now();
    let answer = cluster.env.timeout(LEASE * 2, ask).await;
    (answer.expect("it is answered"), cluster.env.now().since(begin))
}

/// SEMANTICS 3.10.
#[test]
fn mounted_directory_is_answered_from_cache_while_the_server_is_silent() {
    for killed in [false, true] {
        check(2, |cluster| async move {
            let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
            let (attr, space) = (root_attr(&a).await, a.client.statfs().await.unwrap());
            if killed {
                cluster.world.kill("mds");
            } else {
                cluster.world.isolate("a");
            }
            // By now the lease has run out.
            cluster.env.sleep(LEASE * 2).await;
            for _ in 0..300 {
                let (answer, took) = timed(&cluster, a.client.getattr(Ino::ROOT)).await;
                let (answer, ttl) = answer.unwrap();
                assert_eq!((Attr { version: 0, ..answer }, ttl), (attr, Duration::ZERO));
                assert!(took <= SILENCE, "{took:?}");
                let (answer, took) = timed(&cluster, a.client.statfs()).await;
                assert_eq!(answer, Ok(space));
                assert!(took <= SILENCE, "{took:?}");
                let (opened, took) = timed(&cluster, a.client.opendir(Ino::ROOT)).await;
                a.client.releasedir(opened.unwrap());
                assert!(took <= SILENCE, "{took:?}");
                let (names, _) = timed(&cluster, a.client.listxattr(Ino::ROOT)).await;
                assert_eq!(names, Ok(Vec::new()));
                let acl = a.client.getxattr(Ino::ROOT, b"system.posix_acl_access");
                assert_eq!(timed(&cluster, acl).await.0, Err(Fault::NoAttribute));
            }
            // All other operations wait.
            let text = name("other");
            let other = a.client.lookup(&ROOT, Ino::ROOT, &text);
            assert!(cluster.env.timeout(LEASE, other).await.is_none());
            if killed {
                cluster.start_server().await;
            } else {
                b.mkdir(Ino::ROOT, "made").await.unwrap();
                cluster.world.heal();
            }
            // Once the server has replied, the answers are current.
            let looked = timed(&cluster, a.client.lookup(&ROOT, Ino::ROOT, &name("made"))).await.0;
            assert_eq!(looked.unwrap().is_ok(), !killed);
            let current = root_attr(&b).await;
            let (answer, took) = timed(&cluster, root_attr(&a)).await;
            assert_eq!(answer, current);
            assert!(took < PROMPT, "{took:?}");
        });
    }
}

/// SEMANTICS 3.10.
#[test]
fn waiting_getattr_is_answered_when_the_server_falls_silent() {
    check(4, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let attr = root_attr(&a).await;
        // It holds no attributes of the root.
        b.mkdir(Ino::ROOT, "made").await.unwrap();
        cluster.world.isolate("a");
        let (answer, took) = timed(&cluster, root_attr(&a)).await;
        assert_eq!(answer, attr);
        assert!(took > Duration::from_millis(900) && took <= SILENCE, "{took:?}");
    });
}

/// SEMANTICS 3.10.
#[test]
fn getattr_waits_for_a_server_that_is_only_slow() {
    check(6, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let before = root_attr(&a).await;
        // The new directory is not durable yet, so the reply to `a` waits.
        b.mkdir(Ino::ROOT, "made").await.unwrap();
        cluster.meta.stall(true);
        let asking = cluster.env.spawn_join({
            let (a, cluster) = (a.clone(), cluster.clone());
            async move { timed(&cluster, root_attr(&a)).await }
        });
        cluster.env.sleep(LEASE).await;
        cluster.meta.stall(false);
        let (answer, took) = asking.await;
        assert!(took >= LEASE, "it had to wait: {took:?}");
        assert_eq!(answer, root_attr(&b).await);
        assert_eq!((before.nlink, answer.nlink), (2, 3));
    });
}
