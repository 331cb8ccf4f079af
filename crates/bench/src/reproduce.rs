//! The papers' figures beside what is measured here.
//!
//! Invariant: what a paper prints only as a bar is not read off its picture: the numbers beside ours are
//! those of its text, and the rest is a range.

use std::fmt::Write;

use crate::layouts::{Contender, Measured};
use crate::metarates::{Phase, Place, Report, Work};
use crate::report::Columns;

/// F4: Metarates (002 Fig. 6, 004 Fig. 8).
pub struct F4<'a>(pub &'a Report);

/// What a panel shows of a phase.
type Value<'a> = &'a dyn Fn(&Measured) -> f64;

/// What the texts say of throughput, in per cent above what each paper compares with.
fn printed(work: Work, files: u64) -> &'static str {
    match (work, files) {
        (Work::ReaddirStat, 10_000) => "002: +31 %; 004: +23 to +170 %",
        (Work::Delete, 10_000) => "002: +8 %; 004: +23 to +170 %",
        (Work::Readdir, _) => "-",
        _ => "002: +8 to +31 %; 004: +23 to +170 %",
    }
}

/// What the texts say of accesses.
fn said(work: Work) -> &'static str {
    match work {
        Work::Delete => "fewer, but least of all: only the inode bitmap's are saved",
        Work::ReaddirStat => "fewer, the more the larger the directory",
        Work::Readdir => "more bytes, in large requests",
        _ => "fewer",
    }
}

impl F4<'_> {
    fn files(&self) -> Vec<u64> {
        let mut files: Vec<u64> = self.0.runs().iter().map(|run| run.shape.files).collect();
        files.dedup();
        files
    }

    fn phase(&self, contender: Contender, files: u64, work: Work) -> Option<&Phase> {
        self.0.phase(Place::Virtual, contender, files, work)
    }

    /// Paper against measured, for people.
    pub fn text(&self) -> String {
        let mut columns = Columns::new(&[
            "files, work",
            "x traditional",
            "x hashed",
            "accesses: x traditional",
            "x hashed",
            "paper, throughput",
            "paper, accesses",
        ]);
        for files in self.files() {
            for work in Work::ALL {
                let Some(ours) = self.phase(Contender::Embedded, files, work) else { continue };
                let mut cells = vec![format!("{files} {}", work.text())];
                let others = [Contender::Linear, Contender::Hashed];
                let others = others.map(|other| self.phase(other, files, work));
                let cell = |of: Value<'_>, other: Option<&Phase>| {
                    other.map_or("-".into(), |other| format!("{:.2}", of(ours) / of(other)))
                };
                cells.extend(others.map(|other| cell(&Measured::rate, other)));
                cells.extend(others.map(|other| cell(&Measured::accesses_each, other)));
                cells.extend([printed(work, files).into(), said(work).into()]);
                columns.row(cells);
            }
        }
        format!(
            "F4: embedded directories against the traditional layout, virtual disk; throughput counts \
             until everything is at home:\n\n{}",
            columns.text()
        )
    }

    /// Bars: accesses for each thousand operations, and operations a second, of each layout.
    pub fn svg(&self) -> String {
        let panels: [(&str, Value<'_>); 2] = [
            ("accesses / traditional", &Measured::accesses_each),
            ("throughput / traditional", &Measured::rate),
        ];
        let files = self.files();
        let height = 40 + files.len() as u32 * (PANEL + 60);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1040\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        for (n, contender) in Contender::STORES.into_iter().enumerate() {
            let (x, color) = (20 + 180 * n, COLORS[n]);
            // Writing to a string cannot fail, here and below.
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"12\" width=\"12\" height=\"12\" fill=\"{color}\"/>\
                 <text x=\"{}\" y=\"22\">{}</text>",
                x + 18,
                contender.text()
            );
        }
        for (row, &files) in files.iter().enumerate() {
            for (column, (title, of)) in panels.into_iter().enumerate() {
                let (x, y) = (20 + 520 * column as u32, 60 + row as u32 * (PANEL + 60));
                let _ = writeln!(
                    svg,
                    "<text x=\"{x}\" y=\"{}\" font-weight=\"bold\">{files} files: {title}</text>",
                    y - 6
                );
                self.bars(&mut svg, (x, y), files, of);
            }
        }
        svg + "</svg>\n"
    }

    fn bars(&self, svg: &mut String, (x, y): (u32, u32), files: u64, of: Value<'_>) {
        for (group, work) in Work::ALL.into_iter().enumerate() {
            let left = x + 98 * group as u32;
            let _ =
                writeln!(svg, "<text x=\"{left}\" y=\"{}\">{}</text>", y + PANEL + 14, work.text());
            let Some(base) = self.phase(Contender::Linear, files, work) else { continue };
            for (n, contender) in Contender::STORES.into_iter().enumerate() {
                let Some(phase) = self.phase(contender, files, work) else { continue };
                let value = of(phase) / of(base);
                let high = ((value / BAR_MAX).min(1.0) * f64::from(PANEL)) as u32;
                let (bar, top) = (left + 26 * n as u32, y + PANEL - high);
                let _ = writeln!(
                    svg,
                    "<rect x=\"{bar}\" y=\"{top}\" width=\"22\" height=\"{high}\" fill=\"{}\"/>\
                     <text x=\"{bar}\" y=\"{}\" font-size=\"9\">{value:.2}</text>",
                    COLORS[n],
                    top.saturating_sub(2)
                );
            }
        }
    }
}

