//! F7: on-demand preallocation beside reservation, vanilla and static (002 Fig. 9 and Table 2; 004
//! Fig. 6, Fig. 7 and Table I).
//!
//! Clients of the papers ask the server for every block that they need. Ours have space delegated
//! to them ([`Delegation::On`]): windows are those of one client then, and the numbers of segments
//! are not the papers'.

use proto::placement::PART;
use proto::prealloc::{Allocation, OdOptions, Policy, When};
use serde::Serialize;
use types::limits::BLOCK_U64;

use super::chart::{Panel, svg};
use crate::programs::{Bt, Ior, Program, Regions};
use crate::shared::{Plan, Took, Way, measure};
use crate::streams::striping;
use crate::tree::{self, Used};
use bench::Res;
use bench::report::Columns;

/// PAGs of IOR2 and BTIO, and of the micro-benchmark; processes of each client.
const PAGS: u16 = 8;
const DISKS: u16 = 5;
const PER_CLIENT: u64 = 4;
/// Bytes of a part of the micro-benchmark's file, so that few streams reach all disks.
const MICRO_PART: u64 = 4 << 20;
/// What the papers count: vanilla, reservation, OD, and how far the first two may be off.
const IOR2: [f64; 3] = [2023.0, 1242.0, 231.0];
const BTIO: [f64; 3] = [1332.0, 701.0, 106.0];
const NEAR: f64 = 0.2;
/// The server's share with OD, at most (002 Table 2).
const SHARES: [f64; 2] = [0.011, 0.010];
/// Reading under OD by reservation, at least: BTIO, and the micro-benchmark by streams.
const BT_GAIN: f64 = 1.19;
const STREAMS: [(u64, f64); 3] = [(32, 1.17), (48, 1.27), (64, 1.48)];
/// Static by OD, at most.
const STATIC: f64 = 1.10;
/// Kibibytes of a request in the sweep, which is with the first number of streams.
const SWEEP: [u64; 5] = [16, 32, 64, 128, 256];
const REQUEST: u64 = 64 << 10;
/// Blocks of a tree under OD by those under vanilla, at most.
const SPACE: f64 = 1.02;

/// Who keeps the space that files get.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Delegation {
    /// Each client has some, and chooses places in it.
    On,
    /// The server has all, as the papers' has: clients ask it for every place.
    Off,
}

impl Delegation {
    /// Those that can be measured.
    pub const ALL: [Delegation; 2] = [Delegation::On, Delegation::Off];

    fn text(self) -> &'static str {
        match self {
            Delegation::On => "on",
            Delegation::Off => "off",
        }
    }

    /// The name of the figure's files.
    pub fn file(self) -> &'static str {
        match self {
            Delegation::On => "F7",
            Delegation::Off => "F7-off",
        }
    }

    /// The same way, with this.
    fn apply(self, way: Way) -> Way {
        match self {
            Delegation::On => way,
            Delegation::Off => {
                let (when, delegated) = (When::Write, false);
                let allocation = way.switches.allocation;
                let switches = Allocation { when, delegated, ..allocation }.into();
                Way { switches, ..way }
            }
        }
    }
}

/// How large it is.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct Size {
    /// Requests of a process of IOR2, and dumps of BTIO.
    pub requests: u64,
    /// See `requests`.
    pub dumps: u64,
    /// Bytes of the micro-benchmark's file, about.
    pub micro: u64,
    /// Files of the tree.
    pub files: u64,
}

impl Size {
    /// Vanilla has about as many segments as in the papers, if every request is one.
    pub const PAPERS: Size = Size { requests: 32, dumps: 3, micro: 1 << 30, files: 5_000 };
}

/// A run of a program.
#[derive(Clone, Serialize, Debug)]
pub struct Run {
    /// The program.
    pub program: &'static str,
    /// How its file came by blocks.
    pub way: &'static str,
    /// What it took.
    pub took: Took,
}

/// A run of the micro-benchmark.
#[derive(Clone, Serialize, Debug)]
pub struct Micro {
    /// Streams.
    pub streams: u64,
    /// Bytes of a request that writes.
    pub request: u64,
    /// How the file came by blocks.
    pub way: &'static str,
    /// What it took.
    pub took: Took,
}

