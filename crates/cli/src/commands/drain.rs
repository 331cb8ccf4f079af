//! `redbud pag drain`: empties a data zone.

use std::collections::BTreeSet;

use mfs::PagUse;
use serde::Serialize;
use types::limits::BLOCK_U64;
use types::units::human_size;
use types::{Duration, Fault, PagId, ShardId};

use client::NotMoved;
use env::asked_to_stop;

use crate::args::PagDrainArgs;
use crate::exit::{Ended, Failure, Status};
use crate::mover::{self, Mover, Order, Zone};
use crate::{output, target};

/// When all files have moved, what is left may stay unchanged for so long before the command ends.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two looks at them.
const PAUSE: Duration = Duration::from_millis(250);

/// How the move ended.
#[derive(Serialize, Default)]
struct Report {
    version: u32,
    source: String,
    pag: u16,
    state: String,
    /// Files of which blocks were moved.
    files: u64,
    bytes_moved: u64,
    /// In files.
    bytes_left: u64,
    /// Given up by files, not free yet.
    bytes_freed: u64,
    /// In the pools of clients.
    bytes_pooled: u64,
    /// Nothing is left in the zone.
    empty: bool,
}

/// Moves all files out of the zone: those of each of these metadata servers, the one whose zone it
/// is last.
pub fn run(args: &PagDrainArgs, servers: &[Option<ShardId>]) -> Ended {
    let (mut moved, mut end) = ((0, 0), Ok(()));
    let (mut last, owner) = (None, servers.last().copied().flatten());
    for shard in servers {
        if end.is_ok() && !asked_to_stop() {
            let (report, ended) = drain_at(args, *shard, owner)?;
            moved = (moved.0 + report.files, moved.1 + report.bytes_moved);
            last = Some(Report { files: moved.0, bytes_moved: moved.1, ..report });
            end = ended;
        }
    }
    let Some(report) = last else {
        let text = format!("data zone {} drains; the same command moves its files", args.pag);
        return Err(Failure::new(Status::Partial, "RB-DRAIN-STOPPED", text));
    };
    output::print_report(args.output, &report, |report| {
        let moved = human_size(report.bytes_moved);
        let (files, pag) = (report.files, report.pag);
        let empty = if report.empty { ": it is empty" } else { "" };
        format!("moved {moved} of {files} files from data zone {pag}{empty}\n")
    })?;
    end.map(|()| 0)
}

/// Moves the files of one metadata server out of the zone.
fn drain_at(
    args: &PagDrainArgs,
    shard: Option<ShardId>,
    owner: Option<ShardId>,
) -> Result<(Report, Result<(), Failure>), Failure> {
    let source = target::source_or_only(args.target.as_ref())?;
    let id = PagId(args.pag);
    let order = Order {
        source: &source,
        shard,
        command: format!("redbud pag drain {id}"),
        rate: args.rate,
        talks: !args.output.is_json(),
    };
    let name = source.to_string();
    mover::run(&order, async move |mover| {
        let lender = owner.zip(shard).filter(|(owner, shard)| owner != shard);
        if let Some((owner, borrower)) = lender {
            // The borrower may not have heard of the last loan: the lender takes that back first.
            mover.take_back(owner, id, borrower).await?;
            mover.look().await?;
            if mover.zone(id).is_none() {
                return Ok((
                    Report { version: 1, source: name, pag: id.0, ..Report::default() },
                    Ok(()),
                ));
            }
        }
        let end = drain(mover, id, lender).await;
        mover.print_stayed();
        if !end.as_ref().is_err_and(|end| end.code == Status::Unreachable as u8) {
            mover.look().await?;
        }
        let Some(zone) = mover.zone(id).cloned() else { return Err(unknown(id)) };
        Ok((report(mover, &zone, name), end))
    })
}

/// What lies at a target that drains stays there.
pub fn target_left(id: PagId) -> Failure {
    let text = format!(
        "no new files go to object target {id}; those that lie there stay: `redbud migrate FILE... \
         --to blocks`, or `--to objects --zones` with other targets, moves them"
    );
    Failure::new(Status::Partial, "RB-DRAIN-LEFT", text)
}

fn report(mover: &Mover, zone: &Zone, source: String) -> Report {
    let is_empty = zone.free == zone.blocks && zone.lent == 0;
    Report {
        version: 1,
        source,
        pag: zone.id.0,
        state: zone.state.clone(),
        files: mover.files,
        bytes_moved: mover.blocks * BLOCK_U64,
        bytes_left: zone.in_files() * BLOCK_U64,
        bytes_freed: zone.freed * BLOCK_U64,
        bytes_pooled: zone.pooled() * BLOCK_U64,
        empty: is_empty,
    }
}

/// There is no such zone.
pub fn unknown(id: PagId) -> Failure {
    let text = format!("the file system has no data zone {id}: `redbud pag list` shows them");
    Failure::failed("RB-PAG-REFUSED", text)
}

/// Does the zone still drain, as last looked at?
fn drains(mover: &Mover, id: PagId) -> bool {
    mover.zone(id).is_some_and(|zone| zone.state == PagUse::Draining.name())
}

