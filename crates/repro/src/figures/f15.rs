//! F15: a program that writes checkpoints, with synchronous and asynchronous commits: run time,
//! bandwidth, and the sizes of the devices' requests (001, Fig. 9 to 11).

use serde::Serialize;
use types::Duration;

use super::chart::{Panel, svg};
use crate::gtc::{Shape, Took, run};
use bench::Res;
use bench::report::Columns;

/// The paper's runs: processes, and the percentage of the time that synchronous I/O takes.
const RUNS: [(usize, u64); 2] = [(64, 6), (1344, 70)];
/// What the paper gains in run time, in percent.
const GAINS: [f64; 2] = [3.3, 49.5];
/// What it gains in mean and in median bandwidth.
const BANDWIDTH: [f64; 2] = [56.3, 64.8];
/// The most percent of small requests with asynchronous commits; the paper has 26.5.
const SMALL: f64 = 10.0;
/// How many percent fewer journal writes there are at least; the paper has 37.
const JOURNAL: f64 = 90.0;
/// Requests below this power of two are small: 128 KiB.
const SMALL_POWER: u32 = 17;
/// The power of two of the least request, a block.
const LEAST_POWER: u32 = 12;
/// That of the largest one, 1 MiB.
const MOST_POWER: u32 = 20;

/// A figure of a run.
type Measure = fn(&Took) -> f64;

/// How much is written.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct Size {
    /// Records of 1 MiB in a checkpoint.
    pub records: u64,
    /// Checkpoints.
    pub checkpoints: u64,
}

impl Size {
    /// That of the figure: a multiple of the processes of both runs.
    pub const PAPERS: Size = Size { records: 5376, checkpoints: 3 };
}

/// A program, run in both ways.
#[derive(Clone, Serialize, Debug)]
pub struct Run {
    /// Processes.
    pub processes: usize,
    /// Percent of the time that I/O takes with synchronous commits.
    pub io_percent: u64,
    /// Nanoseconds of computing before each checkpoint.
    pub compute_nanos: u64,
    /// With synchronous commits, and with asynchronous ones.
    pub took: [Took; 2],
}

impl Run {
    fn measure(size: Size, processes: usize, io_percent: u64) -> Res<Run> {
        let Size { records, checkpoints } = size;
        let shape = Shape { processes, records, checkpoints };
        // As much computing as gives the paper's share of I/O.
        let bare = run(shape, Duration::ZERO, false)?;
        let compute_nanos = bare.io_nanos / checkpoints * (100 - io_percent) / io_percent;
        let compute = Duration::from_nanos(compute_nanos);
        let took = [run(shape, compute, false)?, run(shape, compute, true)?];
        Ok(Run { processes, io_percent, compute_nanos, took })
    }

    /// Percent less run time.
    fn gain(&self) -> f64 {
        100.0 * (1.0 - self.took[1].nanos as f64 / self.took[0].nanos as f64)
    }

    /// Percent more bandwidth.
    fn more(&self, of: Measure) -> f64 {
        100.0 * (of(&self.took[1]) / of(&self.took[0]) - 1.0)
    }

    /// Percent fewer journal writes.
    fn fewer(&self) -> f64 {
        100.0 * (1.0 - self.took[1].journal_writes as f64 / self.took[0].journal_writes as f64)
    }
}

/// See the module.
#[derive(Serialize, Debug)]
pub struct F15 {
    version: u32,
    size: Size,
    runs: Vec<Run>,
}

impl F15 {
    /// Measures it.
    ///
    /// # Errors
    /// Those of the targets.
    pub fn measure(size: Size, progress: &mut dyn FnMut(&str)) -> Res<F15> {
        let mut runs = Vec::new();
        for (processes, io_percent) in RUNS {
            let run = Run::measure(size, processes, io_percent)?;
            progress(&format!("F15, {processes} processes: {:.1} % less run time", run.gain()));
            runs.push(run);
        }
        Ok(F15 { version: 1, size, runs })
    }

