//! The kernel's pages of a file that processes of several clients use at once.
//!
//! The kernel copies a WRITE into an up-to-date page, unlocks the page, and only then sends the
//! request. If the page is not up to date, the kernel keeps it locked until the WRITE is answered.

use client::WriteFlags;
use types::{Duration, Ino};

use crate::harness::{Cluster, Mount, Notice, RDONLY, RDWR, ROOT, WRONLY, check};

/// Bytes of a page.
const PAGE: usize = 4096;

impl Mount {
    /// A WRITE of part of a page that is not up to date: the page stays locked until the answer.
    async fn write_locking(&self, ino: Ino, handle: client::Handle, offset: u64, bytes: &[u8]) {
        let page = offset / PAGE as u64 * PAGE as u64;
        let folio = (ino, page, page + PAGE as u64);
        self.kernel.locked.borrow_mut().push(folio);
        self.write(handle, offset, bytes).await;
        let mut locked = self.kernel.locked.borrow_mut();
        let at = locked.iter().position(|other| *other == folio).expect("it was locked");
        locked.remove(at);
    }
}

/// A file of one page that two clients have open.
struct Shared {
    a: Mount,
    b: Mount,
    ino: Ino,
    handle: client::Handle,
    other: client::Handle,
}

impl Shared {
    /// The kernel of client a had the page, and has dropped it because client b wrote. It may have
    /// copied a WRITE into it just before.
    async fn dropped(cluster: &Cluster) -> Shared {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = a.put("f", &[1; PAGE]).await;
        let handle = a.open(ino, RDWR).await;
        a.client.read(handle, 0, PAGE as u32, true).await.unwrap();
        let other = b.open(b.ino("f").await, RDWR).await;
        b.write(other, 100, b"b").await;
        Shared { a, b, ino, handle, other }
    }
}

/// SEMANTICS 1.1.
#[test]
fn page_filled_before_a_write_is_dropped_before_the_write_is_answered() {
    check(31, |cluster| async move {
        let Shared { a, b, ino, handle, other } = Shared::dropped(&cluster).await;
        // Its kernel fills the page again, for another process, and sends the WRITE after that.
        a.client.read(handle, 0, PAGE as u32, true).await.unwrap();
        a.kernel.notices.borrow_mut().clear();
        a.write(handle, 8, b"mine").await;
        let page = Notice::Pages(ino, 0, PAGE as u64);
        assert!(a.kernel.notices.borrow().contains(&page), "the page does not have the WRITE");
        // From here on, its kernel copies WRITEs into a page that has all of them.
        a.client.read(handle, 0, PAGE as u32, true).await.unwrap();
        a.kernel.notices.borrow_mut().clear();
        a.write(handle, 8, b"more").await;
        assert_eq!(*a.kernel.notices.borrow(), [], "nothing was dropped since the last WRITE");
        a.close(handle).await;
        b.close(other).await;
    });
}

/// A mapping may have stored into a page without a WRITE: the kernel writes back all of it.
#[test]
fn write_back_of_a_page_that_lacks_a_write_leaves_the_bytes_of_the_write() {
    check(32, |cluster| async move {
        let Shared { a, b, handle, other, .. } = Shared::dropped(&cluster).await;
        let mut page = a.client.read(handle, 0, PAGE as u32, true).await.unwrap().to_vec();
        // The page is locked while the kernel writes it back for the invalidation.
        a.kernel.stuck.set(true);
        let writing = {
            let a = a.clone();
            cluster.env.spawn_join(async move { a.write(handle, 8, b"mine").await })
        };
        cluster.env.sleep(Duration::from_millis(5)).await;
        page[2000..2006].copy_from_slice(b"stored");
        assert_eq!(a.write_back(handle, 0, &page).await, Ok(PAGE as u32));
        a.kernel.stuck.set(false);
        writing.await;
        let read = a.read(handle, 0, PAGE as u32).await;
        assert_eq!(&read[8..12], b"mine", "the WRITE is newer than the page");
        assert_eq!(&read[2000..2006], b"stored");
        a.close(handle).await;
        b.close(other).await;
    });
}

/// SEMANTICS 3.3: others wait for a client's lease only if it is silent.
#[test]
fn writer_of_a_few_bytes_without_a_pause_lets_other_clients_in() {
    check(33, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = a.put("f", &[1; 2 * PAGE]).await;
        let (handle, other) = (a.open(ino, RDWR).await, b.open(b.ino("f").await, RDONLY).await);
        let (busy, env) = (a.clone(), cluster.env.clone());
        cluster.env.spawn(async move {
            loop {
                busy.write_locking(ino, handle, 0, b"again").await;
                env.sleep(Duration::from_micros(5)).await;
            }
        });
        for round in 0..20 {
            let second = Duration::from_secs(1);
            let read = cluster.env.timeout(second, b.read(other, PAGE as u64, 10)).await;
            assert_eq!(read, Some(vec![1; 10]), "round {round}");
            cluster.env.sleep(Duration::from_millis(3)).await;
        }
    });
}

/// SEMANTICS 1.1: both get on, and neither waits for long.
#[test]
fn writers_of_one_page_on_two_clients_take_turns() {
    check(34, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = a.put("f", &[1; PAGE]).await;
        b.ino("f").await;
        let mut turns = Vec::new();
        for (mount, offset) in [(a, 0), (b, 128)] {
            let (env, handle) = (cluster.env.clone(), mount.open(ino, RDWR).await);
            turns.push(cluster.env.spawn_join(async move {
                let (end, mut count) = (env.now() + Duration::from_secs(4), 0u64);
                while env.now() < end {
                    let begun = env.now();
                    mount.write_locking(ino, handle, offset, b"turn").await;
                    let waited = env.now().since(begun);
                    assert!(waited < Duration::from_secs(1), "waited for {waited:?}");
                    env.sleep(Duration::from_micros(5)).await;
                    count += 1;
                }
                count
            }));
        }
        let (one, other) = (turns.remove(0).await, turns.remove(0).await);
        assert!(one.max(other) < 20 * one.min(other), "{one} and {other} turns");
    });
}

/// SEMANTICS 1.1: what `fstat` has shown of the size can be read.
#[test]
fn read_at_the_end_stores_the_last_byte_where_the_file_grows_elsewhere() {
    check(35, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = a.put("f", &[1; 100]).await;
        let writer = a.open(ino, WRONLY).await;
        let reader = b.open(b.ino("f").await, RDONLY).await;
        b.client.read(reader, 0, PAGE as u32, true).await.unwrap();
        a.write(writer, 100, &[2; 50]).await;
        b.kernel.notices.borrow_mut().clear();
        let (attr, _) = b.client.getattr_to_read(ino, reader).await.unwrap();
        assert_eq!(attr.size, 150);
        assert!(b.kernel.notices.borrow().contains(&Notice::Stored(ino, 150)));
        // A WRITE through pages may be on its way where a process may write: its bytes are not
        // touched.
        let both = b.open(ino, RDWR).await;
        a.write(writer, 150, &[3; 50]).await;
        b.kernel.notices.borrow_mut().clear();
        let (attr, _) = b.client.getattr_to_read(ino, reader).await.unwrap();
        assert_eq!(attr.size, 200);
        assert!(
            !b.kernel.notices.borrow().iter().any(|notice| matches!(notice, Notice::Stored(..)))
        );
        let flags = WriteFlags::default();
        let data = b.env.buffer(4);
        assert_eq!(b.client.write(&ROOT, both, 196, data, 4, flags).await, Ok(4));
        for (mount, handle) in [(&a, writer), (&b, reader), (&b, both)] {
            mount.close(handle).await;
        }
    });
}
