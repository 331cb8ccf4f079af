//! F12: the length of a client's commit queue, and the tasks that follow it, over time (000
//! Fig. 6).
//!
//! The queue has the files of the first client that are not committed; all clients do the same.

use bench::scripts::filebench::Personality;
use serde::Serialize;

use super::curves::{self, Curves};
use super::f10::{BTIO, XCDN_SMALL, bt_plan};
use crate::loads::{CLIENTS, Load, Queue, measure};
use crate::shared;
use crate::switches::Switches;
use bench::Res;
use bench::report::Columns;
use proto::commit::TASKS_MAX;

/// The share of the samples that the paper calls "almost all the time".
const MOST: f64 = 0.8;

/// How long the loads are.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct Size {
    /// Virtual milliseconds of fileserver and of varmail, and of webproxy.
    pub millis: u64,
    /// See `millis`.
    pub proxy_millis: u64,
    /// Operations of each process of xcdn.
    pub ops: u64,
    /// Dumps of BT-IO.
    pub dumps: u64,
}

impl Size {
    /// That of the figure.
    pub const PAPERS: Size = Size { millis: 10_000, proxy_millis: 3_000, ops: 128, dumps: 60 };
}

/// A run.
#[derive(Clone, Serialize, Debug)]
pub struct Run {
    /// What was done.
    pub load: &'static str,
    /// The first client's queue after each tenth of a second.
    pub samples: Vec<Queue>,
}

/// What the paper says of a load.
struct Paper {
    load: &'static str,
    text: &'static str,
    /// Does the run look so?
    holds: fn(&Run) -> bool,
}

/// The loads, in the order of the figure.
const PAPER: [Paper; 5] = [
    Paper {
        load: "varmail",
        text: "queue 20 to 40, 1 to 5 tasks",
        holds: |run| (20..=40).contains(&run.queue(50)) && run.tasks(95) <= 5,
    },
    Paper {
        load: "fileserver",
        text: "9 tasks almost always",
        holds: |run| run.at_most_tasks() >= MOST,
    },
    Paper {
        load: "webproxy",
        text: "queue about 50, over 400 at the end",
        holds: |run| (40..=60).contains(&run.queue(50)) && run.queue(100) > 400,
    },
    Paper {
        load: XCDN_SMALL,
        text: "9 tasks almost always",
        holds: |run| run.at_most_tasks() >= MOST,
    },
    Paper { load: BTIO, text: "1 task", holds: |run| run.tasks(100) == 1 },
];

/// See the module.
#[derive(Serialize, Debug)]
pub struct F12 {
    version: u32,
    clients: usize,
    size: Size,
    runs: Vec<Run>,
}

impl Run {
    /// So many percent of the samples have a queue of at most this length.
    fn queue(&self, percent: usize) -> usize {
        at_percent(self.samples.iter().map(|sample| sample.files), percent)
    }

    /// The same of the tasks.
    fn tasks(&self, percent: usize) -> usize {
        at_percent(self.samples.iter().map(|sample| sample.tasks), percent)
    }

    /// The share of the samples with the maximum of tasks.
    fn at_most_tasks(&self) -> f64 {
        let most = self.samples.iter().filter(|sample| sample.tasks == TASKS_MAX).count();
        most as f64 / self.samples.len().max(1) as f64
    }
}

/// The smallest value that at least so many percent do not exceed; 0, if there is none.
fn at_percent(values: impl Iterator<Item = usize>, percent: usize) -> usize {
    let mut values: Vec<usize> = values.collect();
    values.sort_unstable();
    let at = (values.len() * percent).div_ceil(100).saturating_sub(1);
    values.get(at).copied().unwrap_or(0)
}

fn samples_of(load: &str, size: Size) -> Res<Vec<Queue>> {
    let switches = Switches::default();
    let personality = |personality: Personality, millis| {
        let took = measure(Load::filebench(personality, millis), switches)?;
        Ok(took.queue_over_time)
    };
    match load {
        "varmail" => personality(Personality::Varmail, size.millis),
        "fileserver" => personality(Personality::Fileserver, size.millis),
        "webproxy" => personality(Personality::Webproxy, size.proxy_millis),
        XCDN_SMALL => Ok(measure(Load::xcdn(32 << 10, size.ops), switches)?.queue_over_time),
        _ => shared::watch(&bt_plan(size.dumps, switches), Queue::of).map(|(_, samples)| samples),
    }
}

