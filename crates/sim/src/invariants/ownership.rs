//! OWNER and WRITER, of the data devices: only the owner of a block writes it.
//!
//! Every write of a client is checked when it is submitted and when it reaches the device. By the
//! count of the running server at that moment, which may have got the blocks of another one, each
//! of its blocks must be one of these:
//! - a block in the pool of a client of that run of its host, in quarantine or not. A process that
//!   was evicted has been several clients;
//! - a block of a file that such a client may write there: under `DATA_X`, or with an exclusive
//!   range;
//! - a block of a file that is frozen for such a client in quarantine;
//! - when the write reaches the device, a freed but not yet free block: its file may have been
//!   deleted meanwhile.
//!
//! So each of these writes is a violation, whether or not anybody reads what it wrote: to a free
//! block, to another client's pool, to a file without a right to write it, or after the quarantine
//! of its client.
//!
//! Not checked: writes while no server runs, or before all clients of the previous server have
//! reclaimed, because its count lacks what they will replay. A write may reach the device long
//! after it was submitted (`stall`, `long-stall`). That is no exception, since no quarantine ends
//! while a device stalls or did a moment ago.

use std::collections::BTreeMap;
use std::ops::Range;

use mds::{CommittedBlocks, Introspection, SessionStanding};
use mfs::{ALL_FILES, BlockOwner, Stop, Txn};
use types::{ClientId, FileBlock, Ino, PagBlock, PagId, Segment, SegmentState, ShardId};

use super::{ClientPlace, runs_at};
use crate::cluster::Cluster;
use crate::invariant::Invariant;
use crate::zones::Place;

/// Most segments of a file that a check reads.
const MANY: usize = 1 << 16;

/// The state of the checker.
#[derive(Default)]
pub(crate) struct Owners {
    /// Where each client runs or ran: its node, and the run in which it was first seen.
    nodes: BTreeMap<ClientId, ClientPlace>,
    /// The last file of each block.
    files: BTreeMap<Place, Ino>,
    /// The file with which each spare of a migration exchanged its layout: their blocks may be in
    /// either.
    moved: BTreeMap<Ino, Ino>,
}

/// The owner of a block.
struct OwnedBlock {
    owner: BlockOwner,
    /// The file, and the block within it.
    file: Option<(Ino, FileBlock)>,
}

impl Owners {
    /// A commit makes the metadata point at blocks.
    pub(crate) fn pointed(&mut self, pointed: &CommittedBlocks<'_>) {
        for segment in pointed.segments {
            for block in segment.addr.0..segment.addr.0 + segment.len {
                self.files.insert((segment.pag, block), pointed.ino);
            }
        }
    }

    /// A server exchanges the layouts of a file and of a spare.
    pub(crate) fn exchanged(&mut self, ino: Ino, spare: Ino) {
        self.moved.insert(spare, ino);
    }

    /// The files in which a block may be: the last one that a commit had it in first.
    fn files_with(&self, block: Place) -> Vec<Ino> {
        let Some(&last) = self.files.get(&block) else { return Vec::new() };
        let moved = self.moved.get(&last).copied().unwrap_or(last);
        let spares = self.moved.iter().filter(|(_, of)| **of == moved).map(|(spare, _)| *spare);
        [last, moved].into_iter().chain(spares).collect()
    }

    /// Blocks of a zone that some commit pointed at.
    pub(crate) fn blocks_of(&self, zone: PagId) -> Vec<u64> {
        let of_it = self.files.range((zone, 0)..=(zone, u64::MAX));
        of_it.map(|((_, block), _)| *block).collect()
    }

    /// Learns the clients of all sessions: a client may own blocks long before it writes one.
    pub(crate) fn learn_sessions(&mut self, cluster: &Cluster) {
        for ledger in cluster.all_shards().filter_map(|shard| cluster.ledger_of(shard)) {
            self.add_sessions(ledger.sessions(), |node| cluster.world.run_of(node));
        }
    }

