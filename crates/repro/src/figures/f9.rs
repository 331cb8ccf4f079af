//! F9: an aged file system (004 Fig. 9).

use serde::Serialize;

use super::chart::{Panel, svg};
use crate::aging::Point;
use crate::layouts::{Contender, Measured};
use bench::Res;
use bench::report::Columns;

/// See the module.
#[derive(Serialize, Debug)]
pub struct F9 {
    version: u32,
    points: Vec<Point>,
}

/// What must be left of the fresh create rate at 80 % (004 §V.D.2: 43 % less), and how far it must
/// be ahead.
const LEFT: f64 = 0.57;
const AHEAD: f64 = 1.26;
/// Where that is asked.
const FULL: u64 = 80;

/// Creating or deleting, of a point.
type Of = fn(&Point) -> &Measured;

fn create(point: &Point) -> &Measured {
    &point.create
}

fn delete(point: &Point) -> &Measured {
    &point.delete
}

impl F9 {
    /// Of these points.
    pub fn new(points: Vec<Point>) -> F9 {
        F9 { version: 1, points }
    }

    fn levels(&self) -> Vec<u64> {
        let ours = self.points.iter().filter(|point| point.contender == Contender::Embedded);
        ours.map(|point| point.percent).collect()
    }

    fn rate(&self, contender: Contender, percent: u64, of: Of) -> Option<f64> {
        let same = |point: &&Point| (point.contender, point.percent) == (contender, percent);
        self.points.iter().find(same).map(|point| of(point).rate())
    }

    /// Paper against measured, for people.
    pub fn text(&self) -> String {
        let mut text =
            "F9: an aged file system on the virtual disk, operations a second until everything \
                        is at home:\n"
                .to_owned();
        for (title, of) in [("create", create as Of), ("delete", delete)] {
            let mut columns = Columns::new(&[
                title,
                "embedded",
                "of fresh",
                "traditional",
                "of fresh",
                "hashed",
                "of fresh",
                "x traditional",
                "x hashed",
            ]);
            for percent in self.levels() {
                columns.row(self.row(percent, of));
            }
            text += &format!("\n{}", columns.text());
        }
        text + &self.verdict()
    }

    fn row(&self, percent: u64, of: Of) -> Vec<String> {
        let rate = |contender| self.rate(contender, percent, of);
        let fresh = |contender| self.rate(contender, *self.levels().first()?, of);
        let cell = |value: Option<f64>, digits: usize| {
            value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
        };
        let mut cells = vec![format!("{percent} % full")];
        for contender in Contender::STORES {
            let share = rate(contender).zip(fresh(contender)).map(|(rate, fresh)| rate / fresh);
            cells.extend([cell(rate(contender), 0), cell(share, 2)]);
        }
        for other in [Contender::Linear, Contender::Hashed] {
            let ratio =
                rate(Contender::Embedded).zip(rate(other)).map(|(ours, other)| ours / other);
            cells.push(cell(ratio, 2));
        }
        cells
    }

    fn verdict(&self) -> String {
        let rate = |contender, percent| self.rate(contender, percent, create);
        let fresh = self.levels().first().and_then(|&first| rate(Contender::Embedded, first));
        let (Some(fresh), Some(aged), Some(linear), Some(hashed)) = (
            fresh,
            rate(Contender::Embedded, FULL),
            rate(Contender::Linear, FULL),
            rate(Contender::Hashed, FULL),
        ) else {
            return String::new();
        };
        let met = |good: bool| if good { "met" } else { "MISSED" };
        let best = linear.max(hashed);
        format!(
            "\nCreate at {FULL} %: {:.2} of fresh (paper 0.57; goal {LEFT:.2}: {}), {:.2} x the better \
             traditional layout (paper and goal {AHEAD:.2}: {})\n",
            aged / fresh,
            met(aged / fresh >= LEFT),
            aged / best,
            met(aged / best >= AHEAD)
        )
    }

    /// Bars: each layout's rates by the embedded one's when it was fresh.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn svg(&self) -> Res<String> {
        let panel = |title: &str, of: Of| {
            let levels = self.levels();
            let first = levels.first().copied().unwrap_or(0);
            let fresh = self.rate(Contender::Embedded, first, of);
            let group = |&percent: &u64| {
                let value = |contender| {
                    let rate = self.rate(contender, percent, of);
                    rate.zip(fresh).map(|(rate, fresh)| rate / fresh)
                };
                (format!("{percent} % full"), Contender::STORES.map(value).to_vec())
            };
            let title = format!("{title} / embedded when fresh");
            Panel { title, full: 1.5, groups: levels.iter().map(group).collect() }
        };
        svg(&super::layouts(), 1, &[panel("create", create), panel("delete", delete)])
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
    use crate::aging::{Plan, measure};
    use crate::layouts::Settings;

    #[test]
    fn filling_store_is_measured_at_every_level() {
        let plan = Plan {
            processes: 3,
            batch: 60,
            dirs: 50,
            durable_each: u64::MAX,
            levels: vec![0, 3],
            settings: Settings {
                cache_bytes: 16 << 20,
                log_bytes: 16 << 20,
                device_bytes: 64 << 20,
                ..Settings::PAPERS
            },
        };
        let points = measure(&plan, &mut |_| ()).unwrap();
        assert_eq!(points.len(), 6);
        assert!(points.iter().all(|point| (point.create.ops, point.delete.ops) == (180, 180)));
        let figure = F9::new(points);
        assert_eq!(figure.levels(), [0, 3]);
        assert!(figure.text().contains("3 % full") && !figure.text().contains("goal"));
        assert_eq!(bars(&figure.svg().unwrap(), 3).len(), 2 * 2 * 3);
    }

    #[test]
    fn goals_at_80_percent_compare_with_the_better_contender() {
        let took = |ops| Measured { ops, settled: 1_000_000_000, ..Measured::default() };
        let point = |contender, percent, ops| Point {
            contender,
            percent,
            create: took(ops),
            delete: took(ops),
        };
        let others = [point(Contender::Linear, 80, 400), point(Contender::Hashed, 80, 500)];
        let with = |aged| {
            let ours = [point(Contender::Embedded, 0, 1000), point(Contender::Embedded, 80, aged)];
            F9::new([&ours[..], &others].concat()).text()
        };
        let text = with(640);
        assert!(text.contains("0.64 of fresh") && text.contains("1.28 x the better"), "{text}");
        assert!(!text.contains("MISSED"), "{text}");
        assert_eq!(with(560).matches("MISSED").count(), 2);
        assert_eq!(with(600).matches("MISSED").count(), 1);
    }
}
