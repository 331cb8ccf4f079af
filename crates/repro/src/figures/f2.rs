//! F2: throughput of ten clients as PAGs are added, RF-FileRound beside RF-Striping (002 Fig. 4b).

use serde::Serialize;

use super::chart::{Panel, svg};
use crate::streams::{self, Files, Pattern, Plan, Took, striping};
use bench::Res;
use bench::report::Columns;
use proto::placement::{Layout, PART};
use types::limits::BLOCK_U64;

/// Clients (002 Fig. 4b).
pub const CLIENTS: usize = 10;
/// PAGs, at most.
pub const PAGS: u16 = 12;
/// Dirty bytes of a client. A mount has 256 MiB by default, but those of ten clients need more than
/// 4 GiB here, with their copies on the way to the disks.
const DIRTY: usize = 160 << 20;
/// The least share of one PAG's throughput times PAGs or clients, whatever is fewer.
const LINEAR: f64 = 0.9;
const MEASURED: [Pattern; 2] = [Pattern::Write, Pattern::Read];

/// See the module.
#[derive(Serialize, Debug)]
pub struct F2 {
    version: u32,
    clients: usize,
    files: Files,
    points: Vec<Point>,
}

/// A number of PAGs.
#[derive(Clone, Serialize, Debug)]
pub struct Point {
    /// PAGs.
    pub pags: u16,
    /// Writing and reading under FileRound.
    pub fileround: Vec<Took>,
    /// The same under Striping.
    pub striping: Vec<Took>,
}

fn rate(took: &[Took], pattern: Pattern) -> f64 {
    took.iter().find(|took| took.pattern == pattern).map_or(0.0, Took::rate)
}

fn busiest(took: &[Took], pattern: Pattern) -> f64 {
    took.iter().find(|took| took.pattern == pattern).map_or(0.0, |took| took.busiest)
}