    fn add_sessions(
        &mut self,
        sessions: Vec<(ClientId, String)>,
        run_of: impl Fn(&str) -> Option<u32>,
    ) {
        for (client, node) in sessions {
            self.nodes.entry(client).or_insert_with(|| {
                let run = run_of(&node);
                (node, run)
            });
        }
    }

    /// The clients of this run of a node, and those whose run is unknown.
    pub(crate) fn clients_of(&self, (node, run): (&str, u32)) -> Vec<ClientId> {
        let by = (node.to_owned(), run);
        let clients = self.nodes.iter().filter(|(_, place)| runs_at(&by, place));
        clients.map(|(client, _)| *client).collect()
    }

    /// Where a client runs or ran: the node, and its run if known.
    pub(crate) fn place_of(&self, client: ClientId) -> Option<ClientPlace> {
        self.nodes.get(&client).cloned()
    }

    /// A write was submitted.
    pub(crate) fn submitted(
        &mut self,
        cluster: &Cluster,
        node: (&str, u32),
        (zone, blocks): (PagId, Range<u64>),
    ) {
        self.check(cluster, node, (zone, blocks), true);
    }

    /// A write has reached the device. Returns the owners of its blocks, where known.
    pub(crate) fn completed(
        &mut self,
        cluster: &Cluster,
        node: (&str, u32),
        (zone, blocks): (PagId, Range<u64>),
    ) -> Vec<Option<BlockOwner>> {
        self.check(cluster, node, (zone, blocks), false)
    }

    fn check(
        &mut self,
        cluster: &Cluster,
        node: (&str, u32),
        (zone, blocks): (PagId, Range<u64>),
        submits: bool,
    ) -> Vec<Option<BlockOwner>> {
        self.learn_sessions(cluster);
        let clients = self.clients_of(node);
        let node = node.0;
        blocks
            .map(|block| {
                let shard = holder(cluster, (zone, block));
                let ledger = cluster.ledger_of(shard).filter(Introspection::serves)?;
                let found = self.find(cluster, shard, (zone, block))?;
                if let Some((invariant, why)) =
                    violation_of(cluster, (shard, &ledger), &clients, &found, submits)
                {
                    let what = if submits { "submits a write to" } else { "has written" };
                    let text = format!(
                        "{node} (clients {clients:?}) {what} block {block} of zone {zone}, {why}"
                    );
                    cluster.events.broken(invariant, &text);
                }
                Some(found.owner)
            })
            .collect()
    }

    /// The file of which a block is a written part; `None` also if unknown.
    pub(crate) fn written_of(&self, cluster: &Cluster, block: Place) -> Option<Ino> {
        let files = self.files_with(block);
        let shard = holder(cluster, block);
        let (ino, segment) = cluster.inspect_at(shard, |txn| file_of(txn, &files, block))??;
        (segment.state == SegmentState::Written).then_some(ino)
    }

    fn find(&self, cluster: &Cluster, shard: ShardId, block: Place) -> Option<OwnedBlock> {
        let files = self.files_with(block);
        cluster.inspect_at(shard, |txn| {
            let owner = txn.space().owner(block.0, PagBlock(block.1))?;
            let file = match owner {
                BlockOwner::Mapped => file_of(txn, &files, block)?
                    .map(|(ino, of)| (ino, FileBlock(of.file.0 + block.1 - of.addr.0))),
                _ => None,
            };
            Ok(OwnedBlock { owner, file })
        })
    }
}

/// The shard that has a block: that of its zone, or where it was lent or went with a file.
pub(crate) fn holder(cluster: &Cluster, (zone, block): Place) -> ShardId {
    let shard = cluster.shard_of(zone);
    let lent = cluster.inspect_at(shard, |txn| txn.space().lent_to(zone, PagBlock(block)));
    lent.flatten().unwrap_or(shard)
}

/// Is the block part of a file? An unknown block counts as one.
pub(crate) fn is_mapped(cluster: &Cluster, (zone, block): Place) -> bool {
    let shard = holder(cluster, (zone, block));
    let owner = cluster.inspect_at(shard, |txn| txn.space().owner(zone, PagBlock(block)));
    owner.is_none_or(|owner| owner == BlockOwner::Mapped)
}

