//! F1: throughput as clients and PAGs grow together (002 Fig. 4a).

use serde::Serialize;

use super::chart::{Panel, svg};
use crate::streams::{self, Files, Pattern, Plan, Took};
use bench::Res;
use bench::report::Columns;
use proto::placement::Layout;

/// Clients, and PAGs.
pub const CLIENTS: [u16; 6] = [1, 2, 4, 8, 16, 32];
/// Dirty bytes of a client: those of 32 fit into the memory of one machine.
const DIRTY: usize = 32 << 20;
/// The least share of linear growth, and what the server's share stays below (002, section 6.2.1).
const LINEAR: f64 = 0.9;
const SERVER: f64 = 0.02;

/// See the module.
#[derive(Serialize, Debug)]
pub struct F1 {
    version: u32,
    files: Files,
    points: Vec<Point>,
}

/// So many clients on as many PAGs.
#[derive(Clone, Serialize, Debug)]
pub struct Point {
    /// Clients, and PAGs.
    pub clients: u16,
    /// Each pattern, in the order in which they ran.
    pub took: Vec<Took>,
}

impl Point {
    fn rate(&self, pattern: Pattern) -> f64 {
        self.took.iter().find(|took| took.pattern == pattern).map_or(0.0, Took::rate)
    }
}

impl F1 {
    /// Measures every point: one file of so many bytes for each client.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn measure(bytes: u64, clients: &[u16], progress: &mut dyn FnMut(&str)) -> Res<F1> {
        let files = Files { files: 1, bytes };
        let mut points = Vec::new();
        for &clients in clients {
            let took = streams::measure(&Plan {
                clients: clients.into(),
                zones: clients,
                layout: Layout::default(),
                files,
                patterns: Pattern::ALL.to_vec(),
                dirty_bytes: DIRTY,
            })?;
            let point = Point { clients, took };
            let rates = Pattern::ALL.map(|it| format!("{} {:.0}", it.text(), point.rate(it)));
            progress(&format!("F1, {clients} clients: {} MB/s", rates.join(", ")));
            points.push(point);
        }
        Ok(F1 { version: 1, files, points })
    }

    /// A point's rate by that of one client times their number.
    fn linear(&self, point: &Point, pattern: Pattern) -> f64 {
        let one = self.points.first();
        let each = one.map_or(1.0, |one| one.rate(pattern) / f64::from(one.clients));
        point.rate(pattern) / (each * f64::from(point.clients))
    }

    /// Paper against measured, for people.
    pub fn text(&self) -> String {
        let mut columns = Columns::new(&[
            "clients = PAGs",
            "write MB/s",
            "of linear",
            "re-write",
            "of linear",
            "read",
            "of linear",
            "re-read",
            "of linear",
            "server % at most",
        ]);
        for point in &self.points {
            let mut cells = vec![point.clients.to_string()];
            for pattern in Pattern::ALL {
                cells.push(format!("{:.0}", point.rate(pattern)));
                cells.push(format!("{:.3}", self.linear(point, pattern)));
            }
            cells.push(format!("{:.3}", 100.0 * most_of_server(point)));
            columns.row(cells);
        }
        format!(
            "F1: each client with a file of {} MiB, in requests of {} KiB, on as many PAGs; paper: \
             nearly linear\n\n{}{}",
            self.files.bytes >> 20,
            streams::REQUEST >> 10,
            columns.text(),
            self.verdict()
        )
    }

    fn verdict(&self) -> String {
        let Some(last) = self.points.last() else { return String::new() };
        let met = |good: bool| if good { "met" } else { "MISSED" };
        let least = Pattern::ALL.map(|pattern| self.linear(last, pattern));
        let least = least.into_iter().fold(f64::INFINITY, f64::min);
        let slower = |point: &&Point| point.rate(Pattern::Rewrite) <= point.rate(Pattern::Write);
        let slower = self.points.iter().filter(slower).count();
        let share = self.points.iter().map(most_of_server).fold(0.0, f64::max);
        format!(
            "\nWith {} clients at least {least:.3} of linear (goal {LINEAR}: {}); re-write is above \
             write with {} of {} numbers of clients (paper and goal, all: {}); the server's \
             processor is busy for at most {:.3} % (paper below {:.0} %: {})\n",
            last.clients,
            met(least >= LINEAR),
            self.points.len() - slower,
            self.points.len(),
            met(slower == 0),
            100.0 * share,
            100.0 * SERVER,
            met(share < SERVER),
        )
    }

    /// Bars: each pattern's rate by that of one client times their number.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn svg(&self) -> Res<String> {
        let group = |point: &Point| {
            let values = Pattern::ALL.map(|pattern| Some(self.linear(point, pattern)));
            (point.clients.to_string(), values.to_vec())
        };
        let title = "throughput / (clients x that of one), by clients = PAGs".to_owned();
        let panel = Panel { title, full: 1.2, groups: self.points.iter().map(group).collect() };
        svg(&Pattern::ALL.map(Pattern::text), 1, &[panel])
    }

    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

fn most_of_server(point: &Point) -> f64 {
    point.took.iter().map(Took::server_share).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::super::chart::bars;
    use super::*;

    #[test]
    fn patterns_are_measured_with_each_number_of_clients() {
        let figure = F1::measure(8 << 20, &[1, 2], &mut |_| ()).unwrap();
        assert!(figure.points.iter().all(|point| point.took.len() == 4), "{figure:?}");
        assert_eq!(bars(&figure.svg().unwrap(), 4).len(), 2 * 4);
        assert!(
            figure.text().contains("With 2 clients") && figure.to_json().contains("\"rewrite\"")
        );
    }

    #[test]
    fn verdict_names_what_is_missed() {
        let took = |pattern, bytes, server_nanos| {
            let nanos = 1_000_000_000;
            Took { pattern, bytes, nanos, busiest: 1.0, requests: 9, server_nanos }
        };
        let with = |write, server| {
            let of = |clients: u16, write| Point {
                clients,
                took: Pattern::ALL
                    .map(|pattern| {
                        let is_write = pattern == Pattern::Write;
                        let each = if is_write { write } else { 110_000_000 };
                        took(pattern, each * u64::from(clients), server)
                    })
                    .to_vec(),
            };
            let points = vec![of(1, 100_000_000), of(32, write)];
            F1 { version: 1, files: Files { files: 1, bytes: 1 << 20 }, points }.text()
        };
        let text = with(91_000_000, 19_000_000);
        assert!(text.contains("0.910 of linear") && !text.contains("MISSED"), "{text}");
        assert_eq!(with(89_000_000, 19_000_000).matches("MISSED").count(), 1);
        assert_eq!(with(110_000_000, 21_000_000).matches("MISSED").count(), 2);
    }
}