    /// Paper against measured, for people.
    pub fn text(&self) -> String {
        let head = [
            "processes",
            "commits",
            "seconds",
            "% in I/O",
            "MB/s mean",
            "median",
            "requests",
            "% below 128 KiB",
            "journal writes",
        ];
        let mut columns = Columns::new(&head);
        for run in &self.runs {
            for (name, took) in ["synchronous", "asynchronous"].iter().zip(&run.took) {
                columns.row(vec![
                    run.processes.to_string(),
                    (*name).to_owned(),
                    format!("{:.2}", took.nanos as f64 / 1e9),
                    format!("{:.1}", 100.0 * took.io_nanos as f64 / took.nanos as f64),
                    format!("{:.1}", took.mean()),
                    format!("{:.1}", took.median()),
                    took.requests.values().sum::<u64>().to_string(),
                    format!("{:.2}", took.share(0, SMALL_POWER)),
                    took.journal_writes.to_string(),
                ]);
            }
        }
        format!(
            "F15: {} checkpoints of {} records of 1 MiB to the couplet of F14, journals internal \
             (paper: requests below 127 KB 64 to 26.5 %, journal writes -37 %)\n\n{}{}",
            self.size.checkpoints,
            self.size.records,
            columns.text(),
            self.verdict()
        )
    }

    fn verdict(&self) -> String {
        let met = |good: bool| if good { "met" } else { "MISSED" };
        let mut text = "\n".to_owned();
        for (run, paper) in self.runs.iter().zip(GAINS) {
            text += &format!(
                "{} processes, {} % I/O: run time {:+.1} % (paper {:+.1}; goal more: {})\n",
                run.processes,
                run.io_percent,
                -run.gain(),
                -paper,
                met(run.gain() > paper)
            );
            let means: [(&str, Measure); 2] = [("mean", Took::mean), ("median", Took::median)];
            for ((name, of), paper) in means.into_iter().zip(BANDWIDTH) {
                let more = run.more(of);
                text += &format!(
                    "{} processes: {name} bandwidth {more:+.1} % (paper {paper:+.1}; goal more: {})\n",
                    run.processes,
                    met(more > paper)
                );
            }
            let small = run.took.each_ref().map(|took| took.share(0, SMALL_POWER));
            text += &format!(
                "{} processes: small requests {:.1} to {:.1} % (goal at most {SMALL}: {}), journal \
                 writes {:+.1} % (goal {:+.1}: {})\n",
                run.processes,
                small[0],
                small[1],
                met(small[1] <= SMALL),
                -run.fewer(),
                -JOURNAL,
                met(run.fewer() >= JOURNAL)
            );
        }
        text
    }

    /// Bars: run time, then the sizes of requests, large and small.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn svg(&self) -> Res<String> {
        let mut panels = Vec::new();
        let times = self.runs.iter().map(|run| {
            let full = run.took[0].nanos as f64;
            let shares = run.took.iter().map(|took| Some(100.0 * took.nanos as f64 / full));
            (format!("{} processes", run.processes), shares.collect())
        });
        panels.push(Panel {
            title: "run time, % of that with synchronous commits".into(),
            full: 110.0,
            groups: times.collect(),
        });
        let kib = |power: u32| (1u64 << power) >> 10;
        let each = |powers: std::ops::Range<u32>| powers.map(|power| (power, power + 1));
        for run in &self.runs {
            let group = |(from, to): (u32, u32)| {
                let shares = run.took.iter().map(|took| Some(took.share(from, to)));
                (format!("{}-{}", kib(from), kib(to)), shares.collect())
            };
            let small = (LEAST_POWER, SMALL_POWER);
            let coarse = std::iter::once(small).chain(each(SMALL_POWER..MOST_POWER + 1));
            let fine: Vec<_> = each(LEAST_POWER..SMALL_POWER).map(group).collect();
            for (what, groups) in [("requests", coarse.map(group).collect()), ("small ones", fine)]
            {
                panels.push(Panel {
                    title: format!("{} processes: % of all requests, {what} by KiB", run.processes),
                    full: 100.0,
                    groups,
                });
            }
        }
        svg(&["synchronous", "asynchronous"], 1, &panels)
    }

    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn took(nanos: u64, rate: f64, small: u64, journal_writes: u64) -> Took {
        let requests = BTreeMap::from([(12, small), (20, 100)]);
        Took { nanos, io_nanos: nanos / 2, rates: vec![rate; 3], requests, journal_writes }
    }

    #[test]
    fn figure_names_what_it_misses() {
        let figure = |asynchronous: Took| {
            let runs = RUNS.map(|(processes, io_percent)| Run {
                processes,
                io_percent,
                compute_nanos: 1,
                took: [took(1000, 1.0, 100, 100), asynchronous.clone()],
            });
            F15 { version: 1, size: Size::PAPERS, runs: runs.to_vec() }
        };
        let missed = |figure: &F15| figure.text().matches("MISSED").count();
        let good = figure(took(400, 1.7, 10, 9));
        assert_eq!(missed(&good), 0, "{}", good.text());
        assert!(good.svg().unwrap().contains("1344 processes"));
        assert_eq!(missed(&figure(took(990, 1.2, 50, 50))), 10);
    }
}