/// Has the file a name?
pub(crate) fn is_named(cluster: &Cluster, ino: Ino) -> bool {
    let attr = cluster.inspect_at(cluster.home_of(ino), |txn| txn.names().attr(ino)).flatten();
    attr.is_some_and(|attr| attr.nlink > 0)
}

/// The first of these files with this block, and its segment.
fn file_of(txn: &mut Txn<'_>, files: &[Ino], block: Place) -> Result<Option<(Ino, Segment)>, Stop> {
    for &ino in files {
        if let Some(segment) = segment_of(txn, ino, block)? {
            return Ok(Some((ino, segment)));
        }
    }
    Ok(None)
}

/// The file's segment with this block.
fn segment_of(txn: &mut Txn<'_>, ino: Ino, (zone, block): Place) -> Result<Option<Segment>, Stop> {
    if txn.names().attr(ino)?.is_none() {
        return Ok(None);
    }
    let all = txn.layouts().layout(ino, FileBlock(0), MANY)?;
    let has = |of: &Segment| of.pag == zone && (of.addr.0..of.addr.0 + of.len).contains(&block);
    Ok(all.into_iter().find(has))
}

/// The violation of a write by one of these clients to such a block, if it is one.
fn violation_of(
    cluster: &Cluster,
    (shard, ledger): (ShardId, &Introspection),
    clients: &[ClientId],
    found: &OwnedBlock,
    submits: bool,
) -> Option<(Invariant, String)> {
    match (found.owner, found.file) {
        (BlockOwner::Free, _) => Some((Invariant::Owner, "which is free".to_owned())),
        (BlockOwner::Pool(other), _) if !clients.contains(&other) => {
            Some((Invariant::Owner, format!("which is in the pool of client {other}")))
        }
        (BlockOwner::Freed(ino), _) if submits => {
            Some((Invariant::Owner, format!("which inode {ino} freed")))
        }
        (BlockOwner::Pool(_) | BlockOwner::Freed(_), _) => None,
        (BlockOwner::Mapped, None) => {
            Some((Invariant::Owner, "which is not free, in no pool, and in no file".to_owned()))
        }
        (BlockOwner::Mapped, Some((ino, at))) => {
            // Clients of other servers may write nothing here.
            let here = |client: &&ClientId| client.shard() == shard;
            let may = |&client: &ClientId| {
                ledger.may_write(client, ino, at) || is_frozen_for(cluster, client, ino)
            };
            let standing: Vec<SessionStanding> =
                clients.iter().map(|&client| ledger.standing(client)).collect();
            (!clients.iter().filter(here).any(may)).then(|| {
                let text = format!("block {} of inode {ino}, which it may not write; ", at.0);
                (Invariant::Writer, format!("{text}they are {standing:?}"))
            })
        }
    }
}

/// Is the client in quarantine, and may it be writing this file?
fn is_frozen_for(cluster: &Cluster, client: ClientId, ino: Ino) -> bool {
    let frozen = cluster.inspect_at(client.shard(), |txn| {
        let frozen =
            txn.space().is_quarantined(client)?.then(|| txn.space().frozen(client)).transpose()?;
        Ok(frozen.is_some_and(|files| files.contains(&ino) || files.contains(&ALL_FILES)))
    });
    // Without an answer nobody is accused.
    frozen.unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_of_a_dead_client_is_not_its_successors() {
        let mut owners = Owners::default();
        let on = |client| vec![(ClientId(client), "c0".to_owned())];
        owners.add_sessions(on(1), |_| Some(4));
        // The server keeps the session of the dead client. The new process is evicted once and thus
        // has two.
        owners.add_sessions([on(1), on(2), on(3)].concat(), |_| Some(7));
        assert_eq!(owners.clients_of(("c0", 4)), [ClientId(1)]);
        assert_eq!(owners.clients_of(("c0", 7)), [ClientId(2), ClientId(3)]);
        assert_eq!(owners.clients_of(("c1", 7)), []);
    }
}
