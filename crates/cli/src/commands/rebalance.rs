//! `redbud rebalance`: moves files from data zones that are fuller than others.

use std::collections::BTreeSet;

use mfs::PagUse;
use serde::Serialize;
use types::limits::BLOCK_U64;
use types::units::human_size;
use types::{Ino, PagId, ShardId};

use env::asked_to_stop;

use crate::args::RebalanceArgs;
use crate::exit::{Ended, Failure, Status};
use crate::mover::{self, Mover, Order, Zone};
use crate::source::Source;
use crate::{admin, output, target};

/// The zones are even when their shares differ by so much at most: percent of a zone.
const EVEN: u64 = 5;

#[derive(Serialize, Default)]
struct Report {
    version: u32,
    source: String,
    files: u64,
    bytes_moved: u64,
    /// Zones in service.
    pags: Vec<Share>,
    /// Files that could not be moved.
    stayed: usize,
}

#[derive(Serialize)]
struct Share {
    pag: u16,
    /// The metadata server whose zone it is, of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    mds: Option<u8>,
    bytes: u64,
    bytes_in_files: u64,
}

/// Runs it: for the files and zones of each metadata server.
pub fn run(args: &RebalanceArgs) -> Ended {
    let source = target::source_or_only(args.target.as_ref())?;
    let servers = admin::servers(&source)?;
    let mut whole = Report { version: 1, source: source.to_string(), ..Report::default() };
    for server in &servers {
        let part = rebalance_at(args, &source, server.shard())?;
        whole.files += part.files;
        whole.bytes_moved += part.bytes_moved;
        whole.pags.extend(part.pags);
        whole.stayed += part.stayed;
        if asked_to_stop() {
            break;
        }
    }
    output::print_report(args.output, &whole, |report| {
        let mut text =
            format!("moved {} of {} files\n", human_size(report.bytes_moved), report.files);
        for zone in &report.pags {
            let percent = zone.bytes_in_files * 100 / zone.bytes.max(1);
            text += &format!("data zone {}: {percent} % of it is in files\n", zone.pag);
        }
        text
    })?;
    if asked_to_stop() {
        let text = "stopped; the same command goes on";
        return Err(Failure::new(Status::Partial, "RB-REBALANCE-STOPPED", text));
    }
    Ok(if whole.stayed > 0 { Status::Partial as u8 } else { 0 })
}

/// Makes the zones of one metadata server even.
fn rebalance_at(
    args: &RebalanceArgs,
    source: &Source,
    shard: Option<ShardId>,
) -> Result<Report, Failure> {
    let order = Order {
        source,
        shard,
        command: "redbud rebalance".into(),
        rate: args.rate,
        talks: !args.output.is_json(),
    };
    mover::run(&order, async move |mover| {
        rebalance(mover).await?;
        mover.print_stayed();
        let share = |zone: &Zone| Share {
            pag: zone.id.0,
            mds: shard.map(|shard| shard.0),
            bytes: zone.blocks * BLOCK_U64,
            bytes_in_files: zone.in_files() * BLOCK_U64,
        };
        Ok(Report {
            files: mover.files,
            bytes_moved: mover.blocks * BLOCK_U64,
            pags: serving(&mover.zones).map(share).collect(),
            stayed: mover.stayed.len(),
            ..Report::default()
        })
    })
}

fn serving(zones: &[Zone]) -> impl Iterator<Item = &Zone> {
    let serves = |zone: &&Zone| zone.state == PagUse::InService.name() && zone.blocks > 0;
    // Nothing is moved to targets and zones of other servers, or from them.
    zones.iter().filter(|zone| !zone.is_target && !zone.is_borrowed).filter(serves)
}

/// What to move next: from which zone, how many blocks, and the zones that take nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Plan {
    from: PagId,
    blocks: u64,
    shunned: BTreeSet<PagId>,
}

/// `None`: the zones are even, but for those in `done`, which nothing can be moved from.
fn plan(zones: &[Zone], done: &BTreeSet<PagId>) -> Option<Plan> {
    // In millionths of the zone.
    let share = |zone: &Zone| zone.in_files() as u128 * 1_000_000 / u128::from(zone.blocks);
    let (files, all) = serving(zones)
        .fold((0, 0), |(files, all), zone| (files + zone.in_files(), all + zone.blocks));
    let least = serving(zones).map(share).min()?;
    let from = serving(zones).filter(|zone| !done.contains(&zone.id)).max_by_key(|z| share(z))?;
    if share(from) - least <= u128::from(EVEN) * 10_000 {
        return None;
    }
    let average = u128::from(files) * 1_000_000 / u128::from(all);
    let fair = (u128::from(from.blocks) * average / 1_000_000) as u64;
    let shunned = serving(zones).filter(|zone| share(zone) >= average).map(|zone| zone.id);
    let (from, blocks) = (from.id, from.in_files().saturating_sub(fair));
    let plan = Plan { from, blocks, shunned: shunned.chain([from]).collect() };
    (blocks > 0).then_some(plan)
}

