//! F10: delayed commit (000 Fig. 3): xcdn, Filebench's personalities, BT-IO, and reads of what
//! another client has written and not committed.
//!
//! All are divided by the synchronous commit without delegation (000 §III.A): `commit=sync`, with
//! every place from the server.

use bench::scripts::filebench::Personality;
use serde::Serialize;

use super::chart::{Panel, svg};
use crate::loads::{
    CLIENTS, DELAYED, DELEGATED, Load, SYNCHRONOUS, Setting, Took, measure, measure_nfs,
};
use crate::programs::{Bt, Program};
use crate::shared::{self, Plan, Way};
use crate::streams::striping;
use crate::switches::Switches;
use bench::report::Columns;
use bench::{Res, failed};
use proto::placement::PART;

/// What the paper's delayed commit gains at least, by the name of a load; others lose nothing.
const GAINS: [(&str, f64); 3] = [(XCDN_SMALL, 2.6), ("varmail", 1.5), ("webproxy", 1.5)];
/// What counts as no loss.
const NO_LOSS: f64 = 0.98;
/// The model beside the settings. It has no BT-IO.
const NFS: &str = "NFS 3 (model)";
pub(super) const XCDN_SMALL: &str = "xcdn 32 KiB";
const XCDN_LARGE: &str = "xcdn 1 MiB";
pub(super) const BTIO: &str = "BT-IO";
const CONFLICT: &str = "conflicts";

/// How long the loads are.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct Size {
    /// Operations of each process of xcdn with 32 KiB, and with 1 MiB.
    pub small: u64,
    /// See `small`.
    pub large: u64,
    /// Virtual milliseconds of the personalities.
    pub millis: u64,
    /// Dumps of BT-IO.
    pub dumps: u64,
    /// Objects of each client that the next one reads.
    pub conflicts: u64,
}

impl Size {
    /// That of the figure.
    pub const PAPERS: Size =
        Size { small: 128, large: 16, millis: 10_000, dumps: 3, conflicts: 100 };
}

/// A run.
#[derive(Clone, Serialize, Debug)]
pub struct Run {
    /// What was done.
    pub load: String,
    /// With which setting.
    pub setting: &'static str,
    /// Operations in a second until all was durable; of BT-IO, MB written and read.
    pub rate: f64,
    /// What it took, but of BT-IO.
    pub took: Option<Took>,
}

/// See the module.
#[derive(Serialize, Debug)]
pub struct F10 {
    version: u32,
    clients: usize,
    size: Size,
    runs: Vec<Run>,
}

/// The loads but for BT-IO, in the order of the figure.
fn loads(size: Size) -> Vec<(String, Load)> {
    let xcdn = |name: &str, bytes, ops| (name.to_owned(), Load::xcdn(bytes, ops));
    let personality = |personality: Personality| {
        (personality.text().to_owned(), Load::filebench(personality, size.millis))
    };
    let mut all: Vec<(String, Load)> = Personality::ALL.map(personality).to_vec();
    all.push(xcdn(XCDN_SMALL, 32 << 10, size.small));
    all.push(xcdn(XCDN_LARGE, 1 << 20, size.large));
    let conflict = Load::Conflict { bytes: 32 << 10, ops: size.conflicts };
    all.push((CONFLICT.to_owned(), conflict));
    all
}

