//! Results as text and as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde::Serialize;

use crate::contender::Kind;
use crate::works::{Compared, Row, Sample, Target, Work};

/// A table's result.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    version: u32,
    rows: Vec<Line>,
}

#[derive(Clone, Debug, Serialize)]
struct Line {
    work: &'static str,
    title: &'static str,
    unit: &'static str,
    /// Medians, in `unit`, by contender.
    median: BTreeMap<Kind, f64>,
    target: Option<Reached>,
    /// Of each operation, medians.
    each: BTreeMap<Kind, Each>,
    samples: BTreeMap<Kind, Vec<Sample>>,
}

/// A target and what was reached.
#[derive(Clone, Debug, Serialize)]
struct Reached {
    /// The contender that is judged.
    of: Kind,
    /// The contender that it is compared with; none for a bound in operations a second.
    than: Option<Kind>,
    least: f64,
    /// Its median by that of the other, or its median itself.
    reached: f64,
    /// Least and largest of the single runs.
    spread: (f64, f64),
    met: bool,
}

/// Medians of what an operation took.
#[derive(Clone, Debug, Serialize)]
struct Each {
    mount_cpu_us: f64,
    server_cpu_us: f64,
    targets_cpu_us: f64,
    mount_switches: f64,
    server_switches: f64,
    targets_switches: f64,
    flushes: Option<f64>,
    requests: BTreeMap<String, f64>,
}

/// Bytes in a MiB.
const MIB: f64 = (1u64 << 20) as f64;

/// A rate of `work` for people.
pub fn rate(work: &Work, per_second: f64) -> String {
    match per_second {
        _ if work.is_stream() => format!("{:.0} MiB/s", per_second / MIB),
        rate if rate >= 10_000.0 => format!("{:.1}k/s", rate / 1000.0),
        rate => format!("{rate:.0}/s"),
    }
}

/// The median; of an even count, the mean of the two in the middle.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        len if len % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

impl Report {
    /// Of these rows.
    pub fn new(rows: &[Row]) -> Report {
        Report { version: 1, rows: rows.iter().map(line).collect() }
    }

    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = self.rates();
        text +=
            "\nRequests from the kernel, for each operation (FORGET and RELEASE follow later):\n\n";
        text += &self.requests();
        text += "\nFor each operation: microseconds of processor and sleeps of threads, of the mount's\n\
                 process, of the metadata server and of the object targets; flushes of the disk below:\n\n";
        text + &self.costs()
    }

    /// The contenders of the rows, in the order of their columns.
    fn kinds(&self) -> Vec<Kind> {
        let has = |kind: &Kind| self.rows.iter().any(|line| line.median.contains_key(kind));
        Kind::ALL.into_iter().filter(has).collect()
    }

    fn rates(&self) -> String {
        let mut table = Columns::new(&["work"]);
        let kinds = self.kinds();
        table.head(kinds.iter().copied().map(Kind::text));
        table.head(["ratio", "(least-most)", "target", ""]);
        for line in &self.rows {
            let mut cells = vec![line.title.to_owned()];
            for kind in &kinds {
                let cell = line.median.get(kind).map(|&median| number(median, line.unit));
                cells.push(cell.unwrap_or_else(|| "-".into()));
            }
            match &line.target {
                Some(Reached { of: _, than, least, reached, spread, met }) => {
                    let digits = |value: f64| match than {
                        Some(_) => format!("{value:.2}"),
                        None => number(value, ""),
                    };
                    cells.push(digits(*reached));
                    cells.push(format!("({}-{})", digits(spread.0), digits(spread.1)));
                    let than = than.map_or("/s".into(), |kind| format!(" x {}", kind.text()));
                    cells.push(format!("{}{than}", digits(*least)));
                    cells.push(if *met { "met" } else { "MISSED" }.into());
                }
                None => cells.push("-".into()),
            }
            table.row(cells);
        }
        table.text()
    }

    fn requests(&self) -> String {
        let mut kinds = self.kinds();
        kinds.retain(|kind| kind.is_fuse());
        let mut table = Columns::new(&["work", "request"]);
        table.head(kinds.iter().copied().map(Kind::text));
        for line in self.rows.iter().filter(|line| line.unit == "/s") {
            let of = |kind: &Kind| line.each.get(kind).map(|each| &each.requests);
            let names: BTreeSet<&String> =
                kinds.iter().filter_map(of).flat_map(BTreeMap::keys).collect();
            for name in names {
                let count = |requests: Option<&BTreeMap<String, f64>>| {
                    requests.map_or("-".into(), |requests| {
                        format!("{:.3}", requests.get(name).copied().unwrap_or_default())
                    })
                };
                let counts = kinds.iter().map(|kind| count(of(kind)));
                table.row([line.work.into(), name.clone()].into_iter().chain(counts).collect());
            }
        }
        table.text()
    }

    fn costs(&self) -> String {
        let mut table = Columns::new(&["work", "contender", "cpu", "sleeps"]);
        table.head(["mds cpu", "mds sleeps"]);
        let has_targets = self.kinds().contains(&Kind::Objects);
        if has_targets {
            table.head(["ost cpu", "ost sleeps"]);
        }
        table.head(["flushes"]);
        for line in &self.rows {
            // Of a stream, for each MiB.
            for (kind, each) in &line.each {
                if !kind.is_fuse() && each.flushes.is_none_or(|flushes| flushes < 0.001) {
                    continue;
                }
                let mut pairs = vec![
                    (each.mount_cpu_us, each.mount_switches),
                    (each.server_cpu_us, each.server_switches),
                ];
                if has_targets {
                    pairs.push((each.targets_cpu_us, each.targets_switches));
                }
                let cells = |(cpu, switches)| [format!("{cpu:.1}"), format!("{switches:.2}")];
                let mut row = vec![line.work.into(), kind.text().into()];
                row.extend(pairs.into_iter().flat_map(cells));
                row.push(each.flushes.map_or("-".into(), |flushes| format!("{flushes:.3}")));
                table.row(row);
            }
        }
        table.text()
    }
}

