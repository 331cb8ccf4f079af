//! DRAINED: a zone that a server calls empty while it drains is empty until it is in service again.
//!
//! - When the zone is called empty, and again when it is about to be in service: no block that a
//!   commit ever pointed at is part of a file, nor given up by one and not yet free; and no client
//!   has blocks of the zone in its pool.
//! - No commit in between points at a block of the zone.
//!
//! Not checked: pools, if a server has died since the zone was called empty. A client's return of
//! blocks may be lost with the server, and is repeated; nobody has placed anything in such blocks.

use std::collections::BTreeMap;

use mds::CommittedBlocks;
use mfs::BlockOwner;
use types::{PagBlock, PagId};

use crate::cluster::Cluster;
use crate::invariant::Invariant;

/// The state of the checker: the zones that were called empty, and which server did.
#[derive(Default)]
pub(crate) struct Drained(BTreeMap<PagId, u64>);

impl Drained {
    /// A zone was called empty when so many servers had started, or (`None`) is about to be in
    /// service again; `of_files` are its blocks that commits pointed at.
    pub(crate) fn called(
        &mut self,
        cluster: &Cluster,
        (zone, since): (PagId, Option<u64>),
        of_files: &[u64],
    ) {
        let starts = cluster.starts.get();
        let since = match since {
            Some(since) => *self.0.entry(zone).or_insert(since),
            None => self.0.remove(&zone).unwrap_or_default(),
        };
        let owned = cluster.inspect(|txn| {
            for &block in of_files {
                match txn.space().owner(zone, PagBlock(block))? {
                    owner @ (BlockOwner::Mapped | BlockOwner::Freed(_)) => {
                        return Ok(Some(format!("block {block} is {owner:?}")));
                    }
                    BlockOwner::Free | BlockOwner::Pool(_) => {}
                }
            }
            let of_it = txn.space().pags()?.into_iter().find(|of| of.id == zone);
            let owned = of_it.map_or(0, |of| of.total - of.free);
            Ok((owned > 0 && since == starts).then(|| format!("{owned} blocks are not free")))
        });
        if let Some(Some(what)) = owned {
            let text = format!("data zone {zone} was called empty; {what}");
            cluster.events.broken(Invariant::Drained, &text);
        }
    }

    /// A commit makes the metadata point at blocks.
    pub(crate) fn pointed(&self, cluster: &Cluster, pointed: &CommittedBlocks<'_>) {
        for segment in pointed.segments.iter().filter(|of| self.0.contains_key(&of.pag)) {
            let (client, ino, zone) = (pointed.client, pointed.ino, segment.pag);
            let text = format!(
                "client {client} commits block {} of data zone {zone} to inode {ino}; the zone was \
                 called empty, and is not in service",
                segment.addr.0
            );
            cluster.events.broken(Invariant::Drained, &text);
        }
    }
}
