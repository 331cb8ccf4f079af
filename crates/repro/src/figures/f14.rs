//! F14: bandwidth of object writes by threads, with journals inside and outside, and with
//! asynchronous commits, by the raw bandwidth (001, Fig. 6 to 8, Table 1).

mod xdd;

use serde::Serialize;

use super::curves::{self, Curves};
use crate::couplet::{Journal, Setting, TARGETS, Took, survey};
use bench::report::Columns;
use bench::{Res, failed};
use xdd::Xdd;

/// Threads of all targets together.
const THREADS: [usize; 6] = [16, 32, 64, 128, 256, 512];
/// Ties: so near are equal rates.
const TIE: f64 = 0.03;
/// What asynchronous commits reach of the raw bandwidth, at the largest number of threads.
const ASYNCHRONOUS: f64 = 0.95;
/// IOR on 28 clients (001, section 3.3): percent of raw in the paper, and what counts as the same.
const IOR: f64 = 24.9;
/// See [`IOR`].
const NEAR: f64 = 5.0;
/// Threads beyond which journals on SAS disks lose (001, section 4).
const SAS_FALLS: usize = 256;
/// How much faster they make a client with one request in flight.
const ALONE: f64 = 5.0;

const SETTINGS: [(&str, Setting); 5] = [
    ("internal", Setting { journal: Journal::Internal, asynchronous: false }),
    ("SAS", Setting { journal: Journal::Sas, asynchronous: false }),
    ("SSD", Setting { journal: Journal::Ssd, asynchronous: false }),
    ("asynchronous", Setting { journal: Journal::Internal, asynchronous: true }),
    ("asynchronous, SSD", Setting { journal: Journal::Ssd, asynchronous: true }),
];

/// How much is written.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct Size {
    /// Records of 1 MiB for each target.
    pub records: u64,
}

impl Size {
    /// That of the figure.
    pub const PAPERS: Size = Size { records: 96 };
}

/// A run.
#[derive(Clone, Copy, Serialize, Debug)]
pub struct Run {
    /// Which setting.
    pub setting: &'static str,
    /// Threads of all targets.
    pub threads: usize,
    /// What it took.
    pub took: Took,
}

/// See the module.
#[derive(Serialize, Debug)]
pub struct F14 {
    version: u32,
    size: Size,
    /// Table 1: the tiers alone.
    xdd: Vec<Xdd>,
    /// Writes of 1 MiB to all tiers, in sequence: one of `xdd`.
    raw: Took,
    raw_random: Took,
    runs: Vec<Run>,
    /// One target and one thread, by setting.
    alone: Vec<Run>,
    /// IOR: each target has one client, which has one record in flight.
    ior: Vec<Run>,
}

impl F14 {
    /// Measures it.
    ///
    /// # Errors
    /// Those of the targets.
    pub fn measure(size: Size, progress: &mut dyn FnMut(&str)) -> Res<F14> {
        let xdd = xdd::measure(size.records, progress)?;
        let ends = [false, true].map(|random| xdd::writes(&xdd, random));
        let [Some(sequential), Some(raw_random)] = ends else {
            return failed("F14", "the raw bandwidth is not among the rows of xdd");
        };
        progress(&format!(
            "F14, raw: {:.0} MB/s in sequence, {:.0} at random",
            sequential.rate(),
            raw_random.rate()
        ));
        let (mut runs, mut alone, mut ior) = (Vec::new(), Vec::new(), Vec::new());
        for (name, setting) in SETTINGS {
            for threads in THREADS {
                let took = survey(threads, size.records, setting)?;
                let share = 100.0 * took.rate() / sequential.rate();
                progress(&format!("F14, {name}, {threads} threads: {share:.1} %"));
                runs.push(Run { setting: name, threads, took });
            }
            let took = survey(TARGETS, size.records, setting)?;
            ior.push(Run { setting: name, threads: TARGETS, took });
            let took = survey(1, size.records, setting)?;
            alone.push(Run { setting: name, threads: 1, took });
        }
        Ok(F14 { version: 2, size, xdd, raw: sequential, raw_random, runs, alone, ior })
    }