fn line(row: &Row) -> Line {
    let unit = if row.work.is_stream() { "MiB/s" } else { "/s" };
    let scale = if row.work.is_stream() { MIB } else { 1.0 };
    let rates = |kind: Kind| {
        let samples = row.samples.get(&kind).into_iter().flatten();
        samples.map(|sample| sample.rate() / scale).collect::<Vec<f64>>()
    };
    let medians =
        row.samples.keys().map(|&kind| (kind, median(rates(kind)))).collect::<BTreeMap<_, _>>();
    Line {
        work: row.work.name,
        title: row.work.title,
        unit,
        target: reached(row.compared, row.work, &rates, &medians),
        median: medians,
        each: row.samples.iter().map(|(&kind, samples)| (kind, each(samples, scale))).collect(),
        samples: row.samples.clone(),
    }
}

fn reached(
    compared: Compared,
    work: &Work,
    rates: &dyn Fn(Kind) -> Vec<f64>,
    medians: &BTreeMap<Kind, f64>,
) -> Option<Reached> {
    let judged = compared.judged();
    let of = |kind: Kind| medians.get(&kind).copied().unwrap_or_default();
    let (than, least, reached, single) = match compared.target(work) {
        Target::None => return None,
        Target::PerSecond(least) => (None, least, of(judged), rates(judged)),
        Target::Ratio(least, than) => {
            let pairs = rates(judged).into_iter().zip(rates(than));
            let single = pairs.map(|(one, other)| one / other).collect();
            (Some(than), least, of(judged) / of(than), single)
        }
    };
    let spread = single
        .iter()
        .fold((f64::INFINITY, 0f64), |(least, most), &one| (least.min(one), most.max(one)));
    Some(Reached { of: judged, than, least, reached, spread, met: reached >= least })
}