/// See the module.
#[derive(Serialize, Debug)]
pub struct F7 {
    version: u32,
    size: Size,
    delegation: Delegation,
    runs: Vec<Run>,
    micro: Vec<Micro>,
    tree: Vec<(&'static str, Used)>,
}

const VANILLA: &str = "vanilla";
const RESERVATION: &str = "reservation";
const OD: &str = "OD";
const OD8: &str = "OD, scale 8";
const PRODUCT: &str = "OD at launch";
const ANNOUNCED: &str = "static";

fn ways() -> [Way; 5] {
    let scale8 = OdOptions { scale: 8, ..OdOptions::default() };
    [
        Way::at_write(VANILLA, Policy::Vanilla),
        Way::at_write(RESERVATION, Policy::Reservation),
        Way::at_write(OD, Policy::default()),
        Way::at_write(OD8, Policy::OnDemand(scale8)),
        Way::product(PRODUCT),
    ]
}

fn micro_ways() -> [Way; 4] {
    let [_, reservation, od, _, product] = ways();
    [reservation, od, product, Way { announced: true, ..Way::product(ANNOUNCED) }]
}

fn programs(size: Size) -> [(&'static str, Program); 4] {
    let ior = Ior { processes: 64, requests: size.requests, request: 48 << 10, strided: false };
    let bt = Bt { side: 8, row: 8 << 10, rows: 1, dumps: size.dumps, collectors: 0 };
    // The requests of a dump are 40 MiB each.
    let together = Bt { rows: 4, row: 80 << 10, dumps: 1, collectors: 16, ..bt };
    [
        ("IOR2", Program::Ior(ior)),
        ("IOR2 strided", Program::Ior(Ior { strided: true, ..ior })),
        ("BTIO", Program::Bt(bt)),
        ("BTIO collective", Program::Bt(together)),
    ]
}

impl F7 {
    /// Measures it.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn measure(size: Size, delegation: Delegation, progress: &mut dyn FnMut(&str)) -> Res<F7> {
        let layout = striping(PART);
        let mut runs = Vec::new();
        for (name, program) in programs(size) {
            for way in ways() {
                let plan = Plan {
                    program,
                    per_client: PER_CLIENT,
                    zones: PAGS,
                    layout: layout.clone(),
                    way: delegation.apply(way),
                };
                let took = measure(&plan)?;
                progress(&format!("F7, {name}, {}: {} segments", way.name, took.segments));
                runs.push(Run { program: name, way: way.name, took });
            }
        }
        let mut micro = Vec::new();
        let sweep = SWEEP.iter().map(|kib| (STREAMS[0].0, kib << 10));
        let sweep = sweep.filter(|&(_, request)| request != REQUEST);
        for (streams, request) in
            STREAMS.iter().map(|&(streams, _)| (streams, REQUEST)).chain(sweep)
        {
            for way in micro_ways() {
                let took = measure(&Plan {
                    program: regions(size, streams, request),
                    per_client: PER_CLIENT,
                    zones: DISKS,
                    layout: striping(MICRO_PART / BLOCK_U64),
                    way: delegation.apply(way),
                })?;
                let rate = took.read_rate();
                progress(&format!("F7, {streams} streams, {}: {rate:.0} MB/s", way.name));
                micro.push(Micro { streams, request, way: way.name, took });
            }
        }
        let [vanilla, _, od, _, product] = ways();
        let of = |way: Way| Ok((way.name, tree::measure(size.files, delegation.apply(way))?));
        let tree = vec![of(vanilla)?, of(od)?, of(product)?];
        Ok(F7 { version: 1, size, delegation, runs, micro, tree })
    }

    fn took(&self, program: &str, way: &str) -> Option<&Took> {
        let run = self.runs.iter().find(|run| run.program == program && run.way == way);
        run.map(|run| &run.took)
    }

    fn micro(&self, streams: u64, request: u64, way: &str) -> f64 {
        let mut runs = self.micro.iter();
        let run = runs.find(|run| (run.streams, run.request, run.way) == (streams, request, way));
        run.map_or(0.0, |run| run.took.read_rate())
    }

    /// Paper against measured, for people.
    pub fn text(&self) -> String {
        let mut columns = Columns::new(&[
            "program",
            "blocks by",
            "segments",
            "paper",
            "stored",
            "write MB/s",
            "read MB/s",
            "by reservation",
            "requests",
            "server % at most",
            "paper %",
        ]);
        for Run { program, way, took } in &self.runs {
            let paper = paper(program, way);
            let before = self.took(program, RESERVATION).map_or(1.0, Took::read_rate);
            columns.row(vec![
                (*program).to_owned(),
                (*way).to_owned(),
                took.segments.to_string(),
                paper.map_or("-".to_owned(), |(segments, _)| format!("{segments:.0}")),
                took.stored.to_string(),
                format!("{:.0}", took.write_rate()),
                format!("{:.0}", took.read_rate()),
                format!("{:.2}", took.read_rate() / before),
                took.requests.to_string(),
                format!("{:.2}", 100.0 * took.server_share()),
                paper.map_or("-".to_owned(), |(_, share)| format!("{share:.1}")),
            ]);
        }
        format!(
            "F7, delegation {}: 64 processes on 16 clients write one file in parts of {} MiB on \
             {PAGS} PAGs, and read it\n\n{}{}{}{}",
            self.delegation.text(),
            (PART * BLOCK_U64) >> 20,
            columns.text(),
            self.verdict(),
            self.micro_text(),
            self.tree_text(),
        )
    }

    fn verdict(&self) -> String {
        let mut text = String::from("\n");
        for (program, goals, share) in [("IOR2", IOR2, SHARES[0]), ("BTIO", BTIO, SHARES[1])] {
            let [Some(vanilla), Some(reservation), Some(od), Some(od8)] =
                [VANILLA, RESERVATION, OD, OD8].map(|way| self.took(program, way))
            else {
                continue;
            };
            let near =
                |took: &Took, goal: f64| met((took.segments as f64 - goal).abs() <= NEAR * goal);
            let shares = [od, reservation, vanilla].map(Took::server_share);
            text += &format!(
                "{program}: within {:.0} % of the paper's segments: vanilla {}, reservation {}; OD \
                 at most {:.0}: {} with scale 4, {} with 8; the server's share OD < reservation < \
                 vanilla: {}, OD at most {:.1} %: {}\n",
                100.0 * NEAR,
                near(vanilla, goals[0]),
                near(reservation, goals[1]),
                goals[2],
                met(od.segments as f64 <= goals[2]),
                met(od8.segments as f64 <= goals[2]),
                met(shares.is_sorted_by(|a, b| a < b)),
                100.0 * share,
                met(shares[0] <= share),
            );
            if program == "BTIO" {
                let gain = od.read_rate() / reservation.read_rate();
                text += &format!(
                    "BTIO: reading under OD by reservation {gain:.2} (paper and goal {BT_GAIN}: \
                     {})\n",
                    met(gain >= BT_GAIN)
                );
            }
        }
        text
    }

    fn micro_text(&self) -> String {
        let mut columns = Columns::new(&[
            "streams",
            "request KiB",
            "reservation MB/s",
            "OD",
            "by reservation",
            "goal",
            "OD at launch",
            "by reservation",
            "static",
            "by OD",
        ]);
        let mut seen: Vec<(u64, u64)> = Vec::new();
        for run in &self.micro {
            let key = (run.streams, run.request);
            if seen.contains(&key) {
                continue;
            }
            seen.push(key);
            let rate = |way| self.micro(key.0, key.1, way);
            let (before, od) = (rate(RESERVATION), rate(OD));
            let goal = STREAMS.iter().find(|(streams, _)| key == (*streams, REQUEST));
            columns.row(vec![
                key.0.to_string(),
                (key.1 >> 10).to_string(),
                format!("{before:.0}"),
                format!("{od:.0}"),
                format!("{:.2}", od / before),
                goal.map_or("-".to_owned(), |(_, goal)| format!("{goal:.2}")),
                format!("{:.0}", rate(PRODUCT)),
                format!("{:.2}", rate(PRODUCT) / before),
                format!("{:.0}", rate(ANNOUNCED)),
                format!("{:.2}", rate(ANNOUNCED) / od),
            ]);
        }
        let at =
            |streams| [RESERVATION, OD, ANNOUNCED].map(|way| self.micro(streams, REQUEST, way));
        let gains = STREAMS.iter().map(|&(streams, goal)| {
            let [before, od, _] = at(streams);
            format!("{streams} streams {}", met(od >= goal * before))
        });
        let bound = STREAMS.iter().map(|&(streams, _)| {
            let [_, od, announced] = at(streams);
            format!("{streams} streams {}", met(announced <= STATIC * od))
        });
        format!(
            "\nA file of {} MiB in parts of {} MiB on {DISKS} disks, written in a region for each \
             stream, read in 1,024 parts\n\n{}\nOD by reservation: {}; static at most {STATIC:.2} x \
             OD: {}\n",
            self.size.micro >> 20,
            MICRO_PART >> 20,
            columns.text(),
            gains.collect::<Vec<_>>().join(", "),
            bound.collect::<Vec<_>>().join(", "),
        )
    }

    fn tree_text(&self) -> String {
        let mut columns = Columns::new(&[
            "tree under",
            "files",
            "MB",
            "blocks",
            "by vanilla",
            "most in windows",
            "1 s after",
        ]);
        let vanilla = self.tree.first().map_or(1, |(_, used)| used.blocks).max(1) as f64;
        let ratio = |used: &Used| used.blocks as f64 / vanilla;
        for (way, used) in &self.tree {
            columns.row(vec![
                (*way).to_owned(),
                used.files.to_string(),
                format!("{:.1}", used.bytes as f64 / 1e6),
                used.blocks.to_string(),
                format!("{:.3}", ratio(used)),
                used.most_in_windows.to_string(),
                used.in_windows.to_string(),
            ]);
        }
        let small = self.tree.iter().all(|(_, used)| ratio(used) <= SPACE);
        let none = self.tree.iter().all(|(_, used)| used.in_windows == 0);
        format!(
            "\n{}\nBlocks at most {SPACE} x vanilla: {}; none in windows 1 s after the last close: \
             {}\n",
            columns.text(),
            met(small),
            met(none)
        )
    }

    /// Bars: segments by the paper's vanilla, and rates of reading by reservation's.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn svg(&self) -> Res<String> {
        let names = [RESERVATION, OD, PRODUCT, ANNOUNCED];
        let by = |value: f64, before: f64| Some(value / before.max(f64::MIN_POSITIVE));
        let programs = |title: &str, full, value: &dyn Fn(&Took) -> f64, base: &str| {
            let mut groups: Vec<(String, Vec<Option<f64>>)> = Vec::new();
            for run in self.runs.iter().filter(|run| run.way == VANILLA) {
                let of = |way| self.took(run.program, way).map(value);
                let before = of(base).unwrap_or(1.0);
                let values = names.map(|way| of(way).and_then(|found| by(found, before)));
                groups.push((run.program.to_owned(), values.to_vec()));
            }
            Panel { title: title.to_owned(), full, groups }
        };
        let group = |(label, streams, request): (String, u64, u64)| {
            let before = self.micro(streams, request, RESERVATION);
            let values = names.map(|way| by(self.micro(streams, request, way), before));
            (label, values.to_vec())
        };
        let streams = STREAMS.map(|(streams, _)| (streams.to_string(), streams, REQUEST));
        let sweep = SWEEP.map(|kib| (format!("{kib} KiB"), STREAMS[0].0, kib << 10));
        let panel = |title: &str, groups: Vec<_>| Panel {
            title: title.to_owned(),
            full: 3.0,
            groups: groups.into_iter().map(group).collect(),
        };
        let panels = [
            programs("segments / those of vanilla", 1.2, &|took| took.segments as f64, VANILLA),
            programs("reading / that of reservation", 3.0, &Took::read_rate, RESERVATION),
            panel("micro-benchmark: reading / that of reservation, by streams", streams.to_vec()),
            panel("the same with 32 streams, by request", sweep.to_vec()),
        ];
        svg(&names, 1, &panels)
    }

    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

fn regions(size: Size, streams: u64, request: u64) -> Program {
    // No part is longer than what the kernel asks for at a time.
    let unit = request.max(REQUEST);
    let region = (size.micro / streams / unit * unit).max(unit);
    Program::Regions(Regions { processes: streams, region, request, parts: 1024, turns: true })
}

/// Segments, and per cent of the server's processor (002 Table 2).
fn paper(program: &str, way: &str) -> Option<(f64, f64)> {
    let (segments, shares) = match program {
        "IOR2" => (IOR2, [3.2, 3.0, 1.1]),
        "BTIO" => (BTIO, [5.1, 4.2, 1.0]),
        _ => return None,
    };
    let nth = [VANILLA, RESERVATION, OD].iter().position(|name| *name == way)?;
    Some((segments[nth], shares[nth]))
}

fn met(good: bool) -> &'static str {
    if good { "met" } else { "MISSED" }
}