impl F10 {
    /// Measures the loads of these names; all of them, if there are none.
    ///
    /// # Errors
    /// Those of the cluster; a name of no load.
    pub fn measure(size: Size, only: &[String], progress: &mut dyn FnMut(&str)) -> Res<F10> {
        let all: Vec<String> =
            loads(size).into_iter().map(|(name, _)| name).chain([BTIO.to_owned()]).collect();
        if let Some(name) = only.iter().find(|name| !all.contains(name)) {
            return failed("F10", format!("`{name}` is none of {}", all.join(", ")));
        }
        let wanted = |name: &str| only.is_empty() || only.iter().any(|one| one == name);
        let mut runs = Vec::new();
        for (name, load) in loads(size).into_iter().filter(|(name, _)| wanted(name)) {
            for setting in Setting::ALL {
                let setting = setting();
                let took = measure(load, setting.switches)?;
                let rate = took.rate();
                progress(&format!("F10, {name}, {}: {rate:.0}/s", setting.name));
                let (load, setting) = (name.clone(), setting.name);
                runs.push(Run { load, setting, rate, took: Some(took) });
            }
            let took = measure_nfs(load)?;
            let rate = took.rate();
            progress(&format!("F10, {name}, {NFS}: {rate:.0}/s"));
            runs.push(Run { load: name, setting: NFS, rate, took: Some(took) });
        }
        for setting in Setting::ALL.into_iter().filter(|_| wanted(BTIO)) {
            let setting = setting();
            let rate = bt(size, setting)?;
            progress(&format!("F10, {BTIO}, {}: {rate:.0} MB/s", setting.name));
            runs.push(Run { load: BTIO.into(), setting: setting.name, rate, took: None });
        }
        Ok(F10 { version: 1, clients: CLIENTS, size, runs })
    }

    fn names(&self) -> Vec<&str> {
        let first = self.runs.iter().filter(|run| run.setting == SYNCHRONOUS);
        first.map(|run| run.load.as_str()).collect()
    }

    /// A setting's rate by the one that all are divided by.
    fn ratio(&self, load: &str, setting: &str) -> Option<f64> {
        let rate = |setting: &str| {
            let mut runs = self.runs.iter();
            runs.find(|run| run.load == load && run.setting == setting).map(|run| run.rate)
        };
        Some(rate(setting)? / rate(SYNCHRONOUS)?)
    }

    /// Paper against measured, for people.
    pub fn text(&self) -> String {
        let by = format!("x {SYNCHRONOUS}");
        let head = [
            "load", "setting", "rate", "answered", &by, "paper", "joined", "requests", "cached",
            "busy %",
        ];
        let mut columns = Columns::new(&head);
        for Run { load, setting, rate, took } in &self.runs {
            let of = |text: &dyn Fn(&Took) -> String| took.as_ref().map_or("-".into(), text);
            let paper = match *setting {
                SYNCHRONOUS | NFS => "-".to_owned(),
                _ => goal(load).map_or("no loss".into(), |gain| format!("{gain}")),
            };
            columns.row(vec![
                load.clone(),
                (*setting).to_owned(),
                format!("{rate:.0}"),
                of(&|took| format!("{:.0}", took.answered_rate())),
                self.ratio(load, setting).map_or("-".into(), |ratio| format!("{ratio:.2}")),
                paper,
                of(&|took| format!("{:.2}", took.merge_ratio())),
                of(&|took| took.requests.to_string()),
                of(&|took| {
                    format!("{:.2}", took.reads.cached as f64 / took.reads.all.max(1) as f64)
                }),
                of(&|took| took.busy_shares().map(|share| format!("{share:.0}")).join("/")),
            ]);
        }
        format!(
            "F10: {} clients, operations in a second until all is durable (BT-IO: MB); reads that \
             the kernel's pages answered; shares of the time in which a client's processor, the \
             server's (with messages alone) and the data disk were busy\n\n{}{}",
            self.clients,
            columns.text(),
            self.verdict()
        )
    }

    fn verdict(&self) -> String {
        let mut text = String::from("\n");
        for load in self.names() {
            let least = goal(load).unwrap_or(NO_LOSS);
            for setting in [DELAYED, DELEGATED] {
                let Some(ratio) = self.ratio(load, setting) else { continue };
                let met = if ratio >= least { "met" } else { "MISSED" };
                text += &format!("{load}, {setting}: {ratio:.2} (goal {least}: {met})\n");
            }
        }
        text
    }

