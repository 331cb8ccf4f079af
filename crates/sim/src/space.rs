//! Devices that are nearly full: where ENOSPC is allowed, and that space becomes usable again.
//!
//! Invariants:
//! - only an operation that takes space fails with ENOSPC, and only if that space was low at some
//!   moment of the call. Of several data zones only those count whose devices work and that do not
//!   drain, both for a while: the others may be absent for the client (SEMANTICS 3.12), or get no
//!   new blocks (3.16);
//! - what was acknowledged never fails later for lack of space: no `fsync` and no `close` returns
//!   ENOSPC;
//! - once all clients are idle, any client can get all blocks that no file holds, and get them
//!   again after freeing them. A full metadata zone allows removals, and holds as much again
//!   afterwards, however many replies it keeps for clients;
//! - an orphan that no client has open is freed;
//! - a new client is refused only if its reservation has no room.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use env::sim::SimRng;
use types::limits::SLOTS;
use types::{Duration, Fault, FileKind, Ino, Instant, PagId};

use crate::call::{At, NAMES, NameNo};
use crate::cluster::{Cluster, Free};
use crate::events::{DrainStage, Event};
use crate::fleet::Fleet;
use crate::history::History;
use crate::low_space::LowSpace;
use crate::mount::{Mount, OpenFile};
use crate::troubles::Troubles;
use crate::zones::Sizes;
use client::{Caller, OpenFlags, SetAttrRequest, TimeSpec};
use engine::alloc::reservation::{BLOCKS_PER_CLIENT, nodes};

/// Blocks that one operation may need, and as many for other clients between two samples.
const LOW_DATA: u64 = 16;
/// Below this many metadata blocks beside the reserve, an operation on names may fail.
const LOW_META: u64 = 24;
/// Blocks used in an empty metadata zone, its log included.
const META_BEGUN: u64 = 1060;
/// A device that is large enough reserves space for at least this many clients.
const EXPECTED: u64 = 4;
/// Interval of samples of free space, beside those at every event.
const LOOK: Duration = Duration::from_millis(5);
/// Blocks that trees may keep between two chains.
const KEPT: usize = 3;
/// Most directories of a chain.
const CHAIN: usize = 400;

/// After this time the blocks of dead clients are free: their lease and quarantine are over.
pub(crate) fn quiet(cluster: &Cluster) -> Duration {
    cluster.lease * 4
}

/// Sizes with one small device. Beside the reservations of the clients, and the reserve's share of
/// them, little is free.
pub fn small_devices(seed: u64, clients: usize) -> Sizes {
    let mut rng = SimRng::new(seed ^ 0x0005_face);
    let usual = Sizes::default();
    if rng.one_in(3) {
        let expected = EXPECTED.max(clients as u64);
        let promised = BLOCKS_PER_CLIENT * expected + nodes(expected);
        let meta = META_BEGUN + promised + promised / 64 + [33, 40, 60][rng.below(3) as usize];
        Sizes { meta, ..usual }
    } else {
        Sizes { data: vec![[24, 48, 96, 160][rng.below(4) as usize]], ..usual }
    }
}

/// The kinds of space that run low with so little free, if clients may place nothing in `doubtful`.
fn low_space(free: &Free, doubtful: &BTreeSet<PagId>) -> LowSpace {
    let usable = free.data.iter().filter(|(zone, _)| !doubtful.contains(zone));
    let data = usable.map(|(_, free)| free).sum::<u64>();
    LowSpace { data: data < LOW_DATA, meta: free.meta < free.meta_kept + LOW_META }
}

/// From here on the history records when space is low, if some zone is small enough for that.
pub fn watch(cluster: &Cluster, history: &History, (sizes, short): (&Sizes, bool)) {
    if !short && !sizes.has_a_tiny_zone() {
        return;
    }
    let troubles = Rc::new(RefCell::new(Troubles::default()));
    let leaving = Rc::new(RefCell::new(Troubles::default()));
    if sizes.data.len() > 1 {
        let (troubles, leaving) = (troubles.clone(), leaving.clone());
        let env = cluster.env.clone();
        cluster.events.subscribe(Box::new(move |event| match event {
            Event::Troubled(zone, begins) => troubles.borrow_mut().note(zone, begins, env.now()),
            // A client may hear late that the zone is in service again.
            Event::Drains(zone, DrainStage::Begins) => {
                leaving.borrow_mut().note(Some(zone), true, env.now());
            }
            Event::Drains(zone, DrainStage::Ended) => {
                leaving.borrow_mut().note(Some(zone), false, env.now());
            }
            _ => {}
        }));
    }
    let of = cluster.clone();
    let look = move || {
        let (now, troubles, leaving) = (of.env.now(), troubles.borrow(), leaving.borrow());
        let doubtful: BTreeSet<_> = troubles.doubtful(now).chain(leaving.doubtful(now)).collect();
        if !short && doubtful.is_empty() {
            return LowSpace::default();
        }
        let free = of.free();
        let targets = LowSpace { data: of.targets.are_low(), meta: false };
        if short && refuses_clients(free.as_ref()) {
            of.out_of_room_at.set(Some(of.env.now()));
        }
        let shards = of.all_shards().skip(1).filter_map(|shard| of.free_of(shard)).chain(free);
        shards.map(|free| low_space(&free, &doubtful)).fold(targets, LowSpace::or)
    };
    history.probe_space_with(Box::new(look));
    if !short {
        return;
    }
    let (env, history) = (cluster.env.clone(), history.clone());
    cluster.env.spawn(async move {
        loop {
            env.sleep(LOOK).await;
            history.note_space();
        }
    });
}