impl F12 {
    /// Measures it.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn measure(size: Size, progress: &mut dyn FnMut(&str)) -> Res<F12> {
        let mut runs = Vec::new();
        for Paper { load, .. } in PAPER {
            let run = Run { load, samples: samples_of(load, size)? };
            let (queue, tasks) = (run.queue(50), run.tasks(50));
            progress(&format!("F12, {load}: a queue of {queue}, {tasks} tasks, by the median"));
            runs.push(run);
        }
        Ok(F12 { version: 1, clients: CLIENTS, size, runs })
    }

    /// Paper against measured, for people.
    pub fn text(&self) -> String {
        let head = [
            "load",
            "seconds",
            "queue 5 %",
            "50 %",
            "95 %",
            "most",
            "tasks 50 %",
            "most",
            "at 9",
            "dirty MiB",
        ];
        let mut columns = Columns::new(&head);
        for run in &self.runs {
            let mut row =
                vec![run.load.to_owned(), format!("{:.1}", run.samples.len() as f64 / 10.0)];
            row.extend([5, 50, 95, 100].map(|percent| run.queue(percent).to_string()));
            row.extend([50, 100].map(|percent| run.tasks(percent).to_string()));
            row.push(format!("{:.2}", run.at_most_tasks()));
            let dirty = run.samples.iter().map(|sample| sample.dirty_bytes).max();
            row.push(format!("{:.1}", dirty.unwrap_or(0) as f64 / f64::from(1 << 20)));
            columns.row(row);
        }
        let mut verdict = String::from("\n");
        for (run, paper) in self.runs.iter().zip(PAPER) {
            let met = if (paper.holds)(run) { "met" } else { "MISSED" };
            verdict += &format!("{} (paper: {}): {met}\n", run.load, paper.text);
        }
        format!(
            "F12: files that the first of {} clients has not committed, tasks that commit, and most \
             dirty bytes, by tenths of a second\n\n{}{verdict}",
            self.clients,
            columns.text(),
        )
    }

    /// Lines: for each load the queue, and beside it the tasks.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn svg(&self) -> Res<String> {
        let panels = |run: &Run| {
            let line = |of: fn(&Queue) -> usize| -> Vec<f64> {
                run.samples.iter().map(|sample| of(sample) as f64).collect()
            };
            let full = (run.queue(100) as f64 * 1.1).max(10.0);
            let title = format!("{}: files not committed, by tenths of a second", run.load);
            let queue = Curves { title, full, lines: vec![Some(line(|one| one.files)), None] };
            let title = format!("{}: tasks", run.load);
            let lines = vec![None, Some(line(|one| one.tasks))];
            [queue, Curves { title, full: TASKS_MAX as f64 + 1.0, lines }]
        };
        let panels: Vec<Curves> = self.runs.iter().flat_map(panels).collect();
        curves::svg(&["queue", "tasks"], &panels)
    }

    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(load: &'static str, samples: &[(usize, usize)]) -> Run {
        let sample =
            |&(files, tasks): &(usize, usize)| Queue { files, tasks, degree: 6, dirty_bytes: 0 };
        Run { load, samples: samples.iter().map(sample).collect() }
    }

    #[test]
    fn verdict_compares_shapes_with_the_papers() {
        let figure = |runs| F12 { version: 1, clients: CLIENTS, size: Size::PAPERS, runs };
        let papers = [
            run("varmail", &[(30, 3), (25, 2), (35, 4), (200, 4)]),
            run("fileserver", &[(500, 9); 10]),
            run("webproxy", &[(50, 5), (50, 5), (55, 5), (450, 9)]),
            run(XCDN_SMALL, &[(120, 9); 10]),
            run(BTIO, &[(1, 1); 10]),
        ];
        let others = [
            run("varmail", &[(3, 1); 4]),
            run("fileserver", &[(50, 5); 10]),
            run("webproxy", &[(50, 5); 4]),
            run(XCDN_SMALL, &[(12, 9), (12, 8)]),
            run(BTIO, &[(1, 1), (30, 3)]),
        ];
        let missed = |runs: [Run; 5]| figure(runs.to_vec()).text().matches("MISSED").count();
        assert_eq!(missed(papers.clone()), 0);
        assert_eq!(missed(others), 5);
        let svg = figure(papers.to_vec()).svg().unwrap();
        for load in PAPER.map(|paper| paper.load) {
            assert!(svg.contains(&format!("{load}: tasks")), "{load}: {svg}");
        }
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let of = |values: &[usize], percent| at_percent(values.iter().copied(), percent);
        assert_eq!([0, 5, 50, 100].map(|percent| of(&[4, 1, 3, 2], percent)), [1, 1, 2, 4]);
        assert_eq!(of(&[], 50), 0);
    }

    #[test]
    fn xcdn_has_samples_of_a_queue_that_fills_and_ends() {
        let size = Size { ops: 24, ..Size::PAPERS };
        let run = Run { load: XCDN_SMALL, samples: samples_of(XCDN_SMALL, size).unwrap() };
        assert!(run.queue(100) > 0, "{run:?}");
        assert_eq!(run.samples.last().map(|last| last.files), Some(0), "{run:?}");
        let possible = |sample: &Queue| (1..=TASKS_MAX).contains(&sample.tasks);
        assert!(run.samples.iter().all(possible), "{run:?}");
    }

    #[test]
    fn bt_has_one_file_to_commit_at_most() {
        let size = Size { dumps: 9, ..Size::PAPERS };
        let run = Run { load: BTIO, samples: samples_of(BTIO, size).unwrap() };
        assert!(!run.samples.is_empty() && run.queue(100) <= 1, "{run:?}");
        assert_eq!(run.tasks(100), 1, "{run:?}");
    }
}