#[cfg(test)]
mod tests {
    use super::super::chart::bars;
    use super::*;

    fn took(segments: u64, read: u64, server_nanos: u64) -> Took {
        Took {
            segments,
            stored: segments,
            written: 1,
            write_nanos: 1,
            read,
            read_nanos: 1_000_000_000,
            requests: 1,
            server_nanos,
        }
    }

    /// A figure with these segments, server's shares in thousandths, and rates of vanilla,
    /// reservation and OD.
    fn figure(segments: [u64; 3], shares: [u64; 3], rates: [u64; 3], windows: u64) -> F7 {
        let mut runs = Vec::new();
        for program in ["IOR2", "BTIO"] {
            let all = [VANILLA, RESERVATION, OD, OD8].into_iter().zip([0, 1, 2, 2]);
            runs.extend(all.map(|(way, n)| {
                let took = took(segments[n], rates[n], shares[n] * 1_000_000);
                Run { program, way, took }
            }));
        }
        let streams = STREAMS.iter().flat_map(|&(streams, _)| {
            let all = [(RESERVATION, 1), (OD, 2), (ANNOUNCED, 2)];
            all.map(|(way, n)| Micro { streams, request: REQUEST, way, took: took(1, rates[n], 1) })
        });
        let used =
            Used { files: 1, bytes: 1, blocks: 100, most_in_windows: 1, in_windows: windows };
        F7 {
            version: 1,
            size: Size::PAPERS,
            delegation: Delegation::On,
            runs,
            micro: streams.collect(),
            tree: vec![(VANILLA, used), (OD, used)],
        }
    }