    /// Bars: each setting by the one that all are divided by.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn svg(&self) -> Res<String> {
        let settings = [SYNCHRONOUS, DELAYED, DELEGATED, NFS];
        let group = |load: &str| {
            (load.to_owned(), settings.map(|setting| self.ratio(load, setting)).to_vec())
        };
        let groups = self.names().into_iter().map(group).collect();
        let title = format!("operations in a second / those of {SYNCHRONOUS}");
        svg(&settings, 1, &[Panel { title, full: 4.0, groups }])
    }

    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

fn goal(load: &str) -> Option<f64> {
    GAINS.iter().find(|(name, _)| *name == load).map(|&(_, gain)| gain)
}

/// BT-IO of 49 processes on all clients, with a setting. What is read was written by the same
/// process, through the same client.
pub(super) fn bt_plan(dumps: u64, switches: Switches) -> Plan {
    let side = CLIENTS as u64;
    let bt = Bt { side, row: 8 << 10, rows: 1, dumps, collectors: 0 };
    Plan {
        program: Program::Bt(bt),
        per_client: side,
        zones: 1,
        layout: striping(PART),
        way: Way { switches, ..Way::product("") },
    }
}

/// MB of BT-IO that are written and read in a second.
fn bt(size: Size, setting: Setting) -> Res<f64> {
    let took = shared::measure(&bt_plan(size.dumps, setting.switches))?;
    let bytes = (took.written + took.read) as f64;
    Ok(bytes * 1e3 / (took.write_nanos + took.read_nanos).max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::super::chart::bars;
    use super::*;

    fn figure(gain: f64, loss: f64) -> F10 {
        let size = Size::PAPERS;
        let names = loads(size).into_iter().map(|(name, _)| name).chain([BTIO.to_owned()]);
        let run = |load: String| {
            let ratio = goal(&load).map_or(loss, |least| least * gain);
            let rates =
                [(SYNCHRONOUS, 100.0), (DELAYED, 100.0 * ratio), (DELEGATED, 100.0 * ratio)];
            rates.map(|(setting, rate)| Run { load: load.clone(), setting, rate, took: None })
        };
        F10 { version: 1, clients: CLIENTS, size, runs: names.flat_map(run).collect() }
    }

    #[test]
    fn verdict_names_what_is_missed() {
        let missed = |figure: F10| figure.text().matches("MISSED").count();
        assert_eq!(missed(figure(1.01, 1.0)), 0);
        assert_eq!(missed(figure(0.99, 1.0)), 2 * GAINS.len());
        assert_eq!(missed(figure(1.01, 0.97)), 2 * (7 - GAINS.len()));
        // The legend has four entries; of the model there is no bar here.
        assert_eq!(bars(&figure(1.0, 1.0).svg().unwrap(), 4).len(), 7 * 3);
    }

    #[test]
    fn loads_are_measured_by_name_with_every_setting_and_the_model() {
        let size = Size { conflicts: 2, ..Size::PAPERS };
        let measure = |name: &str| F10::measure(size, &[name.to_owned()], &mut |_| ());
        let figure = measure(CONFLICT).unwrap();
        let names: Vec<&str> = figure.runs.iter().map(|run| run.setting).collect();
        assert_eq!(names, [SYNCHRONOUS, DELAYED, DELEGATED, NFS]);
        let error = measure("conflict").unwrap_err().to_string();
        assert!(error.contains("`conflict` is none of") && error.contains(BTIO), "{error}");
    }

    #[test]
    fn bt_reads_what_it_has_written_with_every_setting() {
        let size = Size { dumps: 1, ..Size::PAPERS };
        let rates = Setting::ALL.map(|setting| bt(size, setting()).unwrap());
        assert!(rates.iter().all(|&rate| rate > 0.1), "{rates:?}");
        assert!(rates[2] > rates[0], "{rates:?}");
    }
}
