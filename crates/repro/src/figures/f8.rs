//! F8: timeouts that follow the server's load (002 Fig. 10).

use proto::timeout::{Estimator, MARGIN};
use serde::Serialize;

use super::curves::{Curves, svg};
use crate::burst::{self, BURST, CLEAN, EARLY, Judged, Reading};
use bench::Res;
use bench::report::Columns;

/// See the module.
#[derive(Serialize, Debug)]
pub struct F8 {
    version: u32,
    readings: Vec<Panel>,
}

/// One reading of the load.
#[derive(Serialize, Debug)]
struct Panel {
    reading: Reading,
    /// Requests a second of the burst.
    rate: u32,
    /// By how much the burst exceeds each server.
    loads: Vec<f64>,
    /// Requests at all servers.
    requests: u64,
    /// What the requests sent in each second took, on average, in seconds.
    service: Vec<f64>,
    comparisons: Vec<Comparison>,
}

/// Estimators with the same mean delay.
#[derive(Serialize, Debug)]
struct Comparison {
    /// Of LCF of each request; the margins of MAX and LCF follow from it.
    margin: f64,
    judged: Vec<Judged>,
    /// Servers at which LCF has fewer timeouts than MAX, and LCF of each request than LCF.
    fewer: [usize; 2],
}

/// Servers, whose speeds wander differently.
const SERVERS: u64 = 8;
/// Estimates as they are, as in the paper, and with the product's margin.
const MARGINS: [f64; 2] = [1.0, MARGIN];
/// How far from the paper's 110 s the first static timeout may be.
const NEAR: f64 = 5.0;

impl F8 {
    /// Runs both readings.
    pub fn measure(progress: &mut dyn FnMut(&str)) -> F8 {
        let seeds: Vec<u64> = (1..=SERVERS).collect();
        // In the other reading the same servers are as many times faster.
        let of = |&seed: &u64| burst::calibrate(Reading::OneGroup, seed);
        let loads: Vec<f64> = seeds.iter().map(of).collect();
        let panels = Reading::ALL.map(|reading| {
            progress(&format!("F8: {} requests a second for {BURST} s", reading.rate()));
            Panel::measure(reading, &seeds, &loads)
        });
        F8 { version: 1, readings: panels.into() }
    }

    /// Paper against measured, for people.
    pub fn text(&self) -> String {
        let mut text =
            "F8: timeouts at modelled servers, of estimators with the same mean delay\n".to_owned();
        for panel in &self.readings {
            text += &panel.text();
        }
        text
    }

    /// Lines: service times and estimates, and timeouts, of both readings.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn svg(&self) -> Res<String> {
        let names = Estimator::ALL.map(Estimator::name);
        let series: Vec<&str> = ["real"].into_iter().chain(names).collect();
        let panels: Vec<Curves> = self.readings.iter().flat_map(Panel::curves).collect();
        svg(&series, &panels)
    }

    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl Panel {
    fn measure(reading: Reading, seeds: &[u64], loads: &[f64]) -> Panel {
        let mut services = Vec::new();
        let mut judged = MARGINS.map(|_| Vec::new());
        let mut requests = 0;
        for (&seed, &load) in seeds.iter().zip(loads) {
            let run = burst::run(reading, load, seed, true);
            requests += run.requests();
            services.push(run.service());
            for (all, margin) in judged.iter_mut().zip(MARGINS) {
                all.push(run.judge_all(margin));
            }
        }
        let mean = |second| {
            services.iter().map(|service| service[second]).sum::<f64>() / services.len() as f64
        };
        let comparisons = judged.iter().zip(MARGINS);
        Panel {
            reading,
            rate: reading.rate(),
            loads: loads.to_vec(),
            requests,
            service: (0..burst::END as usize).map(mean).collect(),
            comparisons: comparisons.map(|(all, margin)| Comparison::of(margin, all)).collect(),
        }
    }

    fn text(&self) -> String {
        let (least, most) = self
            .loads
            .iter()
            .fold((f64::INFINITY, 0.0_f64), |(low, high), &load| (low.min(load), high.max(load)));
        let mut text = format!(
            "\n{} requests a second for {BURST} s, {least:.2} to {most:.2} times what each of {} \
             servers can do\n",
            self.rate,
            self.loads.len()
        );
        for comparison in &self.comparisons {
            text += &comparison.text(self.requests, self.loads.len());
        }
        text
    }

    fn curves(&self) -> [Curves; 2] {
        let rate = format!("{} requests/s", self.rate);
        let highest = self.service.iter().copied().fold(1.0, f64::max);
        let plain = &self.comparisons[0].judged;
        let estimates = plain.iter().map(|judged| Some(judged.estimates.clone()));
        let log = |count: &f64| (1.0 + count).log10();
        let timeouts =
            plain.iter().map(|judged| Some(judged.each_second.iter().map(log).collect()));
        [
            Curves {
                title: format!("service time and estimates in s; {rate}"),
                full: 1.5 * highest,
                lines: [Some(self.service.clone())].into_iter().chain(estimates).collect(),
            },
            Curves {
                title: format!("timeouts a second, log10(1 + n); {rate}"),
                full: f64::from(self.rate).log10().ceil(),
                lines: [None].into_iter().chain(timeouts).collect(),
            },
        ]
    }
}