/// Height of a panel, and the ratio that fills it; higher bars are cut, their number is not.
const PANEL: u32 = 160;
const BAR_MAX: f64 = 3.0;
const COLORS: [&str; 3] = ["#2a6f97", "#adb5bd", "#d98e04"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layouts::Settings;
    use crate::metarates::{Plan, Shape, measure};

    #[test]
    fn the_figure_has_a_bar_for_each_layout_and_work_and_the_same_run_gives_the_same_figures() {
        let shape = Shape {
            clients: 2,
            processes: 2,
            files: 0,
            settings: Settings {
                cache_bytes: 16 << 20,
                log_bytes: 16 << 20,
                device_bytes: 1 << 30,
                ..Settings::PAPERS
            },
        };
        let plan = Plan {
            shape,
            files: vec![300],
            dir: None,
            limit: std::time::Duration::from_secs(60),
            program: "redbud".into(),
        };
        let reports =
            [measure(&plan, &mut |_| ()), measure(&plan, &mut |_| ())].map(Result::unwrap);
        let svg = F4(&reports[0]).svg();
        let bars = svg.matches("width=\"22\"").count();
        assert_eq!(bars, 2 * Work::ALL.len() * Contender::STORES.len(), "{svg}");
        assert_eq!(reports[0].to_json(), reports[1].to_json());
        for contender in Contender::STORES {
            for work in Work::ALL {
                let phase = reports[0].phase(Place::Virtual, contender, 300, work).unwrap();
                assert_eq!(phase.ops, 4 * 300, "{contender:?} {work:?}");
                let changes = !matches!(work, Work::Readdir | Work::ReaddirStat);
                assert_eq!(phase.counts.log > 0, changes, "{contender:?} {phase:?}");
                assert_eq!(phase.counts.home > 0, changes, "{contender:?} {phase:?}");
                assert!(phase.counts.reads > 0 && phase.settled >= phase.answered);
            }
        }
        let create = reports[0].phase(Place::Virtual, Contender::Linear, 300, Work::Create);
        // An inode has 254 bytes: what went home holds all of them.
        assert!(create.unwrap().counts.home_bytes >= 4 * 300 * 254);
        assert!(F4(&reports[0]).text().contains("300 readdir-stat"));
        assert!(reports[0].text().contains("goal"));
    }
}
