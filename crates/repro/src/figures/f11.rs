//! F11: I/O requests that are joined, and seeks over time, under xcdn (000 Fig. 4 and 5).

use bench::scripts::xcdn::SIZES_KIB;
use serde::Serialize;

use super::chart::{Panel, svg};
use super::curves::{self, Curves};
use crate::loads::{DELAYED, DELEGATED, Load, SYNCHRONOUS, Setting, Took, measure};
use bench::Res;
use bench::report::Columns;

/// What delegation multiplies the merge ratio by, at least (000 §V.D: 2.8 to 5.9).
const GAIN: f64 = 2.8;
/// What counts as seeks that have vanished: so much of them is left (000 Fig. 5c: "few").
const LEFT: f64 = 0.1;
/// Sizes whose seeks the paper shows over time, in KiB.
const SHOWN: [u64; 2] = [32, 1024];
/// The seeks of a tenth of a second at the top of a panel.
const SEEKS: f64 = 60.0;

/// How long the loads are.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct Size {
    /// KiB that each process of xcdn writes or reads.
    pub kib: u64,
}

impl Size {
    /// That of the figure.
    pub const PAPERS: Size = Size { kib: 16 << 10 };

    fn ops(self, object_kib: u64) -> u64 {
        (self.kib / object_kib).clamp(1, 128)
    }
}

/// A run.
#[derive(Clone, Serialize, Debug)]
pub struct Run {
    /// KiB of an object.
    pub kib: u64,
    /// With which setting.
    pub setting: &'static str,
    /// What it took.
    pub took: Took,
}

/// See the module.
#[derive(Serialize, Debug)]
pub struct F11 {
    version: u32,
    size: Size,
    runs: Vec<Run>,
}