/// Is there no room to reserve for another client, as far as a running server says?
fn refuses_clients(free: Option<&Free>) -> bool {
    free.is_none_or(|free| free.meta < free.meta_kept + BLOCKS_PER_CLIENT + LOW_META)
}

/// Was there no room for another client at some moment since? It may have been created between two
/// samples.
pub fn refused_clients_since(cluster: &Cluster, since: Instant) -> bool {
    let out_of_room_at = cluster.out_of_room_at.get();
    refuses_clients(cluster.free().as_ref()) || out_of_room_at.is_some_and(|at| at + LOOK >= since)
}

/// All clients are idle: they can get every block that no file holds.
///
/// # Errors
/// What could not be had.
pub async fn check(cluster: &Cluster, fleet: &Fleet, sizes: &Sizes) -> Result<(), String> {
    cluster.env.sleep(quiet(cluster)).await;
    let mounts = fleet.mounts();
    let (Some(first), Some(last)) = (mounts.first(), mounts.last()) else { return Ok(()) };
    if sizes.is_short_of_metadata() {
        // Trees keep the blocks that they took. While the zone is full, every client
        // changes something in every slot.
        let mut made = [0; 4];
        let all: [(&Mount, &[Mount]); 4] =
            [(first, &mounts), (last, &[]), (first, &[]), (last, &[])];
        for (made, (mount, others)) in made.iter_mut().zip(all) {
            *made = chain(mount, others).await?;
            orphans_freed(cluster, fleet).await?;
        }
        let [.., made, again] = made;
        return match again + KEPT < made {
            true => Err(format!("{made} directories were created, then only {again}")),
            false => Ok(()),
        };
    }
    // A dead client keeps its pool until another client lacks space, and then for its quarantine.
    let file = make_tmpfile(first).await?;
    let taken = take(first, file, sizes.room() + 1).await;
    close_fully(first, file).await;
    match taken {
        Ok(()) | Err((_, Fault::NoSpace)) => {}
        Err((had, fault)) => return Err(format!("after {had} blocks a write fails: {fault}")),
    }
    cluster.env.sleep(quiet(cluster)).await;
    for mount in [first, last] {
        let room = sizes.room().saturating_sub(held(mount).await);
        if let Err(text) = fill(mount, room).await {
            return Err(text + &describe_holders(cluster, &mounts));
        }
    }
    Ok(())
}

/// No client has anything open: the server frees all orphans, except those that dead clients had
/// open. An orphan keeps up to eight blocks of the orphan directory.
///
/// # Errors
/// What is not freed.
pub async fn orphans_freed(cluster: &Cluster, fleet: &Fleet) -> Result<(), String> {
    let patience = cluster.env.now() + quiet(cluster);
    loop {
        let mounts = fleet.mounts();
        let clients: Vec<_> = mounts.iter().map(|mount| mount.client.number()).collect();
        // Waits for a server that can answer.
        if cluster.unused_orphans(&clients).is_some_and(|left| left.is_empty()) {
            return Ok(());
        }
        if cluster.env.now() > patience {
            let kept = describe_holders(cluster, &mounts);
            return Err(format!("orphans that nobody has open are kept:{kept}"));
        }
        cluster.env.sleep(Duration::from_millis(100)).await;
    }
}

/// Describes who holds blocks.
fn describe_holders(cluster: &Cluster, mounts: &[Mount]) -> String {
    let mut text = cluster.describe_space();
    for mount in mounts {
        let status = mount.client.status();
        text += &format!(
            "\n  c{} keeps {} and {} tainted blocks, {} handles, {} dirty bytes",
            mount.index,
            status.pool_blocks,
            status.tainted_blocks,
            status.handles,
            status.dirty_bytes
        );
    }
    text
}