async fn rebalance(mover: &mut Mover) -> Result<(), Failure> {
    // Zones that nothing can be moved from, and files that stay.
    let (mut done, mut kept) = (BTreeSet::new(), BTreeSet::<Ino>::new());
    loop {
        mover.look().await?;
        let Some(plan) = plan(&mover.zones, &done) else { return Ok(()) };
        let borrowed = mover.zones.iter().filter(|zone| zone.is_borrowed).map(|zone| zone.id);
        mover.shun(plan.shunned.iter().copied().chain(borrowed).collect());
        let before = mover.blocks;
        move_some(mover, &plan, &mut kept).await?;
        if asked_to_stop() {
            return mover.look().await;
        }
        if mover.blocks == before {
            done.insert(plan.from);
        }
    }
}

/// Moves whole files from the zone until as many blocks have moved as is planned, or the zones that
/// take them may have become too full.
async fn move_some(
    mover: &mut Mover,
    plan: &Plan,
    kept: &mut BTreeSet<Ino>,
) -> Result<(), Failure> {
    let zones = BTreeSet::from([plan.from]);
    let taking = serving(&mover.zones).filter(|zone| !plan.shunned.contains(&zone.id));
    // One fiftieth of the smallest zone at a time: then the shares are looked at again.
    let most = taking.map(|zone| zone.blocks / 50).min().unwrap_or(0).max(1);
    let (begun, mut at) = (mover.blocks, (0, 0));
    loop {
        let (files, next) = mover.files_of(plan.from, at).await?;
        for file in files {
            let moved = mover.blocks - begun;
            if asked_to_stop() || moved >= plan.blocks.min(most) {
                return Ok(());
            }
            if kept.contains(&file.ino) {
                continue;
            }
            let Some(blocks) = mover.blocks_of(file.ino).await? else { continue };
            // A file that would make another zone the fullest one stays.
            if blocks > plan.blocks - moved {
                continue;
            }
            mover.move_file(&file, &zones, |_| true).await?;
            if mover.stayed.contains_key(&file.ino) {
                kept.insert(file.ino);
            }
        }
        let Some(then) = next else { return Ok(()) };
        at = then;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(id: u16, blocks: u64, in_files: u64) -> Zone {
        let (free, freed, pools) = (blocks - in_files - 12, 5, vec![(1, 4), (2, 3)]);
        let state = PagUse::InService.name().to_owned();
        let (is_target, is_borrowed, lent) = (false, false, 0);
        Zone { id: PagId(id), state, is_target, is_borrowed, blocks, free, freed, pools, lent }
    }

    #[test]
    fn fullest_zone_gives_what_it_has_above_the_average_to_those_below_it() {
        let zones = [zone(0, 1000, 800), zone(1, 1000, 300), zone(2, 2000, 200)];
        // The average is 1300 of 4000.
        let first = plan(&zones, &BTreeSet::new()).unwrap();
        let shunned = BTreeSet::from([PagId(0)]);
        assert_eq!(first, Plan { from: PagId(0), blocks: 475, shunned });
        // If nothing can leave it, the next one is asked.
        let second = plan(&zones, &BTreeSet::from([PagId(0)]));
        assert_eq!(second, None, "it is below the average");
        assert_eq!(plan(&[zone(0, 1000, 500), zone(1, 1000, 450)], &BTreeSet::new()), None);
        assert_eq!(plan(&[], &BTreeSet::new()), None);
        let one = [zone(0, 1000, 500)];
        assert_eq!(plan(&one, &BTreeSet::new()), None);
    }

    #[test]
    fn zones_out_of_service_neither_give_nor_take() {
        let mut zones = [zone(0, 1000, 800), zone(1, 1000, 800), zone(2, 1000, 0)];
        zones[2].state = PagUse::Draining.name().to_owned();
        assert_eq!(plan(&zones, &BTreeSet::new()), None);
        zones[0].state = PagUse::Lost.name().to_owned();
        zones[2].state = PagUse::InService.name().to_owned();
        let found = plan(&zones, &BTreeSet::new()).unwrap();
        assert_eq!((found.from, found.blocks), (PagId(1), 400));
    }
}