impl F11 {
    /// Measures it with objects of these sizes.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn measure(size: Size, sizes: &[u64], progress: &mut dyn FnMut(&str)) -> Res<F11> {
        let mut runs = Vec::new();
        for &kib in sizes {
            for setting in Setting::ALL {
                let setting = setting();
                let load = Load::xcdn(kib << 10, size.ops(kib));
                let took = measure(load, setting.switches)?;
                let ratio = took.merge_ratio();
                progress(&format!("F11, {kib} KiB, {}: {ratio:.3} joined", setting.name));
                runs.push(Run { kib, setting: setting.name, took });
            }
        }
        Ok(F11 { version: 1, size, runs })
    }

    fn took(&self, kib: u64, setting: &str) -> Option<&Took> {
        let run = self.runs.iter().find(|run| run.kib == kib && run.setting == setting);
        run.map(|run| &run.took)
    }

    fn ratio(&self, kib: u64, setting: &str) -> Option<f64> {
        self.took(kib, setting).map(Took::merge_ratio)
    }

    /// What delegation multiplies the merge ratio by, if anything is joined without it.
    fn gain(&self, kib: u64) -> Option<f64> {
        let delayed = self.ratio(kib, DELAYED).filter(|&ratio| ratio > 0.0)?;
        Some(self.ratio(kib, DELEGATED)? / delayed)
    }

    /// Paper against measured, for people.
    pub fn text(&self) -> String {
        let head = [
            "object KiB",
            "setting",
            "runs offered",
            "sent",
            "joined",
            "x delayed",
            "dispatched",
            "reads of them",
            "seeks",
            "of dispatched",
        ];
        let mut columns = Columns::new(&head);
        for Run { kib, setting, took } in &self.runs {
            let gain = self.gain(*kib).filter(|_| *setting == DELEGATED);
            columns.row(vec![
                kib.to_string(),
                (*setting).to_owned(),
                took.offered.to_string(),
                took.sent.to_string(),
                format!("{:.3}", took.merge_ratio()),
                gain.map_or("-".into(), |gain| format!("{gain:.2}")),
                took.dispatched.to_string(),
                took.disk_reads.to_string(),
                took.seeks.to_string(),
                format!("{:.2}", took.seeks as f64 / took.dispatched.max(1) as f64),
            ]);
        }
        format!(
            "F11: xcdn on 7 clients: runs that a client's queue joined, of those offered; seeks of \
             the data disk (paper: delegation joins 2.8 to 5.9 times as many, without delay none)\
             \n\n{}{}",
            columns.text(),
            self.verdict()
        )
    }

    fn verdict(&self) -> String {
        let mut text = String::from("\n");
        let met = |good: bool| if good { "met" } else { "MISSED" };
        for kib in SIZES_KIB {
            let Some(synchronous) = self.ratio(kib, SYNCHRONOUS) else { continue };
            let gain = self.gain(kib);
            let shown = gain.map_or("nothing is joined".to_owned(), |gain| format!("{gain:.2}"));
            text += &format!(
                "{kib} KiB: delegation by delayed alone: {shown} (goal {GAIN}: {}); synchronous \
                 {synchronous:.3} (goal 0: {})\n",
                met(gain.is_some_and(|gain| gain >= GAIN)),
                met(synchronous < 0.001)
            );
        }
        for kib in SHOWN {
            let seeks = |setting| self.took(kib, setting).map(|took| took.seeks as f64);
            let [Some(synchronous), Some(delegated)] = [SYNCHRONOUS, DELEGATED].map(seeks) else {
                continue;
            };
            let left = delegated / synchronous.max(1.0);
            text += &format!(
                "{kib} KiB: seeks with delegation by synchronous: {left:.2} (goal {LEFT}: {})\n",
                met(left <= LEFT)
            );
        }
        text
    }

    /// Bars: the merge ratio by size.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn svg(&self) -> Res<String> {
        let settings = [SYNCHRONOUS, DELAYED, DELEGATED];
        let group = |kib: u64| {
            let values = settings.map(|setting| self.ratio(kib, setting));
            (format!("{kib} KiB"), values.to_vec())
        };
        let groups = SIZES_KIB.map(group).to_vec();
        svg(&settings, 1, &[Panel { title: "I/O merge ratio".to_owned(), full: 1.0, groups }])
    }

    /// Lines: the seeks in each tenth of a second.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn seeks_svg(&self) -> Res<String> {
        let settings = [SYNCHRONOUS, DELAYED, DELEGATED];
        let panel = |kib: u64| {
            let line = |setting| {
                let took = self.took(kib, setting)?;
                Some(took.seeks_over_time.iter().map(|&seeks| seeks as f64).collect())
            };
            let title = format!("seeks in a tenth of a second, by tenths: {kib} KiB");
            Curves { title, full: SEEKS, lines: settings.map(line).to_vec() }
        };
        curves::svg(&settings, &SHOWN.map(panel))
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
    fn verdict_and_pictures_show_every_size_and_setting() {
        let took = |joined: u64| Took {
            offered: 1000,
            sent: 1000 - joined,
            seeks: if joined > 200 { 6 } else { 100 },
            seeks_over_time: vec![3, 2, 1],
            ..Took::default()
        };
        let figure = |synchronous, delayed, delegated| F11 {
            version: 1,
            size: Size::PAPERS,
            runs: SIZES_KIB
                .into_iter()
                .flat_map(|kib| {
                    [(SYNCHRONOUS, synchronous), (DELAYED, delayed), (DELEGATED, delegated)]
                        .map(|(setting, joined)| Run { kib, setting, took: took(joined) })
                })
                .collect(),
        };
        let missed = |figure: &F11| figure.text().matches("MISSED").count();
        assert_eq!(missed(&figure(0, 100, 280)), 0);
        assert_eq!(missed(&figure(0, 100, 270)), SIZES_KIB.len());
        assert_eq!(missed(&figure(5, 100, 270)), 2 * SIZES_KIB.len());
        assert_eq!(missed(&figure(0, 0, 0)), SIZES_KIB.len() + SHOWN.len());
        assert!(!figure(0, 0, 0).text().contains("NaN"));
        let figure = figure(0, 100, 590);
        assert_eq!(bars(&figure.svg().unwrap(), 3).len(), 3 * SIZES_KIB.len());
        let seeks = figure.seeks_svg().unwrap();
        let lines = seeks.lines().filter(|line| line.starts_with("<polyline")).count();
        assert!(lines >= 3 * SHOWN.len() && seeks.contains("1024 KiB"), "{seeks}");
    }

    #[test]
    fn delayed_commit_joins_runs_and_delegation_joins_more() {
        let figure = F11::measure(Size { kib: 512 }, &[32], &mut |_| ()).unwrap();
        let ratios = [SYNCHRONOUS, DELAYED, DELEGATED].map(|it| figure.ratio(32, it).unwrap());
        assert!(ratios.is_sorted() && ratios[2] > 0.1 && ratios[2] < 1.0, "{ratios:?}");
        for Run { took, .. } in &figure.runs {
            assert!(took.sent <= took.offered && took.seeks <= took.dispatched, "{took:?}");
            assert!(took.disk_reads > 0 && took.disk_reads <= took.reads.all, "{took:?}");
            assert!(took.seeks_over_time.iter().sum::<u64>() >= took.seeks, "{took:?}");
        }
        assert!(figure.gain(32).unwrap() > 1.0 && figure.text().contains("goal 2.8"));
    }
}
