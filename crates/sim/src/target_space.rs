//! Object targets that are nearly full: when ENOSPC is allowed, and that room becomes usable again.
//!
//! Invariants:
//! - a write says ENOSPC only if some target had little room that it keeps for nobody, or did not
//!   run, at some moment of the call;
//! - once all clients are idle, any client can write until a target has little room left. `fsync`
//!   of that succeeds, and when the file is gone, the targets have as much room as before.

use std::rc::Rc;

use env::sim::SimRng;
use ost::store::ObjectStore;
use types::limits::BLOCK;
use types::{Duration, Fault, Ino, ObjectId};

use crate::cluster::Cluster;
use crate::fleet::Fleet;
use crate::mount::{Mount, OpenFile};
use crate::space;
use crate::target_state::left;

/// Free blocks of small targets.
const SCANT: [u64; 4] = [24, 48, 96, 160];
/// Pause between two looks at the room.
const LOOK: Duration = Duration::from_millis(100);
/// The object that fills most of a small target, and belongs to no file.
pub(crate) const FILLER: ObjectId = ObjectId(1 << 62);
/// Separates random numbers about room from others.
const ASIDE: u64 = 0x726f_6f6d_0000_0000;

/// Free blocks of the target with this index, if targets are small.
pub(crate) fn drawn(seed: u64, nth: usize) -> u64 {
    let mut rng = SimRng::new(seed ^ ASIDE ^ nth as u64);
    SCANT[rng.below(4) as usize]
}

/// The stores of all targets, when they run and nothing is left to be destroyed.
async fn settled(cluster: &Cluster) -> Result<Vec<Rc<ObjectStore>>, String> {
    let until = cluster.env.now() + space::quiet(cluster);
    loop {
        let stores = (0..cluster.targets.count()).map(|nth| cluster.targets.store(nth));
        if let Some(stores) = stores.collect::<Option<Vec<_>>>()
            && cluster.has_none_doomed()
        {
            return Ok(stores);
        }
        if cluster.env.now() > until {
            return Err("a target does not run, or has still objects to destroy".to_owned());
        }
        cluster.env.sleep(LOOK).await;
    }
}

/// All clients are idle: they can get the room that no file needs, and again after giving it back.
///
/// # Errors
/// What could not be had, or did not come back.
pub(crate) async fn check(cluster: &Cluster, fleet: &Fleet) -> Result<(), String> {
    cluster.env.sleep(space::quiet(cluster)).await;
    let mounts = fleet.mounts();
    let (Some(first), Some(last)) = (mounts.first(), mounts.last()) else { return Ok(()) };
    for mount in [first, last] {
        let before: Vec<u64> =
            settled(cluster).await?.iter().map(|store| store.info().free).collect();
        let file = space::make_tmpfile(mount).await?;
        let filled = match lies_in_an_object(cluster, file.ino) {
            true => fill(cluster, mount, file).await,
            false => Ok(()),
        };
        space::close_fully(mount, file).await;
        filled?;
        comes_back(cluster, &before).await?;
    }
    Ok(())
}

fn lies_in_an_object(cluster: &Cluster, ino: Ino) -> bool {
    cluster.inspect_at(cluster.home_of(ino), |txn| txn.layouts().object(ino)).flatten().is_some()
}

/// Writes until a target is full.
async fn fill(cluster: &Cluster, mount: &Mount, file: OpenFile) -> Result<(), String> {
    let most = SCANT[3] * cluster.targets.count() as u64;
    let written = space::take(mount, file, most + 1).await;
    let had = match written {
        Err((had, Fault::NoSpace)) => had,
        Err((had, fault)) => return Err(format!("after {had} blocks a write fails: {fault}")),
        Ok(()) => return Err(format!("no ENOSPC after {most} blocks")),
    };
    if !cluster.targets.are_low() {
        let room: Vec<u64> = settled(cluster).await?.iter().map(|store| left(store)).collect();
        return Err(format!("ENOSPC after {had} blocks; the targets have {room:?} free ones"));
    }
    let synced = mount.fsync(file, false).await;
    synced.map_err(|fault| format!("fsync of accepted writes fails: {fault}"))?;
    // Now the target has what was written, and that can be written again.
    if had > 0 {
        let again = mount.write(file, Some(0), BLOCK as u32).await;
        again.map_err(|fault| format!("a block that the target has cannot be written: {fault}"))?;
    }
    Ok(())
}

/// Waits until the targets have as much room as before.
async fn comes_back(cluster: &Cluster, before: &[u64]) -> Result<(), String> {
    let until = cluster.env.now() + space::quiet(cluster);
    loop {
        let now: Vec<u64> = settled(cluster).await?.iter().map(|store| store.info().free).collect();
        if now.iter().zip(before).all(|(now, before)| now >= before) {
            return Ok(());
        }
        if cluster.env.now() > until {
            return Err(format!("{before:?} blocks were free before a file, and then {now:?}"));
        }
        cluster.env.sleep(LOOK).await;
    }
}
