//! The meaning of a seed: every operation and every fault of a run, by number, and which of them a
//! run leaves out.
//!
//! Invariants:
//! - a step draws its random numbers from the seed and its own number alone, so leaving a step out
//!   does not change what others draw;
//! - [`Keep`] parses the text that it prints, and nothing in it needs quoting in a shell.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use env::sim::SimRng;
use types::Duration;

use crate::kernel::Linux;

/// Separates the random numbers of kernels from others.
const KERNELS: u64 = 0x6b65_726e << 32;
/// Separates the random numbers of overlapping faults.
const OVERLAP: u64 = 0x636f_6d70_616e_7921;
/// Separates the random numbers of second stalls.
const PAIRS: u64 = 0x7061_6972_7300_0000;

/// A step of a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ScriptStep {
    /// An operation of a process.
    Operation {
        /// Number of the client.
        client: u32,
        /// Number of its process.
        process: u32,
        /// Number of the operation.
        index: u32,
    },
    /// A fault.
    Fault(u32),
}

impl ScriptStep {
    /// Its place as [`Keep`] prints it, and its number there.
    fn place(self) -> (String, u32) {
        match self {
            ScriptStep::Operation { client, process, index } => {
                (format!("c{client}p{process}"), index)
            }
            ScriptStep::Fault(index) => ("f".to_owned(), index),
        }
    }

    fn of_place(place: &str, index: u32) -> Option<ScriptStep> {
        if place == "f" {
            return Some(ScriptStep::Fault(index));
        }
        let (client, process) = place.strip_prefix('c')?.split_once('p')?;
        let (client, process) = (client.parse().ok()?, process.parse().ok()?);
        Some(ScriptStep::Operation { client, process, index })
    }

    fn mixed(self) -> u64 {
        match self {
            ScriptStep::Operation { client, process, index } => {
                1 << 63 | u64::from(client) << 48 | u64::from(process) << 32 | u64::from(index)
            }
            ScriptStep::Fault(index) => u64::from(index),
        }
    }
}

/// The steps that a run keeps.
///
/// As text: places divided by `/`, each with its numbers, as in `c0p0:3,7-9/c1p0:2/f:0`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Keep(pub BTreeSet<ScriptStep>);

impl Keep {
    /// The first operation that does not exist in a run with this many clients, processes of each,
    /// and operations of each.
    pub fn beyond(&self, clients: usize, processes: usize, operations: u64) -> Option<String> {
        let is_beyond = |step: &&ScriptStep| match **step {
            ScriptStep::Operation { client, process, index } => {
                client as usize >= clients
                    || process as usize >= processes
                    || u64::from(index) >= operations
            }
            ScriptStep::Fault(_) => false,
        };
        self.0.iter().find(is_beyond).map(|step| Keep(BTreeSet::from([*step])).to_string())
    }

    /// The first fault from number `made` on.
    pub fn fault_beyond(&self, made: u32) -> Option<u32> {
        self.0.iter().find_map(|step| match *step {
            ScriptStep::Fault(index) if index >= made => Some(index),
            _ => None,
        })
    }
}

/// Most steps that a range may name.
const STEPS_MAX: u32 = 1 << 20;

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut places: BTreeMap<String, Vec<(u32, u32)>> = BTreeMap::new();
        for step in &self.0 {
            let (place, index) = step.place();
            let ranges = places.entry(place).or_default();
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == index => *last = index,
                _ => ranges.push((index, index)),
            }
        }
        if places.is_empty() {
            return f.write_str("none");
        }
        for (nth, (place, ranges)) in places.iter().enumerate() {
            let ranges: Vec<String> = ranges
                .iter()
                .map(
                    |&(from, to)| {
                        if from == to { from.to_string() } else { format!("{from}-{to}") }
                    },
                )
                .collect();
            write!(f, "{}{place}:{}", if nth > 0 { "/" } else { "" }, ranges.join(","))?;
        }
        Ok(())
    }
}

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Keep, String> {
        let mut steps = BTreeSet::new();
        if text == "none" {
            return Ok(Keep(steps));
        }
        for part in text.split('/') {
            let wrong = || format!("{part:?} is no list of steps, such as c0p1:2,4-6 or f:0");
            let (place, ranges) = part.split_once(':').ok_or_else(wrong)?;
            for range in ranges.split(',') {
                let (from, to) = range.split_once('-').unwrap_or((range, range));
                let from: u32 = from.parse().map_err(|_| wrong())?;
                let to: u32 = to.parse().map_err(|_| wrong())?;
                if to < from || to - from >= STEPS_MAX {
                    return Err(wrong());
                }
                for index in from..=to {
                    steps.insert(ScriptStep::of_place(place, index).ok_or_else(wrong)?);
                }
            }
        }
        Ok(Keep(steps))
    }
}

/// The steps of one run.
#[derive(Clone, Debug)]
pub struct Script {
    /// All random numbers follow from it.
    pub seed: u64,
    /// The steps to run; `None`: all.
    pub keep: Option<Keep>,
    /// What operations do.
    pub workload: Workload,
    /// Some operations are not in the workload's table.
    pub extra_operations: bool,
    /// Average time between two operations of a process; zero: without pauses.
    pub spacing: Duration,
    /// Applications store into shared mappings.
    pub maps: bool,
    /// Processes are killed.
    pub kills: bool,
    /// Faults are injected.
    pub has_faults: bool,
    /// Without faults no call on a page that processes share takes longer: see
    /// [`Invariant::Fair`](crate::invariant::Invariant::Fair).
    pub page_within: Duration,
    /// Shards of the cluster.
    pub shards: usize,
}

