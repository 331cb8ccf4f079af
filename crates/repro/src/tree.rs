//! A tree of small files, and the space that it takes: what windows of growing files cost (002
//! §4.2, 004 §III.C).
//!
//! Invariants:
//! - one client writes one file after the other, in requests of [`REQUEST`], as `tar` does;
//! - sizes follow a lognormal distribution with a median of 5 KiB and a mean of 12 KiB, as those of
//!   a kernel's source tree do, roughly;
//! - what is counted is what the server has for the files once everything is durable.

use env::sim::SimRng;
use serde::Serialize;
use types::{Duration, Ino};

use crate::cluster::{Cluster, Mount, Served, Shape};
use crate::shared::Way;
use crate::snapshot::{lognormal, runs_of};
use bench::{BenchError, Res};
use types::limits::BLOCK_U64;

/// Bytes of a request.
const REQUEST: u64 = 4 << 10;
const MEDIAN: f64 = 5.0 * 1024.0;
/// Of the logarithm.
const DEVIATION: f64 = 1.323;
/// Largest file.
const SIZE_MAX: u64 = 4 << 20;
/// Files of a directory.
const DIRECTORY: u64 = 20;
const ZONE_BYTES: u64 = 16 << 30;
const DIRTY: usize = 64 << 20;

/// What the tree takes.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct Used {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their blocks.
    pub blocks: u64,
    /// Most blocks in windows while they were written.
    pub most_in_windows: u64,
    /// Those one second after the last close.
    pub in_windows: u64,
}

/// Writes about so many files.
///
/// # Errors
/// Those of the cluster and its client.
pub fn measure(files: u64, way: Way) -> Res<Used> {
    let cluster = Cluster::new(Shape {
        zones: 1,
        zone_bytes: ZONE_BYTES,
        clients: 1,
        dirty_bytes: DIRTY,
        switches: way.switches,
    })?;
    cluster.run(|served| async move { fill(&served, files).await })
}

async fn fill(served: &Served, files: u64) -> Res<Used> {
    let mount = &served.mounts[0];
    let mut rng = SimRng::new(files);
    let mut used = Used { files, bytes: 0, blocks: 0, most_in_windows: 0, in_windows: 0 };
    let (mut dir, mut inos) = (Ino::ROOT, Vec::new());
    for file in 0..files {
        if file % DIRECTORY == 0 {
            dir = mount.mkdir(Ino::ROOT, &format!("dir{}", file / DIRECTORY)).await?;
        }
        let size = (lognormal(&mut rng, MEDIAN, DEVIATION) as u64).clamp(1, SIZE_MAX);
        let (entry, handle) = mount.create(dir, &format!("file{file}")).await?;
        for at in (0..size).step_by(REQUEST as usize) {
            let len = REQUEST.min(size - at);
            mount.write(handle, at, mount.env.buffer(len as usize)).await?;
        }
        used.most_in_windows = used.most_in_windows.max(in_windows(mount)?);
        mount.close(handle).await?;
        used.bytes += size;
        inos.push(entry.attr.ino);
    }
    served.env.sleep(Duration::from_secs(1)).await;
    used.in_windows = in_windows(mount)?;
    mount.sync().await?;
    for ino in inos {
        let runs = runs_of(&served.mfs, ino).await?;
        used.blocks += runs.iter().map(|run| run.to - run.from).sum::<u64>();
    }
    Ok(used)
}

/// Blocks in the client's windows, as its status says.
fn in_windows(mount: &Mount) -> Res<u64> {
    let text = mount.client.report_json();
    let status: Option<serde_json::Value> = serde_json::from_str(&text).ok();
    let bytes = status.and_then(|status| status["holds"]["window_bytes"].as_u64());
    let bytes = bytes.ok_or_else(|| BenchError(format!("no window_bytes in {text}")))?;
    Ok(bytes / BLOCK_U64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::prealloc::Policy;

    #[test]
    fn windows_hold_blocks_only_until_the_file_is_closed() {
        let [vanilla, od] = [Policy::Vanilla, Policy::default()]
            .map(|how| measure(200, Way::at_write("", how)).unwrap());
        assert_eq!((vanilla.most_in_windows, od.in_windows), (0, 0));
        assert!(od.most_in_windows > 0, "{od:?}");
        let needed = vanilla.bytes / BLOCK_U64;
        assert!(vanilla.blocks >= needed * 9 / 10 && od.blocks == vanilla.blocks, "{od:?}");
    }
}