fn each(samples: &[Sample], scale: f64) -> Each {
    let middle = |of: &dyn Fn(&Sample) -> f64| {
        median(samples.iter().map(|sample| of(sample) * scale / sample.ops.max(1) as f64))
    };
    let flushes = samples.iter().all(|sample| sample.flushes.is_some());
    let names: BTreeSet<&String> =
        samples.iter().flat_map(|sample| sample.requests.keys()).collect();
    Each {
        mount_cpu_us: middle(&|sample| sample.mount_cpu as f64 / 1000.0),
        server_cpu_us: middle(&|sample| sample.server_cpu as f64 / 1000.0),
        mount_switches: middle(&|sample| sample.mount_switches as f64),
        server_switches: middle(&|sample| sample.server_switches as f64),
        targets_cpu_us: middle(&|sample| sample.targets_cpu as f64 / 1000.0),
        targets_switches: middle(&|sample| sample.targets_switches as f64),
        flushes: flushes.then(|| middle(&|sample| sample.flushes.unwrap_or_default() as f64)),
        requests: names
            .into_iter()
            .map(|name| {
                let count =
                    |sample: &Sample| sample.requests.get(name).copied().unwrap_or_default();
                (name.clone(), middle(&|sample| count(sample) as f64))
            })
            .collect(),
    }
}

fn number(value: f64, unit: &str) -> String {
    match value {
        value if unit == "MiB/s" => format!("{value:.0} MiB/s"),
        value if value >= 10_000.0 => format!("{:.1}k", value / 1000.0),
        value => format!("{value:.0}"),
    }
}

/// Cells in columns: the first to the left, the others to the right.
pub struct Columns {
    rows: Vec<Vec<String>>,
}

impl Columns {
    /// With this head.
    pub fn new(head: &[&str]) -> Columns {
        Columns { rows: vec![head.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    fn head<'a>(&mut self, more: impl IntoIterator<Item = &'a str>) {
        self.rows[0].extend(more.into_iter().map(str::to_owned));
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The lines.
    pub fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                // Writing to a string cannot fail.
                let _ = match column {
                    0 => write!(line, "{cell:width$}"),
                    _ => write!(line, "  {cell:>width$}"),
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::works::WORKS;

    #[test]
    fn columns_line_up() {
        let mut table = Columns::new(&["zone", "size"]);
        table.row(vec!["0".into(), "16G".into()]);
        table.row(vec!["total".into(), "1024P".into()]);
        assert_eq!(table.text(), "zone    size\n0        16G\ntotal  1024P\n");
    }

    fn samples(rates: &[u64]) -> Vec<Sample> {
        let sample = |&ops: &u64| Sample { ops, nanos: 1_000_000_000, ..Sample::default() };
        rates.iter().map(sample).collect()
    }

    #[test]
    fn medians_are_in_the_middle() {
        assert!((median([3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median([4.0, 1.0]) - 2.5).abs() < 1e-9);
        assert!(median([]).abs() < 1e-9);
    }

    #[test]
    fn ratio_of_medians_is_compared_with_its_target() {
        let work = WORKS.iter().find(|work| work.name == "create-1").unwrap();
        let samples = BTreeMap::from([
            (Kind::Redbud, samples(&[30, 40, 50])),
            (Kind::Null, samples(&[100, 100, 125])),
            (Kind::Ext4, samples(&[10, 10, 10])),
        ]);
        let report = Report::new(&[Row { work, compared: Compared::Others, samples }]);
        let target = report.rows[0].target.as_ref().unwrap();
        assert!((target.reached - 0.4).abs() < 1e-9 && target.met);
        assert!((target.spread.0 - 0.3).abs() < 1e-9);
        let text = report.text();
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("0.40 (0.30-0.40) 0.35 x null met"), "{text}");
        assert!(report.to_json().contains("\"than\": \"null\""));
    }

    #[test]
    fn objects_are_judged_by_the_data_disks_in_every_work() {
        for work in WORKS {
            let samples = BTreeMap::from([
                (Kind::Redbud, samples(&[100, 200, 300])),
                (Kind::Objects, samples(&[50, 110, 180])),
            ]);
            let report = Report::new(&[Row { work, compared: Compared::Objects, samples }]);
            let target = report.rows[0].target.as_ref().unwrap();
            assert!((target.reached - 0.55).abs() < 1e-9 && !target.met, "{}", work.name);
            assert!((target.spread.0 - 0.5).abs() < 1e-9 && (target.spread.1 - 0.6).abs() < 1e-9);
            let text = report.text();
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words.contains("0.55 (0.50-0.60) 0.60 x redbud MISSED"), "{text}");
            assert!(!words.contains("ext4") && words.contains("ost cpu"), "{text}");
        }
    }
}