impl F2 {
    /// Measures with 1 to `pags` PAGs.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn measure(files: Files, pags: u16, progress: &mut dyn FnMut(&str)) -> Res<F2> {
        let mut points = Vec::new();
        for pags in 1..=pags {
            let mut run = |name: &str, layout: Layout| {
                let took = streams::measure(&Plan {
                    clients: CLIENTS,
                    zones: pags,
                    layout,
                    files,
                    patterns: MEASURED.to_vec(),
                    dirty_bytes: DIRTY,
                })?;
                let rates = MEASURED.map(|it| format!("{} {:.0}", it.text(), rate(&took, it)));
                progress(&format!("F2, {pags} PAGs, {name}: {} MB/s", rates.join(", ")));
                Ok(took)
            };
            let fileround = run("FileRound", Layout::default())?;
            let striping = run("Striping", striping(PART))?;
            points.push(Point { pags, fileround, striping });
        }
        Ok(F2 { version: 1, clients: CLIENTS, files, points })
    }

    /// A rate by that of one PAG under FileRound.
    fn by_one(&self, took: &[Took], pattern: Pattern) -> f64 {
        let one = self.points.first().map_or(1.0, |one| rate(&one.fileround, pattern));
        rate(took, pattern) / one
    }

    /// FileRound's rate by what the PAGs or the clients allow.
    fn linear(&self, point: &Point, pattern: Pattern) -> f64 {
        self.by_one(&point.fileround, pattern) / f64::from(point.pags).min(self.clients as f64)
    }

    /// Paper against measured, for people.
    pub fn text(&self) -> String {
        let mut text = format!(
            "F2: {} clients with {} files of {} MiB each, one after another; Striping in parts of \
             {} MiB; paper: roughly linear, FileRound above Striping\n",
            self.clients,
            self.files.files,
            self.files.bytes >> 20,
            (PART * BLOCK_U64) >> 20
        );
        for pattern in MEASURED {
            let mut columns = Columns::new(&[
                pattern.text(),
                "FileRound MB/s",
                "x one PAG",
                "of linear",
                "busiest PAG x mean",
                "Striping MB/s",
                "x one PAG",
                "busiest",
                "FileRound / Striping",
            ]);
            for point in &self.points {
                let (whole, parts) = (&point.fileround, &point.striping);
                columns.row(vec![
                    format!("{} PAGs", point.pags),
                    format!("{:.0}", rate(whole, pattern)),
                    format!("{:.2}", self.by_one(whole, pattern)),
                    format!("{:.2}", self.linear(point, pattern)),
                    format!("{:.2}", busiest(whole, pattern)),
                    format!("{:.0}", rate(parts, pattern)),
                    format!("{:.2}", self.by_one(parts, pattern)),
                    format!("{:.2}", busiest(parts, pattern)),
                    format!("{:.2}", rate(whole, pattern) / rate(parts, pattern)),
                ]);
            }
            text += &format!("\n{}{}", columns.text(), self.verdict(pattern));
        }
        text
    }

    fn verdict(&self, pattern: Pattern) -> String {
        let verdict = |bad: &dyn Fn(&&Point) -> bool| {
            let bad: Vec<String> =
                self.points.iter().filter(bad).map(|point| point.pags.to_string()).collect();
            if bad.is_empty() {
                "met".to_owned()
            } else {
                format!("MISSED with {} PAGs", bad.join(", "))
            }
        };
        let below = |point: &&Point| self.linear(point, pattern) < LINEAR;
        let behind =
            |point: &&Point| rate(&point.fileround, pattern) < rate(&point.striping, pattern);
        format!(
            "\n{}: at least {LINEAR} x min(PAGs, {}) x one PAG: {}; FileRound not below Striping: \
             {}\n",
            pattern.text(),
            self.clients,
            verdict(&below),
            verdict(&behind)
        )
    }

    /// Bars: rates by that of one PAG under FileRound.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn svg(&self) -> Res<String> {
        let panel = |pattern: Pattern| {
            let group = |point: &Point| {
                let values = [&point.fileround, &point.striping];
                let values = values.map(|took| Some(self.by_one(took, pattern)));
                (point.pags.to_string(), values.to_vec())
            };
            let title = format!("{}: throughput / that of one PAG, by PAGs", pattern.text());
            let groups = self.points.iter().map(group).collect();
            Panel { title, full: f64::from(PAGS), groups }
        };
        svg(&["FileRound", "Striping"], 1, &MEASURED.map(panel))
    }

    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::chart::bars;
    use super::*;

    #[test]
    fn second_pag_raises_the_throughput() {
        let figure = F2::measure(Files { files: 3, bytes: 2 << 20 }, 2, &mut |_| ()).unwrap();
        for pattern in MEASURED {
            assert!(figure.linear(&figure.points[1], pattern) > 0.6, "{}", figure.text());
        }
        assert_eq!(bars(&figure.svg().unwrap(), 2).len(), 2 * 2 * 2);
        assert!(figure.to_json().contains("\"pags\": 2"));
    }

    #[test]
    fn verdict_names_the_points_that_are_missed() {
        let took = |rate: u64| {
            let of = |pattern| Took {
                pattern,
                bytes: rate,
                nanos: 1_000_000_000,
                busiest: 1.0,
                requests: 1,
                server_nanos: 1,
            };
            MEASURED.map(of).to_vec()
        };
        let point =
            |pags, whole, parts| Point { pags, fileround: took(whole), striping: took(parts) };
        let with = |whole, parts| {
            let points = vec![point(1, 100, 100), point(12, whole, parts)];
            F2 { version: 1, clients: 10, files: Files { files: 1, bytes: 1 << 20 }, points }.text()
        };
        assert!(!with(900, 900).contains("MISSED"), "{}", with(900, 900));
        assert_eq!(with(899, 100).matches("MISSED with 12 PAGs").count(), 2);
        assert_eq!(with(950, 960).matches("MISSED with 12 PAGs").count(), 2);
    }
}
