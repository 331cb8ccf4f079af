//! F4: Metarates (002 Fig. 6, 004 Fig. 8).

use super::chart::{Panel, svg};
use crate::layouts::{Contender, Measured, Place};
use crate::metarates::{PRICED, Phase, Report, Work};
use bench::Res;
use bench::report::Columns;

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
        let priced = self.0.runs().iter().any(|run| run.shape.settings.price.is_some());
        let cpu = if priced { PRICED } else { "" };
        format!(
            "F4: embedded directories against the traditional layout, virtual disk{cpu}; throughput counts \
             until everything is at home:\n\n{}",
            columns.text()
        )
    }

    /// Bars: accesses for each thousand operations, and operations a second, of each layout.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn svg(&self) -> Res<String> {
        let values: [(&str, Value<'_>); 2] = [
            ("accesses / traditional", &Measured::accesses_each),
            ("throughput / traditional", &Measured::rate),
        ];
        let mut panels = Vec::new();
        for files in self.files() {
            for (title, of) in values {
                let title = format!("{files} files: {title}");
                panels.push(Panel { title, full: BAR_MAX, groups: self.groups(files, of) });
            }
        }
        svg(&super::layouts(), 2, &panels)
    }

    fn groups(&self, files: u64, of: Value<'_>) -> Vec<(String, Vec<Option<f64>>)> {
        let group = |work: Work| {
            let base = self.phase(Contender::Linear, files, work).map(|phase| of(phase));
            let value = |contender| {
                let phase = self.phase(contender, files, work)?;
                base.map(|base| of(phase) / base)
            };
            (work.text().to_owned(), Contender::STORES.map(value).to_vec())
        };
        Work::ALL.map(group).to_vec()
    }
}

/// The ratio that fills a panel.
const BAR_MAX: f64 = 3.0;

#[cfg(test)]
mod tests {
    use super::super::chart::bars;
    use super::*;
    use crate::layouts::Settings;
    use crate::metarates::{Plan, Shape, measure};

    #[test]
    fn figure_has_every_bar_and_is_reproducible() {
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
        let plan = Plan { shape, files: vec![300], ground: None, without: Vec::new() };
        let reports =
            [measure(&plan, &mut |_| ()), measure(&plan, &mut |_| ())].map(Result::unwrap);
        let svg = F4(&reports[0]).svg().unwrap();
        let bars = bars(&svg, 3).len();
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
