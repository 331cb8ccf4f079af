//! `redbud df`: space of a file system, by data zone.

use bench::report::Columns;
use proto::mds::{Op, OpReply, Statfs};
use serde::Serialize;
use types::limits::BLOCK_U64;
use types::units::human_size;

use crate::args::DfArgs;
use crate::exit::{Ended, Failure};
use crate::output;
use crate::source::Source;
use crate::{admin, target};

#[derive(Serialize)]
struct Report {
    version: u32,
    filesystems: Vec<Space>,
}

#[derive(Serialize)]
struct Space {
    source: String,
    bytes: u64,
    bytes_free: u64,
    inodes: u64,
    inodes_free: u64,
    zones: Vec<Zone>,
}

#[derive(Serialize)]
struct Zone {
    pag: u16,
    bytes: u64,
    bytes_free: u64,
}

/// Prints space.
pub fn run(args: &DfArgs) -> Ended {
    let sources = match &args.target {
        Some(text) => vec![target::source(text)?],
        None => target::all_mounted()?,
    };
    if sources.is_empty() {
        return Err(Failure::usage("no Redbud file system is mounted here: name a target"));
    }
    let filesystems: Vec<Space> = sources.iter().map(space).collect::<Result<_, _>>()?;
    output::print_report(args.output, &Report { version: 1, filesystems }, |report| {
        report.filesystems.iter().map(|space| describe(space, args.human)).collect()
    })?;
    Ok(0)
}

/// The space of all metadata servers together.
fn space(source: &Source) -> Result<Space, Failure> {
    let spaces = admin::servers(source)?.into_iter().map(|server| space_at(&server.source));
    let spaces = spaces.collect::<Result<Vec<_>, _>>()?.into_iter();
    let sum = spaces.reduce(Space::and).map(|sum| Space { source: source.to_string(), ..sum });
    sum.ok_or_else(|| Failure::failed("RB-MDS-REFUSED", format!("{source}: it has no server")))
}

fn space_at(source: &Source) -> Result<Space, Failure> {
    match admin::ask(source, Op::Statfs {})? {
        OpReply::Statfs { statfs } => Ok(Space::from(source, &statfs)),
        _ => Err(Failure::failed(
            "RB-MDS-REFUSED",
            format!("{source}: the server sent an unexpected reply"),
        )),
    }
}

impl Space {
    /// What both have. Their zones are different ones, but for targets, which count once.
    fn and(mut self, other: Space) -> Space {
        let of_both = |zone: &Zone| other.zones.iter().any(|one| one.pag == zone.pag);
        let counted: Vec<Zone> = self.zones.extract_if(.., |zone| of_both(zone)).collect();
        let sum = |of: fn(&Zone) -> u64| counted.iter().map(of).sum::<u64>();
        let (bytes, bytes_free) = (sum(|zone| zone.bytes), sum(|zone| zone.bytes_free));
        self.zones.extend(other.zones);
        self.zones.sort_by_key(|zone| zone.pag);
        Space {
            bytes: (self.bytes + other.bytes).saturating_sub(bytes),
            bytes_free: (self.bytes_free + other.bytes_free).saturating_sub(bytes_free),
            inodes: self.inodes + other.inodes,
            inodes_free: self.inodes_free + other.inodes_free,
            ..self
        }
    }

    fn from(source: &Source, statfs: &Statfs) -> Space {
        let zone = |&(pag, (blocks, free)): &(types::PagId, (u64, u64))| Zone {
            pag: pag.0,
            bytes: blocks * BLOCK_U64,
            bytes_free: free * BLOCK_U64,
        };
        Space {
            source: source.to_string(),
            bytes: statfs.blocks * BLOCK_U64,
            bytes_free: statfs.blocks_free * BLOCK_U64,
            inodes: statfs.inodes,
            inodes_free: statfs.inodes_free,
            zones: statfs.pags.iter().map(zone).collect(),
        }
    }
}

fn describe(space: &Space, human: bool) -> String {
    let size = |bytes: u64| if human { human_size(bytes) } else { (bytes / 1024).to_string() };
    let unit = if human { "size" } else { "1K-blocks" };
    let mut table = Columns::new(&["zone", unit, "used", "available", "use%"]);
    let mut row = |name: String, bytes: u64, free: u64| {
        let used = bytes.saturating_sub(free);
        let percent = (u128::from(used) * 100).div_ceil(u128::from(bytes.max(1)));
        table.row(vec![name, size(bytes), size(used), size(free), format!("{percent}%")]);
    };
    for zone in &space.zones {
        row(format!("pag {}", zone.pag), zone.bytes, zone.bytes_free);
    }
    row("total".into(), space.bytes, space.bytes_free);
    format!(
        "{}: {} inodes used, space for about {} more\n{}",
        space.source,
        space.inodes,
        space.inodes_free,
        table.text()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_of_two_servers_counts_once() {
        let space = |zones: &[(u16, u64, u64)]| {
            let zone = |&(pag, bytes, bytes_free): &_| Zone { pag, bytes, bytes_free };
            let zones: Vec<Zone> = zones.iter().map(zone).collect();
            let (bytes, bytes_free) = (
                zones.iter().map(|zone| zone.bytes).sum(),
                zones.iter().map(|zone| zone.bytes_free).sum(),
            );
            Space { source: String::new(), bytes, bytes_free, inodes: 1, inodes_free: 2, zones }
        };
        let both = space(&[(0, 10, 5), (2, 100, 50)]).and(space(&[(1, 20, 6), (2, 100, 40)]));
        assert_eq!((both.bytes, both.bytes_free), (130, 51));
        assert_eq!(both.zones.iter().map(|zone| zone.pag).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
