//! Every start: opens the cluster of DIR/cluster.toml, or creates it at the first start.
//!
//! Invariant: if DIR/cluster.toml exists, all images are complete.

use std::path::Path;

use super::files::{
    Contents, Settings, contents, free_ports, keys, read, replace, targets_key, text,
};
use super::making;
use crate::args::LocalArgs;
use crate::config::{Cluster, ClusterFile, TargetsView};
use crate::exit::Failure;
use crate::log;
use crate::target::LOCAL_CONFIG;

/// The cluster in `dir`, ready to be served on ports that are free now, and its targets.
pub fn open_or_make(dir: &Path, args: &LocalArgs) -> Result<(ClusterFile, TargetsView), Failure> {
    let file = dir.join(LOCAL_CONFIG);
    if !file.is_file() {
        making::make(dir, args)?;
    } else {
        let given = [
            ("--slot", args.slot.is_some()),
            ("--inline-data", args.inline_data.is_some()),
            ("--layout-blocks", args.layout_blocks.is_some()),
            ("--journal", args.journal.is_some()),
        ];
        for (option, _) in given.into_iter().filter(|(_, given)| *given) {
            log::line(&format!("{option} has no effect: {} exists already", dir.display()));
        }
    }
    let (key, (found, targets)) = (keys(dir)?, read(&file)?);
    let contents = contents(&found, &targets);
    refuse_other_servers(dir, args, contents.servers)?;
    targets_key(dir, &contents)?;
    log_ignored(dir, args, &contents);
    let cluster = found.any();
    let asked = args.commit_protocol.filter(|_| contents.servers > 1);
    let is = Settings {
        lease: cluster.lease,
        cache: cluster.cache,
        protocol: cluster.protocol,
        take_over: cluster.take_over.iter().any(|own| !own.is_empty()),
    };
    if args.take_over == Some(true) && contents.servers < 2 {
        log::line("--take-over on has no effect: there is one metadata server");
    }
    let settings = Settings {
        lease: args.lease.unwrap_or(is.lease),
        cache: args.cache.unwrap_or(is.cache),
        // The file of one server names none.
        protocol: asked.unwrap_or(is.protocol),
        take_over: args.take_over.unwrap_or(is.take_over) && contents.servers > 1,
    };
    let has_keys = cluster.public_keys.first() == Some(&key);
    let same = has_keys && settings == is;
    let old = ports(cluster, contents.servers)?;
    let old_osts: Vec<u16> =
        targets.osts.iter().map(|ost| port_of(&ost.address)).collect::<Result<_, _>>()?;
    let standbys = args.standby.map_or(cluster.standbys.len(), usize::from);
    let servers = contents.servers + settings.further_ports(contents.servers) + standbys;
    let kept: Vec<u16> = old.iter().chain(&old_osts).copied().collect();
    let mut ports = free_ports(&kept, servers + old_osts.len())?;
    let osts = ports.split_off(servers);
    if ports == old && osts == old_osts && same {
        return Ok((found, targets));
    }
    let text = text((&ports, &osts, key), settings, &contents);
    // Checked before it replaces a valid file.
    ClusterFile::parse(&file, &text).map_err(|error| Failure::usage(error.text))?;
    replace(&file, &text)?;
    read(&file)
}

/// Refuses options that ask for other metadata servers than `dir` was made with.
fn refuse_other_servers(dir: &Path, args: &LocalArgs, is: usize) -> Result<(), Failure> {
    let dir = dir.display();
    if let Some(mds) = args.mds.filter(|mds| usize::from(*mds) != is) {
        let text = format!(
            "--mds {mds}: {dir} was made with {is}: the number cannot change, so choose another \
             directory"
        );
        return Err(Failure::usage(text));
    }
    Ok(())
}

/// Logs the options of a first start that now have no effect.
fn log_ignored(dir: &Path, args: &LocalArgs, is: &Contents) {
    let wrong_disk = |size: u64| is.data.iter().any(|disk| disk.bytes != size);
    let options = [
        ("--disks", args.disks.is_some_and(|disks| usize::from(disks) != is.data.len())),
        ("--osts", args.osts.is_some_and(|osts| usize::from(osts) != is.targets.len())),
        ("--disk-size", args.disk_size.is_some_and(wrong_disk)),
        ("--metadata-size", args.metadata_size.is_some_and(|size| size != is.metadata)),
    ];
    if args.commit_protocol.is_some() && is.servers == 1 {
        log::line("--commit-protocol has no effect: there is one metadata server");
    }
    for (option, _) in options.into_iter().filter(|(_, ignored)| *ignored) {
        let dir = dir.display();
        log::line(&format!("{option} has no effect: {dir} exists already, with other sizes"));
    }
}

/// The ports of the metadata servers, those at which they take over, and those of their standbys.
fn ports(cluster: &Cluster, servers: usize) -> Result<Vec<u16>, Failure> {
    let addresses = cluster.servers();
    let (own, standbys) = addresses.split_at(servers);
    let taking_over = cluster.take_over.iter().flatten();
    own.iter().chain(taking_over).chain(standbys).map(|one| port_of(one)).collect()
}

fn port_of(address: &str) -> Result<u16, Failure> {
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    port.ok_or_else(|| Failure::usage(format!("`{address}` has no port")))
}
