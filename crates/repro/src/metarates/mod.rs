//! Metarates (002 §6.3, 004 §V.D): many processes, each in a directory of its own, create files,
//! change their times, list them, list them with attributes, and delete them.
//!
//! Invariants:
//! - what is compared is where names and inodes lie: the embedded and the traditional layout run on
//!   the same store code, on disks of the same kind ([`crate::layouts`]); the kernel's ext4 on a
//!   loop device shows whether the traditional layout is a fair picture of the real thing.

mod processes;
mod report;

use serde::Serialize;

use crate::layouts::loops::{Store, Yard};
use crate::layouts::site::Site;
use crate::layouts::{Contender, Ground, Measured, Place, Settings};
use bench::{Res, failed};
use processes::{Processes, fill_log};

pub use report::{GOALS, PRICED, Report};

/// What all processes do in a phase.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Makes empty files.
    Create,
    /// Sets the times of each, by name.
    Utime,
    /// Lists the names.
    Readdir,
    /// Lists the names with the attributes of each.
    ReaddirStat,
    /// Deletes each.
    Delete,
}

impl Work {
    /// In the order of a run.
    pub const ALL: [Work; 5] =
        [Work::Create, Work::Utime, Work::Readdir, Work::ReaddirStat, Work::Delete];

    /// Its name.
    pub fn text(self) -> &'static str {
        match self {
            Work::Create => "create",
            Work::Utime => "utime",
            Work::Readdir => "readdir",
            Work::ReaddirStat => "readdir-stat",
            Work::Delete => "delete",
        }
    }
}

/// Sizes, counts and mode of the works.
#[derive(Clone, Copy, Serialize, Debug)]
pub struct Shape {
    /// Clients.
    pub clients: u64,
    /// Processes of each.
    pub processes: u64,
    /// Files of each process.
    pub files: u64,
    /// The store.
    #[serde(flatten)]
    pub settings: Settings,
}

impl Shape {
    /// Processes of all clients.
    pub fn tasks(&self) -> u64 {
        self.clients * self.processes
    }
}

/// One phase of one contender.
#[derive(Clone, Copy, Serialize, Debug)]
pub struct Phase {
    /// The phase.
    pub work: Work,
    /// Its costs.
    #[serde(flatten)]
    pub took: Measured,
}

impl std::ops::Deref for Phase {
    type Target = Measured;

    fn deref(&self) -> &Measured {
        &self.took
    }
}

/// All phases of one contender.
#[derive(Clone, Serialize, Debug)]
pub struct Run {
    /// The contender.
    pub contender: Contender,
    /// On what.
    pub place: Place,
    /// Sizes and counts of the works.
    pub shape: Shape,
    /// In the order of [`Work::ALL`].
    pub phases: Vec<Phase>,
    /// Recovery of a full log, of a store on a loop device.
    pub redo: Option<Redo>,
}

/// An opening after a crash.
#[derive(Clone, Copy, Serialize, Debug)]
pub struct Redo {
    /// Bytes of the log that were read.
    pub log_bytes: u64,
    /// Nanoseconds until the store was open, everything at home.
    pub nanos: u64,
}

/// A measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Shape, but for `files`.
    pub shape: Shape,
    /// Files of each process: a table for each.
    pub files: Vec<u64>,
    /// For loop devices; without it only the virtual disk is used.
    pub ground: Option<Ground>,
    /// Contenders that are left out, on the virtual disk and on loop devices.
    pub without: Vec<Contender>,
}