    /// Percent of the raw bandwidth.
    fn share(&self, setting: &str, threads: usize) -> f64 {
        let mut runs = self.runs.iter();
        let found = runs.find(|run| run.setting == setting && run.threads == threads);
        found.map_or(f64::NAN, |run| 100.0 * run.took.rate() / self.raw.rate())
    }

    fn alone(&self, setting: &str) -> f64 {
        let found = self.alone.iter().find(|run| run.setting == setting);
        found.map_or(f64::NAN, |run| run.took.rate())
    }

    /// Paper against measured, for people.
    pub fn text(&self) -> String {
        let head = [
            "setting",
            "threads",
            "MB/s",
            "% of raw",
            "groups",
            "journal KB per MB",
            "groups per MB",
        ];
        let mut columns = Columns::new(&head);
        for run in self.runs.iter().chain(&self.ior).chain(&self.alone) {
            let took = run.took;
            let mb = took.bytes as f64 / 1e6;
            columns.row(vec![
                run.setting.to_owned(),
                run.threads.to_string(),
                format!("{:.0}", took.rate()),
                format!("{:.1}", 100.0 * took.rate() / self.raw.rate()),
                took.journal_writes.to_string(),
                format!("{:.2}", took.journal_bytes as f64 / 1e3 / mb),
                format!("{:.3}", took.journal_writes as f64 / mb),
            ]);
        }
        format!(
            "F14: records of 1 MiB to {TARGETS} targets; raw {:.0} MB/s in sequence, {:.0} at random \
             (paper: 5608 and 2531; internal journal 24.9 % by IOR, SSD 58.7 %, asynchronous 93 %, \
             with an SSD no more)\n\n{}\n{}{}",
            self.raw.rate(),
            self.raw_random.rate(),
            xdd::text(&self.xdd),
            columns.text(),
            self.verdict()
        )
    }

    /// Are the settings in the paper's order at so many threads? Ties count.
    fn is_ordered(&self, threads: usize) -> bool {
        let [internal, sas, ssd, asynchronous, _] =
            SETTINGS.map(|(name, _)| self.share(name, threads));
        let upto = |less: f64, more: f64| less <= more * (1.0 + TIE);
        upto(internal, sas) && upto(sas, ssd) && upto(ssd, asynchronous)
    }

    /// The paper's order, and what becomes of journals on SAS disks.
    fn order(&self) -> String {
        let met = |good: bool| if good { "met" } else { "MISSED" };
        let most = THREADS[THREADS.len() - 1];
        let [internal, sas, ssd, asynchronous, both] =
            SETTINGS.map(|(name, _)| self.share(name, most));
        let mut text = format!(
            "\nat {most} threads: internal {internal:.1}, SAS {sas:.1}, SSD {ssd:.1}, asynchronous \
             {asynchronous:.1}, with an SSD {both:.1} % (goal: this order, ties within {:.0} %: {})\n",
            100.0 * TIE,
            met(self.is_ordered(most))
        );
        let ordered = THREADS.iter().filter(|threads| self.is_ordered(**threads)).count();
        text += &format!("this order: with {ordered} of {} numbers of threads\n", THREADS.len());
        let fall = sas / self.share("SAS", SAS_FALLS);
        text += &format!(
            "SAS, {most} by {SAS_FALLS} threads: {fall:.3} (goal below 1: {})\n",
            met(fall < 1.0)
        );
        text
    }