impl Comparison {
    /// Of the judgements of several servers, each by all estimators.
    fn of(margin: f64, servers: &[Vec<Judged>]) -> Comparison {
        let by = |which: usize| {
            Judged::of_all(&servers.iter().map(|judged| &judged[which]).collect::<Vec<_>>())
        };
        let fewer = |few: Estimator, many: Estimator| {
            let fewer = |judged: &&Vec<Judged>| {
                judged[few as usize].timeouts < judged[many as usize].timeouts
            };
            servers.iter().filter(fewer).count()
        };
        let judged = (0..Estimator::ALL.len()).map(by).collect();
        let fewer =
            [fewer(Estimator::Lcf, Estimator::Max), fewer(Estimator::LcfEach, Estimator::Lcf)];
        Comparison { margin, judged, fewer }
    }

    fn by(&self, estimator: Estimator) -> &Judged {
        &self.judged[estimator as usize]
    }

    fn text(&self, requests: u64, servers: usize) -> String {
        let mut columns = Columns::new(&[
            "estimator",
            "margin",
            "mean delay s",
            "timeouts %",
            "before 120 s %",
            "first at s",
        ]);
        let share = |count: u64| format!("{:.3}", 100.0 * count as f64 / requests as f64);
        for judged in &self.judged {
            columns.row(vec![
                judged.estimator.clone(),
                format!("{:.2}", judged.margin),
                format!("{:.1}", judged.delay),
                share(judged.timeouts),
                share(judged.early),
                judged.first.map_or("-".to_owned(), |first| format!("{first:.0}")),
            ]);
        }
        let met = |good: bool| if good { "met" } else { "MISSED" };
        let timeouts = |estimator| self.by(estimator).timeouts;
        let [max, lcf, each] = [Estimator::Max, Estimator::Lcf, Estimator::LcfEach].map(timeouts);
        let clean = self.by(Estimator::Static).first.unwrap_or(f64::INFINITY);
        format!(
            "\n{}\nmargin {:.1}: Static is clean for {clean:.0} s (paper {CLEAN:.0}: {}); LCF \
             below MAX: {} (at {} of {servers} servers); LCF of each request below LCF: {} (at {}); \
             before {EARLY:.0} s LCF has {} % of its timeouts (paper: some)\n",
            columns.text(),
            self.margin,
            met((clean - CLEAN).abs() <= NEAR),
            met(lcf < max),
            self.fewer[0],
            met(each < lcf),
            self.fewer[1],
            100 * self.by(Estimator::Lcf).early / lcf.max(1),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the reading by groups, at two servers.
    fn panel() -> Panel {
        Panel::measure(Reading::AllGroups, &[2, 5], &[1.33, 1.40])
    }

    #[test]
    fn line_has_fewer_timeouts_than_the_maximum_at_the_same_delay() {
        let panel = panel();
        let text = panel.text();
        for comparison in &panel.comparisons {
            let [still, max, lcf, each] = &comparison.judged[..] else { panic!("{text}") };
            assert!(lcf.timeouts < max.timeouts && each.timeouts < lcf.timeouts, "{text}");
            assert!((max.delay - each.delay).abs() < 0.01, "{text}");
            assert!(still.timeouts > each.timeouts && comparison.fewer[0] == 2, "{text}");
        }
        let figure = F8 { version: 1, readings: vec![panel] };
        let svg = figure.svg().unwrap();
        assert!(svg.matches("<polyline").count() >= 9, "five lines and four");
        assert!(figure.to_json().contains("\"LCF of each\""));
    }

    #[test]
    fn verdict_names_what_is_missed() {
        let mut panel = panel();
        for judged in panel.comparisons.iter_mut().flat_map(|one| &mut one.judged) {
            judged.timeouts = 5;
            judged.first = Some(70.0);
        }
        assert_eq!(panel.text().matches("MISSED").count(), 6);
    }
}