/// Measures, telling `progress` each phase.
///
/// # Errors
/// The step that failed and why.
pub fn measure(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Res<Report> {
    let mut runs = Vec::new();
    for &files in &plan.files {
        let shape = Shape { files, ..plan.shape };
        all(None, plan, shape, &mut runs, progress)?;
        if let Some(ground) = &plan.ground {
            all(Some(&Yard::make(ground)?), plan, shape, &mut runs, progress)?;
        }
    }
    if runs.is_empty() {
        return failed("metarates", "no contender is left");
    }
    Ok(Report::new(runs))
}

/// All phases of all contenders there.
fn all(
    yard: Option<&Yard>,
    plan: &Plan,
    shape: Shape,
    runs: &mut Vec<Run>,
    progress: &mut dyn FnMut(&str),
) -> Res<()> {
    let contenders = Site::contenders(yard);
    for contender in contenders.into_iter().filter(|it| !plan.without.contains(it)) {
        let site = Site::new(yard, contender, shape.settings, shape.tasks())?;
        let place = Site::place(yard);
        let mut phases = Vec::new();
        for work in Work::ALL {
            let phase = Phase { work, took: site.stage(&Processes(shape), work)? };
            progress(&progress_line(place, shape, contender, &phase));
            phases.push(phase);
        }
        let redo = match &site {
            Site::Store(store) => Some(crash(store)?),
            _ => None,
        };
        runs.push(Run { contender, place, shape, phases, redo });
    }
    Ok(())
}

/// Opens a store that was left with a full log.
fn crash(store: &Store<'_>) -> Res<Redo> {
    let bed = store.bed();
    let log_bytes = store.alone(|env| async move { fill_log(bed, &env).await })?;
    let opened = store.alone(|env| async move { bed.reopen(&env).await })?;
    Ok(Redo { log_bytes, nanos: opened.as_nanos() as u64 })
}

/// A line for people who wait.
fn progress_line(place: Place, shape: Shape, contender: Contender, phase: &Phase) -> String {
    format!(
        "{}, {} files, {}: {} {:.0}/s, {}",
        place.text(),
        shape.files,
        contender.text(),
        phase.work.text(),
        phase.rate(),
        phase.counts
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(without: &[Contender]) -> Plan {
        let settings = Settings {
            cache_bytes: 16 << 20,
            log_bytes: 16 << 20,
            device_bytes: 1 << 30,
            ..Settings::PAPERS
        };
        let shape = Shape { clients: 1, processes: 2, files: 0, settings };
        Plan { shape, files: vec![20], ground: None, without: without.to_vec() }
    }

    #[test]
    fn excluded_contenders_do_not_run_nor_appear_in_tables() {
        let report = measure(&plan(&[Contender::Hashed]), &mut |_| ()).unwrap();
        let ran: Vec<Contender> = report.runs().iter().map(|run| run.contender).collect();
        assert_eq!(ran, [Contender::Embedded, Contender::Linear]);
        let text = report.text();
        assert!(!text.contains(Contender::Hashed.text()), "{text}");
        // The goals are of the linear layout, which ran.
        assert!(text.contains("goal"), "{text}");
        let report = measure(&plan(&[Contender::Linear]), &mut |_| ()).unwrap();
        assert!(!report.text().contains("goal"), "{}", report.text());
        let nobody = measure(&plan(&Contender::STORES), &mut |_| ());
        assert!(nobody.is_err_and(|error| error.0.contains("no contender")));
    }

    #[test]
    fn linear_ext4_may_be_excluded_from_the_comparison() {
        let mut runs = measure(&plan(&[]), &mut |_| ()).unwrap().runs().to_vec();
        let mut real = runs[2].clone();
        assert!(!Report::new(runs.clone()).text().contains("accesses by ext4's"));
        real.contender = Contender::Ext4Hashed;
        real.place = Place::Loop;
        runs.push(real);
        let text = Report::new(runs).text();
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        // Its figures are those of the hashed layout here.
        assert!(words.contains("create - 1.00 within 15 %"), "{text}");
    }

    #[test]
    fn contenders_have_the_names_that_tables_print() {
        for contender in Contender::STORES.into_iter().chain(Contender::KERNELS) {
            assert_eq!(Contender::named(contender.text()), Ok(contender));
        }
        let refused = Contender::named("ext5").unwrap_err();
        assert!(
            refused.ends_with("\"traditional, hashed\", \"ext4\", \"ext4, hashed\""),
            "{refused}"
        );
    }
}