    fn verdict(&self) -> String {
        let met = |good: bool| if good { "met" } else { "MISSED" };
        let most = THREADS[THREADS.len() - 1];
        let [internal, .., asynchronous, both] = SETTINGS.map(|(name, _)| name);
        let gain = self.alone(asynchronous) / self.alone(internal);
        let [asynchronous, both] = [asynchronous, both].map(|name| self.share(name, most));
        let mut text = self.order();
        text += &format!(
            "asynchronous: {asynchronous:.1} % (goal {:.0}: {})\n",
            100.0 * ASYNCHRONOUS,
            met(asynchronous >= 100.0 * ASYNCHRONOUS)
        );
        text += &format!(
            "asynchronous with an SSD by asynchronous: {:.3} (goal 1: {})\n",
            both / asynchronous,
            met(both >= asynchronous)
        );
        let ior = self.ior.iter().find(|run| run.setting == internal);
        let ior = ior.map_or(f64::NAN, |run| 100.0 * run.took.rate() / self.raw.rate());
        text += &format!(
            "IOR, a client for each target, internal: {ior:.1} % (paper {IOR}; goal within {NEAR}: {})\n",
            met((ior - IOR).abs() <= NEAR)
        );
        text += &format!(
            "one request in flight, asynchronous by synchronous: {gain:.2} (goal {ALONE}: {})\n",
            met(gain >= ALONE)
        );
        text
    }

    /// Lines: percent of the raw bandwidth by threads, each step twice as many.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn svg(&self) -> Res<String> {
        let line = |setting: &str| {
            Some(THREADS.iter().map(|&threads| self.share(setting, threads)).collect())
        };
        let lines = SETTINGS.iter().map(|(name, _)| line(name)).collect();
        let title = "% of raw, 16 to 512 threads".to_owned();
        let panel = Curves { title, full: 110.0, lines };
        curves::svg(&SETTINGS.map(|(name, _)| name), &[panel])
    }

    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asynchronous_commits_write_fewer_groups_and_are_faster_alone() {
        let alone = |setting| survey(1, 24, setting).unwrap();
        let [internal, .., asynchronous, _] = SETTINGS.map(|(_, setting)| alone(setting));
        assert!(asynchronous.journal_writes < internal.journal_writes / 4, "{asynchronous:?}");
        assert!(asynchronous.rate() > 1.2 * internal.rate(), "{internal:?} {asynchronous:?}");
        assert_eq!(asynchronous.bytes, internal.bytes);
    }

    #[test]
    fn figure_has_every_run_and_names_what_it_misses() {
        let took = |rate: u64| Took {
            bytes: rate * 1_000_000,
            nanos: 1_000_000_000,
            journal_writes: 1,
            journal_bytes: 1,
        };
        let runs = |rates: [u64; 5]| {
            let each = SETTINGS.iter().zip(rates);
            each.flat_map(|((setting, _), rate)| {
                THREADS.map(|threads| Run { setting, threads, took: took(rate) })
            })
            .collect::<Vec<_>>()
        };
        let figure = |rates: [u64; 5], alone: [u64; 5], ior: u64| F14 {
            version: 2,
            size: Size::PAPERS,
            xdd: Vec::new(),
            raw: took(1000),
            raw_random: took(450),
            runs: runs(rates),
            alone: SETTINGS
                .iter()
                .zip(alone)
                .map(|((setting, _), rate)| Run { setting, threads: 1, took: took(rate) })
                .collect(),
            ior: vec![Run { setting: SETTINGS[0].0, threads: TARGETS, took: took(ior) }],
        };
        let missed = |figure: &F14| figure.text().matches("MISSED").count();
        let mut good = figure([250, 400, 590, 960, 960], [10, 15, 20, 60, 60], 270);
        // Journals on SAS disks fall beyond 256 threads.
        let last = good.runs.iter_mut().rfind(|run| run.setting == "SAS").unwrap();
        last.took = took(390);
        assert_eq!(missed(&good), 0, "{}", good.text());
        assert!(good.text().contains("this order: with 6 of 6"), "{}", good.text());
        assert!(good.svg().unwrap().contains("SAS"));
        let bad = figure([600, 500, 550, 900, 800], [10, 15, 20, 40, 60], 310);
        assert_eq!(missed(&bad), 6, "{}", bad.text());
    }

    #[test]
    fn sas_journals_share_heads_and_an_ssd_has_none() {
        let at =
            |journal| survey(2 * TARGETS, 8, Setting { journal, asynchronous: false }).unwrap();
        let [sas, ssd] = [Journal::Sas, Journal::Ssd].map(at);
        assert_eq!(sas.bytes, ssd.bytes);
        assert!(ssd.rate() > 1.2 * sas.rate(), "{sas:?} {ssd:?}");
    }
}