    #[test]
    fn verdict_names_what_is_missed() {
        let missed = |figure: F7| figure.text().matches("MISSED").count();
        // No number of segments is near those of both programs.
        assert_eq!(missed(figure([2023, 1242, 106], [32, 30, 10], [1, 100, 150], 0)), 2);
        assert_eq!(missed(figure([1332, 701, 106], [51, 42, 10], [1, 100, 150], 0)), 2);
        assert_eq!(missed(figure([2023, 1242, 107], [32, 30, 10], [1, 100, 150], 0)), 4);
        assert_eq!(missed(figure([2023, 1242, 106], [32, 33, 10], [1, 100, 150], 0)), 4);
        assert_eq!(missed(figure([2023, 1242, 106], [32, 30, 11], [1, 100, 150], 0)), 3);
        assert_eq!(missed(figure([2023, 1242, 106], [32, 30, 10], [1, 100, 118], 1)), 6);
    }

    #[test]
    fn every_part_is_measured_and_drawn() {
        let size = Size { requests: 2, dumps: 1, micro: 16 << 20, files: 60 };
        for delegation in Delegation::ALL {
            let figure = F7::measure(size, delegation, &mut |_| ()).unwrap();
            assert_eq!((figure.runs.len(), figure.micro.len(), figure.tree.len()), (20, 28, 3));
            // Three ways of a program, four of a micro-benchmark.
            let bars = bars(&figure.svg().unwrap(), 4).len();
            assert_eq!(bars, 2 * 4 * 3 + (3 + 5) * 4);
            assert!(figure.text().contains("MiB on 8 PAGs") && figure.to_json().contains("OD"));
        }
    }
}
