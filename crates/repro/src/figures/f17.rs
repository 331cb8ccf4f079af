//! F17: distributed operations in a second by protocol, for one directory (003 Fig. 6).

mod creates;
mod servers;

use commitment::Protocol;
use serde::Serialize;

pub use self::creates::{Creates, Size as CreatesSize};
use self::servers::Servers;
pub use self::servers::Size;
use super::curves::{Curves, svg};
use crate::agreement::{self, Load, Log, fit};
use bench::Res;
use bench::report::Columns;

/// See the module.
#[derive(Serialize, Debug)]
pub struct F17 {
    version: u32,
    panels: Vec<Panel>,
    servers: Servers,
}

/// One reading of the log.
#[derive(Serialize, Debug)]
struct Panel {
    log: Log,
    /// Bytes of a record, so that PrN is as fast as in the paper.
    record: f64,
    /// Operations in a second, by protocol.
    rates: [f64; 4],
    /// The same with 1PC in batches.
    batched: f64,
    /// Rates by protocol, for each size of a record in KiB.
    by_size: [Vec<f64>; 4],
}

/// Operations that are there at once (003 §IV).
const OPERATIONS: u64 = 100;
/// Operations of PrN in a second (003 Fig. 6).
const PRN: f64 = 15.0;
/// By how many percent the others are faster (003 §IV); of 1PC "over".
const GAINS: [f64; 4] = [0.0, 0.39, 6.6, 55.0];
/// Operations in a batch, and by how much batches are faster than 1PC one by one.
const BATCH: u64 = 16;
const BATCHED: f64 = 5.0;
/// Sizes of a record in the chart, in KiB.
const SIZES: u32 = 24;

impl F17 {
    /// Runs all readings, and the servers.
    ///
    /// # Errors
    /// Those of the servers.
    pub fn measure(size: Size, progress: &mut dyn FnMut(&str)) -> Res<F17> {
        let panel = |log: Log| {
            progress(&format!("F17: the log is {}", log.text()));
            Panel::measure(log)
        };
        let panels = Log::ALL.map(panel).into();
        Ok(F17 { version: 3, panels, servers: Servers::measure(size, progress)? })
    }

    /// Paper against measured, for people.
    pub fn text(&self) -> String {
        let mut text = format!(
            "F17: {OPERATIONS} creates at once in one directory, two servers; method 1 us, network \
             100 us, log 400 KB/s\n"
        );
        for panel in &self.panels {
            text += &panel.text();
        }
        text + &self.servers.text()
    }

    /// Operations in a second over the size of a record, for each reading.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn svg(&self) -> Res<String> {
        let names: Vec<&str> = Protocol::ALL.iter().map(|protocol| protocol.name()).collect();
        let panel = |panel: &Panel| Curves {
            title: format!("creates/s by KiB of a record; the log is {}", panel.log.text()),
            full: 60.0,
            lines: panel.by_size.iter().map(|rates| Some(rates.clone())).collect(),
        };
        let panels: Vec<Curves> = self.panels.iter().map(panel).collect();
        svg(&names, &panels)
    }

    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

fn rate(protocol: Protocol, record: f64, log: Log, batch: u64) -> f64 {
    agreement::run(Load { protocol, transactions: OPERATIONS, batch, record, log }).rate
}

impl Panel {
    fn measure(log: Log) -> Panel {
        let record = fit(log, PRN);
        let of = |protocol, kib: u32| rate(protocol, f64::from(kib) * 1024.0, log, 1);
        Panel {
            log,
            record,
            rates: Protocol::ALL.map(|protocol| rate(protocol, record, log, 1)),
            batched: rate(Protocol::OnePhase, record, log, BATCH),
            by_size: Protocol::ALL
                .map(|protocol| (1..=SIZES).map(|kib| of(protocol, kib)).collect()),
        }
    }

    fn text(&self) -> String {
        let mut columns = Columns::new(&["protocol", "creates/s", "gain %", "paper %", ""]);
        let gain = |rate: f64| 100.0 * (rate / self.rates[0] - 1.0);
        let rows = Protocol::ALL.iter().zip(self.rates).zip(GAINS);
        for ((protocol, rate), paper) in rows {
            let verdict = match protocol {
                Protocol::OnePhase if gain(rate) >= paper => "met",
                Protocol::OnePhase => "MISSED",
                _ => "",
            };
            columns.row(vec![
                protocol.name().to_owned(),
                format!("{rate:.2}"),
                format!("{:+.2}", gain(rate)),
                format!("{paper:+.2}"),
                verdict.to_owned(),
            ]);
        }
        let faster = self.batched / self.rates[3];
        format!(
            "\nthe log is {}: a record has {:.0} bytes\n\n{}\n1PC in batches of {BATCH}: {:.1} \
             creates/s, {faster:.1} times (at least {BATCHED}: {})\n",
            self.log.text(),
            self.record,
            columns.text(),
            self.batched,
            if faster >= BATCHED { "met" } else { "MISSED" },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_phase_is_ahead_in_every_reading() {
        let size = Size { distributed: 4, own: 2 };
        let figure = F17::measure(size, &mut |_| ()).unwrap();
        let text = figure.text();
        for panel in &figure.panels {
            let [prn, prc, ep, one] = panel.rates;
            assert!((prn - PRN).abs() < 0.1, "{text}");
            assert!(prc >= prn && ep >= prc && one > 1.4 * prn, "{text}");
            assert!(panel.batched > BATCHED * one, "{text}");
        }
        assert!(figure.servers.one_phase_is_ahead(), "{text}");
        assert!(figure.servers.batches_are_ahead(), "{text}");
        assert!(figure.svg().unwrap().matches("<polyline").count() >= 12);
        assert!(figure.to_json().contains("\"Shared\""));
    }

    #[test]
    fn verdict_names_what_is_missed() {
        let mut panel = Panel::measure(Log::Own);
        (panel.rates[3], panel.batched) = (panel.rates[0], panel.rates[0]);
        assert_eq!(panel.text().matches("MISSED").count(), 2);
    }
}
