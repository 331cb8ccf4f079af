//! F5: small files (002 Fig. 7, 004 Fig. 10).

use serde::Serialize;

use super::chart::{Panel, svg};
use crate::layouts::{Contender, Measured, Place};
use crate::small::{Run, Shape, Work};
use bench::Res;
use bench::report::Columns;

/// See the module.
#[derive(Serialize, Debug)]
pub struct F5 {
    version: u32,
    shape: Shape,
    runs: Vec<Run>,
}

/// What is shown of a work.
type Value = fn(&Measured) -> f64;

/// What the texts say of the time, in per cent less than what each paper compares with.
fn printed(work: Work) -> &'static str {
    match work {
        Work::PostMark | Work::Tar | Work::Clean => "002: 3 to 14 %; 004: 4 to 13 %",
        Work::Make => "004: 4 %",
        Work::Web1 | Work::Web16 => "002: up to 32 % (Ceph)",
    }
}

impl F5 {
    /// Of these runs.
    pub fn new(shape: Shape, runs: Vec<Run>) -> F5 {
        F5 { version: 1, shape, runs }
    }

    fn took(&self, place: Place, contender: Contender, work: Work) -> Option<&Measured> {
        let asked = (place, contender, work);
        let found = self.runs.iter().find(|run| (run.place, run.contender, run.work) == asked);
        found.map(|run| &run.took)
    }

    /// A figure of a layout on the virtual disk by that of the traditional one.
    fn ratio(&self, contender: Contender, work: Work, of: Value) -> Option<f64> {
        let took = |contender| self.took(Place::Virtual, contender, work).map(of);
        Some(took(contender)? / took(Contender::Linear)?)
    }

    /// Paper against measured, for people.
    pub fn text(&self) -> String {
        let mut columns = Columns::new(&[
            "work",
            "seconds",
            "traditional",
            "hashed",
            "less time than traditional",
            "than hashed",
            "accesses: x traditional",
            "x hashed",
            "paper, less time",
        ]);
        for work in Work::ALL {
            let of = |contender| self.took(Place::Virtual, contender, work);
            let [Some(ours), Some(linear), Some(hashed)] = Contender::STORES.map(of) else {
                continue;
            };
            let mut cells = vec![work.text().to_owned()];
            cells.extend([ours, linear, hashed].map(|took| format!("{:.1}", seconds(took))));
            let others = [linear, hashed];
            let less = others.map(|other| 100.0 * (1.0 - seconds(ours) / seconds(other)));
            cells.extend(less.map(|less| format!("{less:.0} %")));
            cells.extend(others.map(|other| format!("{:.2}", accesses(ours) / accesses(other))));
            cells.push(printed(work).to_owned());
            columns.row(cells);
        }
        format!(
            "F5: small files on the virtual disk, metadata only; until everything is at home:\n\n{}{}",
            columns.text(),
            self.beside_ext4()
        )
    }

    /// Everyone on loop devices, if that was measured.
    fn beside_ext4(&self) -> String {
        let mut columns = Columns::new(&[
            "work",
            "on",
            "seconds",
            "answered",
            "reads",
            "home",
            "log",
            "KiB read",
            "KiB home",
            "accesses: x ext4",
            "x hashed",
        ]);
        for run in self.runs.iter().filter(|run| run.place == Place::Loop) {
            let (took, counts) = (&run.took, &run.took.counts);
            let mut cells = vec![
                run.work.text().to_owned(),
                run.contender.text().to_owned(),
                format!("{:.1}", seconds(took)),
                format!("{:.1}", took.answered as f64 / 1e9),
            ];
            let counted = [
                counts.reads,
                counts.home,
                counts.log,
                counts.read_bytes >> 10,
                counts.home_bytes >> 10,
            ];
            cells.extend(counted.map(|count| count.to_string()));
            let kernels = Contender::KERNELS.map(|kernel| self.took(Place::Loop, kernel, run.work));
            cells.extend(kernels.map(|kernel| {
                kernel.map_or("-".to_owned(), |it| format!("{:.2}", accesses(took) / accesses(it)))
            }));
            columns.row(cells);
        }
        if self.runs.iter().all(|run| run.place == Place::Virtual) {
            return String::new();
        }
        format!(
            "\nThe same on loop devices, by the clock (a store's log is among its writes home):\n\n{}",
            columns.text()
        )
    }

    /// Bars: time, and accesses, by those of the traditional layout.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn svg(&self) -> Res<String> {
        let figures: [(&str, Value); 2] =
            [("time / traditional", seconds), ("accesses / traditional", accesses)];
        let panels = figures.map(|(title, of)| {
            let group = |work: Work| {
                let values = Contender::STORES.map(|contender| self.ratio(contender, work, of));
                (work.text().to_owned(), values.to_vec())
            };
            Panel { title: title.to_owned(), full: 2.0, groups: Work::ALL.map(group).to_vec() }
        });
        svg(&super::layouts(), 1, &panels)
    }

    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

fn seconds(took: &Measured) -> f64 {
    took.settled.max(1) as f64 / 1e9
}

fn accesses(took: &Measured) -> f64 {
    took.counts.accesses().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::super::chart::bars;
    use super::*;
    use crate::layouts::Settings;
    use crate::small::measure;

    #[test]
    fn every_work_runs_on_every_layout_and_frees_its_space() {
        let shape = Shape {
            clients: 2,
            files: 150,
            transactions: 400,
            source_files: 120,
            webs: 1,
            settings: Settings {
                cache_bytes: 16 << 20,
                log_bytes: 16 << 20,
                device_bytes: 1 << 30,
                data_blocks: 1 << 20,
                ..Settings::PAPERS
            },
        };
        let runs = measure(&shape, &Work::ALL, None, &mut |_| ()).unwrap();
        let figure = F5::new(shape, runs);
        for work in Work::ALL {
            let of = |contender| figure.took(Place::Virtual, contender, work).map(|took| took.ops);
            let [ours, linear, hashed] = Contender::STORES.map(of);
            assert!(ours.is_some_and(|ops| ops > 0), "{work:?}");
            assert_eq!([linear, hashed], [ours; 2], "{work:?}: the same calls");
        }
        let web = figure.took(Place::Virtual, Contender::Embedded, Work::Web16).unwrap().ops;
        assert_eq!(web, 2 * 2 * 64 * 16, "two clients make and read 64 directories of 16 files");
        let text = figure.text();
        assert!(text.contains("Polygraph 8*8*16") && text.contains("004: 4 %"), "{text}");
        assert_eq!(bars(&figure.svg().unwrap(), 3).len(), 2 * 6 * 3);
        assert!(figure.to_json().contains("\"post-mark\""));
    }
}