#[cfg(test)]
impl Script {
    /// Everything at once, without special settings.
    pub fn plain(seed: u64) -> Script {
        Script {
            seed,
            keep: None,
            workload: Workload::Mixed,
            extra_operations: false,
            spacing: Duration::ZERO,
            maps: false,
            kills: false,
            has_faults: false,
            page_within: crate::fields::WITHIN,
            shards: 1,
        }
    }
}

/// What most operations do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Workload {
    /// Everything.
    #[default]
    Mixed,
    /// Names and attributes.
    Names,
    /// Contents of files.
    Content,
    /// Fields of one page, by all processes.
    Fields,
}

impl Workload {
    /// Every kind.
    pub const ALL: [Workload; 4] =
        [Workload::Mixed, Workload::Names, Workload::Content, Workload::Fields];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Mixed => "mixed",
            Workload::Names => "names",
            Workload::Content => "content",
            Workload::Fields => "fields",
        }
    }

    /// Draws a row of the table in `workload.rs`: below 62 names, attributes and opens, from 64 on
    /// content.
    pub(crate) fn roll(self, rng: &mut SimRng) -> u64 {
        match self {
            Workload::Mixed => rng.below(100),
            Workload::Names => rng.below(62),
            Workload::Content => match rng.below(10) {
                0 => rng.between(8, 15),
                1 => rng.between(56, 61),
                _ => 99,
            },
            // It has a table of its own.
            Workload::Fields => 99,
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Workload, String> {
        Workload::ALL.into_iter().find(|workload| workload.name() == text).ok_or_else(|| {
            let names = Workload::ALL.map(Workload::name).join(", ");
            format!("no such workload: {text}; there are {names}")
        })
    }
}

impl Script {
    /// Is the step kept?
    pub fn takes(&self, step: ScriptStep) -> bool {
        self.keep.as_ref().is_none_or(|keep| keep.0.contains(&step))
    }

    /// The random numbers of a step.
    pub fn rng(&self, step: ScriptStep) -> SimRng {
        let mut rng = SimRng::new(self.seed ^ SimRng::new(step.mixed()).next_u64());
        SimRng::new(rng.next_u64())
    }

    /// The random numbers of an overlapping fault.
    pub fn overlap(&self, step: ScriptStep) -> SimRng {
        SimRng::new(self.rng(step).next_u64() ^ OVERLAP)
    }

    /// The random numbers of a second stalled disk or blocked client.
    pub fn pairs(&self, step: ScriptStep) -> SimRng {
        SimRng::new(self.rng(step).next_u64() ^ PAIRS)
    }

    /// The kernel of a client's host: half of them cache nothing, except in a workload about
    /// caching.
    pub fn kernel(&self, client: u64) -> Linux {
        if self.workload == Workload::Fields {
            return Linux::New;
        }
        match SimRng::new(self.seed ^ SimRng::new(client ^ KERNELS).next_u64()).below(4) {
            0 => Linux::Old,
            1 => Linux::New,
            _ => Linux::None,
        }
    }

    /// A pause of `share` times the time between operations, on average.
    pub(crate) fn pause(&self, share: u64, rng: &mut SimRng) -> Duration {
        let most = 2 * share * self.spacing.as_micros() as u64;
        Duration::from_micros(rng.below(most))
    }

    /// Is this fault or a later one kept?
    pub fn has_faults_from(&self, index: u32) -> bool {
        self.keep
            .as_ref()
            .is_none_or(|keep| keep.0.range(ScriptStep::Fault(index)..).next().is_some())
    }

    /// Does the script keep an operation of this client?
    pub fn uses(&self, client: u32) -> bool {
        let of = |step: &ScriptStep| matches!(step, ScriptStep::Operation { client: of, .. } if *of == client);
        self.keep.as_ref().is_none_or(|keep| keep.0.iter().any(of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_parses_what_it_prints() {
        let step = |client, process, index| ScriptStep::Operation { client, process, index };
        let steps =
            [step(0, 0, 3), step(0, 0, 7), step(0, 0, 8), step(1, 2, 0), ScriptStep::Fault(4)];
        let keep = Keep(steps.into());
        assert_eq!(keep.to_string(), "c0p0:3,7-8/c1p2:0/f:4");
        assert_eq!(keep.to_string().parse(), Ok(keep));
        assert_eq!("none".parse(), Ok(Keep::default()));
        assert_eq!(Keep::default().to_string(), "none");
        for wrong in ["", "c0p0", "c0p0:", "x:1", "f:2-1", "c0:1", "f:0-4294967295"] {
            assert!(wrong.parse::<Keep>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn step_draws_the_same_whichever_steps_are_left_out() {
        let (workload, spacing) = (Workload::Mixed, Duration::ZERO);
        let (extra_operations, maps, kills, has_faults) = (true, true, false, false);
        let all = Script {
            seed: 7,
            keep: None,
            workload,
            extra_operations,
            spacing,
            maps,
            kills,
            has_faults,
            page_within: spacing,
            shards: 1,
        };
        let some = Script { keep: Some(Keep([ScriptStep::Fault(2)].into())), ..all.clone() };
        assert!(
            some.takes(ScriptStep::Fault(2)) && !some.takes(ScriptStep::Fault(1)) && !some.uses(0)
        );
        assert!(all.uses(0));
        let (one, other) = (ScriptStep::Fault(2), ScriptStep::Fault(3));
        assert_eq!(all.rng(one).next_u64(), some.rng(one).next_u64());
        assert_ne!(all.rng(one).next_u64(), all.rng(other).next_u64());
    }
}
