//! F8: timeouts that follow the server's load (002 Fig. 10).

use proto::timeout::Estimator;
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
    /// By how much the burst exceeds the server.
    load: f64,
    requests: u64,
    /// What the requests sent in each second took, on average, in seconds.
    service: Vec<f64>,
    judged: Vec<Judged>,
}

/// How far from the paper's 110 s the first static timeout may be.
const NEAR: f64 = 5.0;

impl F8 {
    /// Runs both readings.
    pub fn measure(seed: u64, progress: &mut dyn FnMut(&str)) -> F8 {
        // The same server, as many times faster as there are more requests.
        let load = burst::calibrate(Reading::OneGroup, seed);
        let readings = Reading::ALL.map(|reading| {
            progress(&format!("F8: {} requests a second for {BURST} s", reading.rate()));
            let run = burst::run(reading, load, seed, true);
            let (requests, service) = (run.requests(), run.service());
            let judged = run.judge_all();
            Panel { reading, rate: reading.rate(), load, requests, service, judged }
        });
        F8 { version: 1, readings: readings.into() }
    }

    /// Paper against measured, for people.
    pub fn text(&self) -> String {
        let mut text = "F8: timeouts at a modelled server, of estimators with the same mean delay\n"
            .to_owned();
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
    fn of(&self, estimator: Estimator) -> Option<&Judged> {
        self.judged.iter().find(|judged| judged.estimator == estimator.name())
    }

    fn timeouts(&self, estimator: Estimator) -> u64 {
        self.of(estimator).map_or(0, |judged| judged.timeouts)
    }

    fn text(&self) -> String {
        let mut columns = Columns::new(&[
            "estimator",
            "margin",
            "mean delay s",
            "timeouts",
            "% of requests",
            "before 120 s",
            "first at s",
        ]);
        for judged in &self.judged {
            columns.row(vec![
                judged.estimator.clone(),
                format!("{:.2}", judged.margin),
                format!("{:.1}", judged.delay),
                judged.timeouts.to_string(),
                format!("{:.3}", 100.0 * judged.timeouts as f64 / self.requests as f64),
                judged.early.to_string(),
                judged.first.map_or("-".to_owned(), |first| format!("{first:.0}")),
            ]);
        }
        format!(
            "\n{} requests a second for {BURST} s, {:.2} times what the server can do\n\n{}{}",
            self.rate,
            self.load,
            columns.text(),
            self.verdict()
        )
    }

    fn verdict(&self) -> String {
        let met = |good: bool| if good { "met" } else { "MISSED" };
        let [max, lcf, each] =
            [Estimator::Max, Estimator::Lcf, Estimator::LcfEach].map(|which| self.timeouts(which));
        let clean = self.of(Estimator::Static).and_then(|judged| judged.first);
        let clean = clean.unwrap_or(f64::INFINITY);
        format!(
            "\nStatic is clean for {clean:.0} s (paper {CLEAN:.0}: {}); LCF below MAX: {}; \
             LCF of each request below LCF: {}; LCF has timeouts within {EARLY:.0} s (paper: \
             some): {}\n",
            met((clean - CLEAN).abs() <= NEAR),
            met(lcf < max),
            met(each < lcf),
            self.of(Estimator::Lcf).map_or(0, |judged| judged.early),
        )
    }

    fn curves(&self) -> [Curves; 2] {
        let rate = format!("{} requests/s", self.rate);
        let highest = self.service.iter().copied().fold(1.0, f64::max);
        let real = Some(self.service.clone());
        let estimates = self.judged.iter().map(|judged| Some(judged.estimates.clone()));
        let log = |count: &u64| (1.0 + *count as f64).log10();
        let timeouts =
            self.judged.iter().map(|judged| Some(judged.each_second.iter().map(log).collect()));
        [
            Curves {
                title: format!("service time and estimates in s; {rate}"),
                full: 1.5 * highest,
                lines: [real].into_iter().chain(estimates).collect(),
            },
            Curves {
                title: format!("timeouts a second, log10(1 + n); {rate}"),
                full: f64::from(self.rate).log10().ceil(),
                lines: [None].into_iter().chain(timeouts).collect(),
            },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the reading by groups, which is quick.
    fn panel() -> Panel {
        let (reading, load) = (Reading::AllGroups, 1.4);
        let run = burst::run(reading, load, 1, true);
        let (requests, service, judged) = (run.requests(), run.service(), run.judge_all());
        Panel { reading, rate: reading.rate(), load, requests, service, judged }
    }

    #[test]
    fn line_has_fewer_timeouts_than_the_maximum_at_the_same_delay() {
        let panel = panel();
        let text = panel.text();
        assert!(panel.timeouts(Estimator::Lcf) < panel.timeouts(Estimator::Max), "{text}");
        assert!(panel.timeouts(Estimator::LcfEach) < panel.timeouts(Estimator::Lcf), "{text}");
        let [still, ..] = &panel.judged[..] else { panic!("{text}") };
        assert!(still.timeouts > panel.timeouts(Estimator::LcfEach), "{text}");
        let figure = F8 { version: 1, readings: vec![panel] };
        let svg = figure.svg().unwrap();
        assert_eq!(svg.matches("<polyline").count() >= 9, true, "five lines and four");
        assert!(figure.to_json().contains("\"LCF of each\""));
    }

    #[test]
    fn verdict_names_what_is_missed() {
        let mut panel = panel();
        for judged in &mut panel.judged {
            judged.timeouts = 5;
            judged.first = Some(70.0);
        }
        assert_eq!(panel.text().matches("MISSED").count(), 3);
    }
}