/// Blocks of the data zones that files hold.
async fn held(mount: &Mount) -> u64 {
    let (mut dirs, mut seen, mut blocks) = (vec![Ino::ROOT], BTreeSet::new(), 0);
    while let Some(dir) = dirs.pop() {
        for name in NAMES {
            let Ok(Some(target)) = mount.lookup(At { dir, name }).await else { continue };
            match target.kind {
                FileKind::Directory => dirs.push(target.ino),
                FileKind::Regular if seen.insert(target.ino) => {
                    let attr = mount.client.getattr(target.ino).await;
                    blocks += attr.map_or(0, |(attr, _)| attr.blocks);
                    // Inline data counts as a block, and takes nothing of the data zone.
                    let layout = mount.client.getxattr(target.ino, b"user.redbud.layout").await;
                    let inline = br#""inline""#;
                    let is_inline =
                        |text: Vec<u8>| text.windows(inline.len()).any(|at| at == inline);
                    blocks -= u64::from(layout.is_ok_and(is_inline)).min(blocks);
                }
                _ => {}
            }
        }
    }
    blocks
}

/// An O_TMPFILE file takes `room` blocks, and not one more.
async fn fill(mount: &Mount, room: u64) -> Result<(), String> {
    let file = make_tmpfile(mount).await?;
    let filled = fill_file(mount, file, room).await;
    close_fully(mount, file).await;
    filled
}

/// Closes the file, and drops the process's reference to its inode.
pub(crate) async fn close_fully(mount: &Mount, file: OpenFile) {
    mount.close(file, 0).await;
    mount.next_operation();
}

pub(crate) async fn make_tmpfile(mount: &Mount) -> Result<OpenFile, String> {
    let file = mount.tmpfile(Ino::ROOT, OpenFlags::READ_WRITE).await;
    file.map_err(|fault| format!("a file could not be created: {fault}"))
}

/// Writes this many blocks; else returns how many were written, and the error.
pub(crate) async fn take(mount: &Mount, file: OpenFile, room: u64) -> Result<(), (u64, Fault)> {
    for block in 0..room {
        let written = mount.write(file, Some(block * 4096), 4096).await;
        written.map_err(|fault| (block, fault))?;
    }
    Ok(())
}

async fn fill_file(mount: &Mount, file: OpenFile, room: u64) -> Result<(), String> {
    if let Err((had, fault)) = take(mount, file, room).await {
        return Err(format!("{had} of {room} free blocks could be written: {fault}"));
    }
    match mount.write(file, Some(room * 4096), 4096).await {
        Err(Fault::NoSpace) => {}
        other => return Err(format!("no ENOSPC for a block after all {room}: {other:?}")),
    }
    let synced = mount.fsync(file, false).await;
    synced.map_err(|fault| format!("fsync of accepted writes fails: {fault}"))
}

/// Creates a chain of directories until the zone is full, and removes it; returns its length. While
/// the zone is full, all of `others` change the directories.
async fn chain(mount: &Mount, others: &[Mount]) -> Result<usize, String> {
    let (mut made, mut dir, mut name) = (Vec::new(), Ino::ROOT, NAMES.end() + 1);
    let mut dirs = Vec::new();
    while made.len() < CHAIN {
        let at = At { dir, name };
        match mount.make(at, FileKind::Directory).await {
            Ok(target) => {
                made.push(at);
                dirs.push(target.ino);
                (dir, name) = (target.ino, NameNo::default());
            }
            Err(Fault::NoSpace) => break,
            Err(fault) => return Err(format!("a directory could not be created: {fault}")),
        }
    }
    let changed = mount.chmod(dir, 0o700).await;
    changed.map_err(|fault| format!("chmod fails in a full metadata zone: {fault}"))?;
    let mut changes = Vec::new();
    for (nth, mount) in others.iter().enumerate().filter(|_| !dirs.is_empty()) {
        for slot in 0..usize::from(SLOTS) {
            let (mount, ino) = (mount.clone(), dirs[(7 * nth + slot) % dirs.len()]);
            let env = mount.env.clone();
            changes.push(env.spawn_join(async move { touch(&mount, ino).await }));
        }
    }
    for change in changes {
        match change.await {
            // A client that lost its session may know the number as that of a file lost with it.
            Ok(()) | Err(Fault::Stale) => {}
            Err(fault) => return Err(format!("utimensat fails in a full metadata zone: {fault}")),
        }
    }
    for at in made.iter().rev() {
        let removed = mount.rmdir(*at).await;
        removed.map_err(|fault| format!("rmdir fails in a full metadata zone: {fault}"))?;
    }
    Ok(made.len())
}

/// Sets a time, which no test reads.
async fn touch(mount: &Mount, ino: Ino) -> Result<(), Fault> {
    let set = SetAttrRequest { mtime: Some(TimeSpec::Now), ..SetAttrRequest::default() };
    mount.client.setattr(&Caller::default(), ino, set).await.map(|_| ())
}
