//! Directory listings in several parts, with prefetching of the next one.

use std::collections::BTreeSet;

use client::{Handle, Listed};
use types::{Duration, Ino};

use crate::harness::{Cluster, Mount, WRONLY, check};

/// More than two parts.
const FILES: usize = 2500;
/// Bytes of one reply: about twenty entries.
const PAGE: usize = 4096;

/// A directory of files that no client has open.
async fn filled(cluster: &Cluster) -> Ino {
    let mount = cluster.mount("maker").await;
    let dir = mount.mkdir(Ino::ROOT, "dir").await.unwrap().attr.ino;
    for index in 0..FILES {
        let (_, opened) = mount.create(dir, &file(index), WRONLY).await;
        mount.close(opened.handle).await;
    }
    mount.client.unmount().await;
    dir
}

fn file(index: usize) -> String {
    format!("file-{index:05}")
}

async fn page(mount: &Mount, handle: Handle, cookie: u64) -> Vec<Listed> {
    mount.client.readdir(handle, cookie, PAGE, true).await.expect("the directory can be listed")
}

/// Lists from `cookie` on, with a pause after each page.
async fn list_from(mount: &Mount, handle: Handle, mut cookie: u64) -> Vec<Listed> {
    let mut all = Vec::new();
    loop {
        let part = page(mount, handle, cookie).await;
        let Some(last) = part.last() else { return all };
        cookie = last.cookie;
        all.extend(part);
        mount.env.sleep(Duration::from_millis(1)).await;
    }
}

fn names(listed: &[Listed]) -> Vec<String> {
    let text = |listed: &Listed| String::from_utf8(listed.name.clone()).unwrap();
    listed.iter().map(text).filter(|name| name != "." && name != "..").collect()
}

/// Lists until the second part is requested or has arrived.
async fn begin(mount: &Mount, dir: Ino) -> (Handle, Vec<Listed>) {
    let handle = mount.client.opendir(dir).await.unwrap();
    let mut listed = page(mount, handle, 0).await;
    listed.extend(page(mount, handle, listed.last().unwrap().cookie).await);
    mount.env.sleep(Duration::from_millis(100)).await;
    (handle, listed)
}

#[test]
fn listing_waits_for_the_server_only_at_its_first_part() {
    check(71, |cluster| async move {
        let dir = filled(&cluster).await;
        let b = cluster.mount("b").await;
        let (handle, mut all) = begin(&b, dir).await;
        let before = b.env.now();
        let mut slept = Duration::ZERO;
        loop {
            let part = page(&b, handle, all.last().unwrap().cookie).await;
            if part.is_empty() {
                break;
            }
            assert!(part.iter().all(|listed| listed.entry.is_some()));
            all.extend(part);
            b.env.sleep(Duration::from_millis(1)).await;
            slept += Duration::from_millis(1);
        }
        assert_eq!(b.env.now().since(before), slept, "only the sleeps took time");
        assert_eq!(names(&all), (0..FILES).map(file).collect::<Vec<_>>());
    });
}

#[test]
fn listing_drops_prefetched_names_that_were_removed() {
    check(72, |cluster| async move {
        let dir = filled(&cluster).await;
        let a = cluster.mount("a").await;
        let b = cluster.mount("b").await;
        let (handle, mut all) = begin(&b, dir).await;
        // A name in the part that is prefetched and not yet returned.
        b.unlink(dir, &file(1200)).await.unwrap();
        let cookie = all.last().unwrap().cookie;
        all.extend(page(&b, handle, cookie).await);
        while names(&all).last() < Some(&file(1300)) {
            let cookie = all.last().unwrap().cookie;
            all.extend(page(&b, handle, cookie).await);
        }
        assert!(all.iter().skip(2).all(|listed| listed.entry.is_some()));
        assert!(!names(&all).contains(&file(1200)));
        // Another client removes one: names may be listed, but without attributes.
        a.unlink(dir, &file(2000)).await.unwrap();
        let cookie = all.last().unwrap().cookie;
        let next = page(&b, handle, cookie).await;
        assert!(!next.is_empty() && next.iter().all(|listed| listed.entry.is_none()));
        let cookie = next.last().unwrap().cookie;
        all.extend(next);
        let later = list_from(&b, handle, cookie).await;
        let gone = later.iter().find(|listed| listed.name == file(2000).as_bytes());
        assert!(gone.is_none_or(|gone| gone.entry.is_none()));
        all.extend(later);
        let listed: BTreeSet<String> = names(&all).into_iter().collect();
        assert_eq!(listed.len(), names(&all).len(), "nothing twice");
        let lasting = (0..FILES).filter(|index| ![1200, 2000].contains(index)).map(file);
        assert!(lasting.into_iter().all(|name| listed.contains(&name)));
    });
}

#[test]
fn rewound_listing_uses_no_prefetched_names() {
    check(73, |cluster| async move {
        let dir = filled(&cluster).await;
        let a = cluster.mount("a").await;
        let b = cluster.mount("b").await;
        let (handle, _) = begin(&b, dir).await;
        for index in [1100, 1900] {
            a.unlink(dir, &file(index)).await.unwrap();
        }
        let (_, opened) = a.create(dir, "new", WRONLY).await;
        a.close(opened.handle).await;
        let listed: BTreeSet<String> = names(&list_from(&b, handle, 0).await).into_iter().collect();
        let there = (0..FILES).filter(|index| ![1100, 1900].contains(index)).map(file);
        assert_eq!(listed, there.chain(["new".to_owned()]).collect());
    });
}