async fn drain(
    mover: &mut Mover,
    id: PagId,
    lender: Option<(ShardId, ShardId)>,
) -> Result<(), Failure> {
    mover.look().await?;
    let before = mover.zone(id).ok_or_else(|| unknown(id))?.clone();
    if before.state == PagUse::Lost.name() {
        let text = format!(
            "data zone {id} is lost: nothing can be read there; if its device is back, \
             `redbud pag lost --undo {id}` comes first"
        );
        return Err(Failure::failed("RB-PAG-REFUSED", text));
    }
    mover.shun(BTreeSet::from([id]));
    let Some(from) = PagUse::named(&before.state) else {
        let text = format!(
            "data zone {id} is in a state that this release does not know: use the server's \
             release, or `redbud fsck --repair` if it finds damage"
        );
        return Err(Failure::failed("RB-PAG-REFUSED", text));
    };
    mover.begin_drain(id, from).await?;
    mover.look().await?;
    if before.is_target {
        return Err(target_left(id));
    }
    let (mut seen, mut since) = (None, mover.env.now());
    loop {
        let moved = mover.blocks;
        pass(mover, id).await?;
        mover.look().await?;
        let mut zone = mover.zone(id).ok_or_else(|| unknown(id))?.clone();
        if let Some(both) = lender {
            zone = give_back(mover, zone, both).await?;
        }
        if zone.free == zone.blocks && zone.lent == 0 {
            return Ok(());
        }
        if !drains(mover, id) {
            let text = format!("data zone {id} is {} by now: the move has ended", zone.state);
            return Err(Failure::new(Status::Partial, "RB-DRAIN-STOPPED", text));
        }
        if asked_to_stop() {
            let text = format!("{}; the same command goes on", left(mover, &zone));
            return Err(Failure::new(Status::Partial, "RB-DRAIN-STOPPED", text));
        }
        // What changes without this command ends without it, too.
        let now = Some((zone.in_files(), zone.freed, zone.pools.clone(), zone.lent));
        if mover.blocks > moved || now != seen {
            (seen, since) = (now, mover.env.now());
        }
        if !mover.stayed.is_empty() && mover.blocks == moved
            || mover.env.now().since(since) >= PATIENCE
        {
            return Err(Failure::new(Status::Partial, "RB-DRAIN-LEFT", left(mover, &zone)));
        }
        if zone.pooled() > 0 {
            mover.ask_for_pools(id).await?;
        }
        mover.env.sleep(PAUSE).await;
    }
}

/// Gives what is free of another server's zone back to it, as long as that gets less.
async fn give_back(
    mover: &mut Mover,
    mut zone: Zone,
    (lender, borrower): (ShardId, ShardId),
) -> Result<Zone, Failure> {
    while zone.free > 0 && !asked_to_stop() {
        mover.take_back(lender, zone.id, borrower).await?;
        mover.look().await?;
        let now = mover.zone(zone.id).ok_or_else(|| unknown(zone.id))?.clone();
        let is_less = now.blocks < zone.blocks;
        zone = now;
        if !is_less {
            break;
        }
    }
    Ok(zone)
}

/// Moves each file once that has blocks in the zone.
async fn pass(mover: &mut Mover, id: PagId) -> Result<(), Failure> {
    let zones = BTreeSet::from([id]);
    mover.stayed.clear();
    let (mut at, mut met) = ((0, 0), BTreeSet::new());
    loop {
        let (files, next) = mover.files_of(id, at).await?;
        for file in files {
            if asked_to_stop() || !drains(mover, id) {
                return Ok(());
            }
            if !met.insert(file.ino) {
                continue;
            }
            mover.move_file(&file, &zones, |mover| drains(mover, id)).await?;
            match mover.stayed.get(&file.ino) {
                Some((_, NotMoved::NoRoom(allowed))) if allowed.is_empty() => {
                    return Err(no_room(mover, id));
                }
                Some((name, NotMoved::Failed(Fault::Unreachable))) => {
                    let text = format!("{name}: the client has ended: run the same command again");
                    return Err(Failure::failed("RB-MOVE", text));
                }
                _ => {}
            }
        }
        let Some(then) = next else { return Ok(()) };
        at = then;
    }
}

/// No other zone has room.
fn no_room(mover: &mut Mover, id: PagId) -> Failure {
    mover.stayed.clear();
    let left = mover.zone(id).map_or(0, |zone| zone.blocks - zone.free);
    let text = format!(
        "no other data zone has room for the rest: up to {} stay in data zone {id}, and nothing is \
         lost; add a device (`redbud pag add`) or remove files, and run the same command again, or \
         take the zone back into service (`redbud pag drain --undo {id}`)",
        human_size(left * BLOCK_U64)
    );
    Failure::new(Status::Partial, "RB-DRAIN-NO-ROOM", text)
}

/// What is left in the zone, and who holds it.
fn left(mover: &Mover, zone: &Zone) -> String {
    let mut parts = Vec::new();
    let mut say = |blocks: u64, what: String| {
        if blocks > 0 {
            parts.push(format!("{} {what}", human_size(blocks * BLOCK_U64)));
        }
    };
    say(zone.in_files(), format!("in files (`redbud pag files {}` names them)", zone.id));
    for (client, blocks) in &zone.pools {
        let name = mover.clients.get(client).map_or("", String::as_str);
        say(*blocks, format!("in the pool of client {client} ({name})"));
    }
    say(zone.lent, "lent to other metadata servers".into());
    say(zone.freed, "given up by files, until the server knows that nobody can write there".into());
    format!("data zone {} still has {}", zone.id, parts.join(", "))
}
