//! Every start: opens the cluster of DIR/cluster.toml, or creates it at the first start.
//!
//! Invariant: if DIR/cluster.toml exists, all images are complete.

use std::path::Path;

use super::files::{Sizes, free_ports, keys, read, replace, sizes, text};
use super::making;
use crate::args::LocalArgs;
use crate::config::Cluster;
use crate::exit::Failure;
use crate::log;
use crate::target::LOCAL_CONFIG;

/// The cluster in `dir`, ready to be served on a port that is free now.
pub fn open_or_make(dir: &Path, args: &LocalArgs) -> Result<Cluster, Failure> {
    let file = dir.join(LOCAL_CONFIG);
    if !file.is_file() {
        making::make(dir, args)?;
    } else {
        let given = [
            ("--slot", args.slot.is_some()),
            ("--inline-data", args.inline_data.is_some()),
            ("--layout-blocks", args.layout_blocks.is_some()),
        ];
        for (option, _) in given.into_iter().filter(|(_, given)| *given) {
            log::line(&format!("{option} has no effect: {} exists already", dir.display()));
        }
    }
    let (key, cluster) = (keys(dir)?, read(&file)?);
    log_ignored(dir, args, &sizes(&cluster));
    let (lease, cache) = (args.lease.unwrap_or(cluster.lease), args.cache.unwrap_or(cluster.cache));
    let has_keys = cluster.public_keys.first() == Some(&key);
    let same = has_keys && (lease, cache) == (cluster.lease, cluster.cache);
    let old: Vec<u16> =
        cluster.servers().iter().map(|one| port_of(one)).collect::<Result<_, _>>()?;
    let ports = free_ports(&old, args.standby.map_or(old.len(), |more| usize::from(more) + 1))?;
    if ports == old && same {
        return Ok(cluster);
    }
    let text = text((&ports, key), lease, cache, &sizes(&cluster));
    // Checked before it replaces a valid file.
    let changed = Cluster::parse(&file, &text).map_err(|error| Failure::usage(error.text))?;
    replace(&file, &text)?;
    Ok(changed)
}

/// Logs the options of a first start that now have no effect.
fn log_ignored(dir: &Path, args: &LocalArgs, is: &Sizes) {
    let wrong_disk = |size: u64| is.data.iter().any(|disk| *disk != size);
    let options = [
        ("--disks", args.disks.is_some_and(|disks| usize::from(disks) != is.data.len())),
        ("--disk-size", args.disk_size.is_some_and(wrong_disk)),
        ("--metadata-size", args.metadata_size.is_some_and(|size| size != is.metadata)),
    ];
    for (option, _) in options.into_iter().filter(|(_, ignored)| *ignored) {
        let dir = dir.display();
        log::line(&format!("{option} has no effect: {dir} exists already, with other sizes"));
    }
}

fn port_of(address: &str) -> Result<u16, Failure> {
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    port.ok_or_else(|| Failure::usage(format!("`{address}` has no port")))
}
