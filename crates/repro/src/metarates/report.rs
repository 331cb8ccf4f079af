//! Results as text and as JSON.
//!
//! Invariant: ratios are of accesses per operation, those of the log not among them.

use serde::Serialize;

use super::{Phase, Run, Work};
use crate::layouts::{Contender, Place};
use bench::report::Columns;

/// What the embedded directories should have at most, of the traditional layout's accesses.
pub const GOALS: [(Work, f64); 3] =
    [(Work::Create, 0.5), (Work::ReaddirStat, 0.5), (Work::Delete, 0.8)];
/// What a heading says of figures with a price in them.
pub const PRICED: &str =
    ", one processor of the server at its price in virtual time (`repro price`)";
/// How far the traditional layout may be from ext4 and still count.
const NEAR: f64 = 0.15;

/// All runs.
#[derive(Clone, Serialize, Debug)]
pub struct Report {
    version: u32,
    runs: Vec<Run>,
}

impl Report {
    /// Of these runs.
    pub fn new(runs: Vec<Run>) -> Report {
        Report { version: 1, runs }
    }

    /// The runs.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// The phase of a contender.
    pub fn phase(
        &self,
        place: Place,
        contender: Contender,
        files: u64,
        work: Work,
    ) -> Option<&Phase> {
        let run = self.runs.iter().find(|run| {
            run.place == place && run.contender == contender && run.shape.files == files
        })?;
        run.phases.iter().find(|phase| phase.work == work)
    }

    /// For people: for each number of files a table of accesses and rates.
    pub fn text(&self) -> String {
        let mut files: Vec<u64> = self.runs.iter().map(|run| run.shape.files).collect();
        files.dedup();
        let mut text = String::new();
        for files in files {
            for place in [Place::Virtual, Place::Loop] {
                text += &self.table(place, files);
            }
            text += &self.redo(files);
            text += &self.goals(files);
            text += &self.fairness(files);
        }
        text
    }

    fn redo(&self, files: u64) -> String {
        let mut text = String::new();
        for run in self.runs.iter().filter(|run| run.shape.files == files) {
            if let Some(redo) = run.redo {
                text += &format!(
                    "{}: opened in {:.2} s after a crash with {} MiB of log\n",
                    run.contender.text(),
                    redo.nanos as f64 / 1e9,
                    redo.log_bytes >> 20
                );
            }
        }
        if text.is_empty() { text } else { format!("\n{text}") }
    }

    /// Accesses per operation of one contender by those of another.
    pub fn ratio(
        &self,
        (place, contender): (Place, Contender),
        (other_place, other): (Place, Contender),
        files: u64,
        work: Work,
    ) -> Option<f64> {
        let ours = self.phase(place, contender, files, work)?;
        Some(ours.accesses_each() / self.phase(other_place, other, files, work)?.accesses_each())
    }

    /// The embedded directories' accesses beside what they should have at most.
    fn goals(&self, files: u64) -> String {
        let mut columns =
            Columns::new(&["embedded, accesses", "x traditional", "x hashed", "goal", ""]);
        for (work, goal) in GOALS {
            let of = |other| {
                let at = Place::Virtual;
                self.ratio((at, Contender::Embedded), (at, other), files, work)
            };
            let Some(linear) = of(Contender::Linear) else { return String::new() };
            let met = if linear <= goal { "met" } else { "MISSED" };
            columns.row(vec![
                work.text().into(),
                format!("{linear:.2}"),
                of(Contender::Hashed).map_or("-".into(), |hashed| format!("{hashed:.2}")),
                format!("{goal:.2}"),
                met.into(),
            ]);
        }
        format!("\n{}", columns.text())
    }

    /// Is the traditional layout what ext4 is?
    fn fairness(&self, files: u64) -> String {
        let mut columns = Columns::new(&["accesses by ext4's", "linear", "", "hashed", ""]);
        let mut compared = false;
        for work in Work::ALL {
            let mut cells = vec![work.text().to_owned()];
            for contender in [Contender::Linear, Contender::Hashed] {
                let real = contender.real().map(|real| (Place::Loop, real));
                let ratio = real
                    .and_then(|real| self.ratio((Place::Virtual, contender), real, files, work));
                let Some(ratio) = ratio else {
                    cells.extend(["-".into(), String::new()]);
                    continue;
                };
                compared = true;
                let near = (ratio - 1.0).abs() <= NEAR;
                let verdict = if near { "within 15 %" } else { "BEYOND 15 %" };
                cells.extend([format!("{ratio:.2}"), verdict.into()]);
            }
            columns.row(cells);
        }
        if !compared {
            return String::new();
        }
        format!("\nThe traditional layout on the virtual disk beside ext4:\n\n{}", columns.text())
    }

    fn table(&self, place: Place, files: u64) -> String {
        let runs: Vec<&Run> =
            self.runs.iter().filter(|run| run.place == place && run.shape.files == files).collect();
        let Some(first) = runs.first() else { return String::new() };
        let on = place.text();
        let priced = runs.iter().flat_map(|run| &run.phases).any(|it| it.processor.is_some());
        let mut titles = vec![
            "work",
            "layout",
            "ops/s",
            "answered/s",
            "reads",
            "home",
            "log",
            "accesses/1000 ops",
            "x",
            "KiB read",
            "KiB home",
            "log B/op",
        ];
        titles.extend(priced.then_some("CPU us/op"));
        let mut columns = Columns::new(&titles);
        for work in Work::ALL {
            let base = self.phase(place, Contender::Linear, files, work);
            for run in &runs {
                let Some(phase) = run.phases.iter().find(|phase| phase.work == work) else {
                    continue;
                };
                columns.row(row(run.contender, phase, base));
            }
        }
        let cpu = if priced { PRICED } else { "" };
        format!(
            "\n{} processes, {files} files each, on {on}, {}{cpu}:\n\n{}",
            first.shape.tasks(),
            if first.shape.settings.durable {
                "each change durable"
            } else {
                "changes durable later"
            },
            columns.text()
        )
    }
}

fn row(contender: Contender, phase: &Phase, base: Option<&Phase>) -> Vec<String> {
    let counts = &phase.counts;
    let each = |count: u64| count as f64 / phase.ops.max(1) as f64;
    let accesses = 1000.0 * phase.accesses_each();
    let ratio = base.map(|base| phase.accesses_each() / base.accesses_each());
    let processor = phase.processor.map(|nanos| format!("{:.1}", each(nanos) / 1000.0));
    let mut cells = vec![
        phase.work.text().into(),
        contender.text().into(),
        format!("{:.0}", phase.rate()),
        format!("{:.0}", phase.ops as f64 / (phase.answered.max(1) as f64 / 1e9)),
        counts.reads.to_string(),
        counts.home.to_string(),
        counts.log.to_string(),
        format!("{accesses:.2}"),
        ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")),
        (counts.read_bytes >> 10).to_string(),
        (counts.home_bytes >> 10).to_string(),
        format!("{:.0}", each(counts.log_bytes)),
    ];
    cells.extend(processor);
    cells
}
