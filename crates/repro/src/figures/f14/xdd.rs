//! Table 1 of paper 001: the tiers alone, by `xdd`, paper beside measured.

use serde::Serialize;

use crate::couplet::{RECORD, TARGETS, Took, Transfers};
use bench::Res;
use bench::report::Columns;

/// Bytes of the requests; the paper has those of 1 MiB alone.
const SIZES: [u64; 3] = [RECORD, 64 << 10, 4 << 10];

/// A line of the table: tiers, at random, MB/s read and written.
type Line = (usize, bool, f64, f64);

const PAPER: [Line; 4] = [
    (1, false, 685.62, 235.45),
    (1, true, 101.74, 96.77),
    (TARGETS, false, 5570.15, 5608.15),
    (TARGETS, true, 2753.87, 2530.5),
];

/// One cell.
#[derive(Clone, Copy, Serialize, Debug)]
pub struct Xdd {
    /// Which requests.
    pub transfers: Transfers,
    /// MB/s in the paper.
    pub paper: Option<f64>,
    /// What they took.
    pub took: Took,
}

/// Every cell, with `records` MiB written to each tier, or read from it.
///
/// # Errors
/// Those of the devices.
pub fn measure(records: u64, progress: &mut dyn FnMut(&str)) -> Res<Vec<Xdd>> {
    let mut cells = Vec::new();
    for bytes in SIZES {
        for (tiers, random, read, written) in PAPER {
            for (write, paper) in [(false, read), (true, written)] {
                let transfers = Transfers { tiers, bytes, random, write };
                let took = transfers.run(records * RECORD)?;
                let paper = (bytes == RECORD).then_some(paper);
                cells.push(Xdd { transfers, paper, took });
                progress(&format!(
                    "F14, xdd: {} of {} KiB to {tiers} tiers, {}: {:.1} MB/s",
                    if write { "writes" } else { "reads" },
                    bytes >> 10,
                    places(random),
                    took.rate()
                ));
            }
        }
    }
    Ok(cells)
}

fn places(random: bool) -> &'static str {
    if random { "at random" } else { "in sequence" }
}

/// The writes of 1 MiB to all tiers.
pub fn writes(cells: &[Xdd], random: bool) -> Option<Took> {
    let wanted = Transfers { tiers: TARGETS, bytes: RECORD, random, write: true };
    cells.iter().find(|cell| cell.transfers == wanted).map(|cell| cell.took)
}

/// The table: paper / measured.
pub fn text(cells: &[Xdd]) -> String {
    let mut columns = Columns::new(&["xdd: tiers", "KiB", "places", "MB/s read", "MB/s written"]);
    for pair in cells.chunks(2) {
        let of = pair[0].transfers;
        let rate = |cell: &Xdd| {
            let paper = cell.paper.map_or("-".to_owned(), |paper| format!("{paper:.1}"));
            format!("{paper} / {:.1}", cell.took.rate())
        };
        let mut row =
            vec![of.tiers.to_string(), (of.bytes >> 10).to_string(), places(of.random).to_owned()];
        row.extend(pair.iter().map(rate));
        columns.row(row);
    }
    columns.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_each_cell_of_the_paper_and_random_writes_are_near_it() {
        let cells = measure(24, &mut |_| {}).unwrap();
        assert_eq!(cells.len(), 8 * SIZES.len());
        assert_eq!(cells.iter().filter(|cell| cell.paper.is_some()).count(), 8);
        let text = text(&cells);
        assert_eq!(text.lines().count(), 1 + 4 * SIZES.len(), "{text}");
        assert!(text.contains("5608.1 / 5") && text.contains("2530.5 / 2"), "{text}");
        let random = writes(&cells, true).unwrap().rate();
        assert!((random / 2530.5 - 1.0).abs() < 0.05, "{random}");
    }
}
