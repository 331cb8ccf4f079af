//! F16: what a distributed operation costs by protocol (003 Table I).

use commitment::Protocol;
use serde::Serialize;

use super::curves::{Curves, svg};
use crate::agreement::{self, Load, Log, Ran};
use bench::Res;
use bench::report::Columns;

/// See the module.
#[derive(Serialize, Debug)]
pub struct F16 {
    version: u32,
    operations: u64,
    rows: Vec<Row>,
    /// 1PC in batches of so many operations.
    batch: u64,
    batches: Cells,
}

/// One protocol.
#[derive(Serialize, Debug)]
struct Row {
    protocol: &'static str,
    /// Forced and lazy records, the same on the critical path, messages, and those there.
    paper: [f64; 6],
    measured: Cells,
}

/// Of one operation.
#[derive(Serialize, PartialEq, Clone, Copy, Debug)]
struct Cells {
    counts: [f64; 6],
    /// Writes of the logs' devices, each server with its own.
    writes: f64,
}

const PAPER: [[f64; 6]; 4] = [
    [5.0, 1.0, 4.0, 1.0, 4.0, 4.0],
    [4.0, 1.0, 3.0, 0.0, 3.0, 2.0],
    [4.0, 1.0, 3.0, 0.0, 1.0, 0.0],
    [3.0, 1.0, 2.0, 0.0, 1.0, 0.0],
];
const BATCH: u64 = 16;
/// Most forced records and messages of an operation in a batch.
const BATCHED: [f64; 2] = [0.25, 0.1];

impl Cells {
    fn of(ran: &Ran, operations: u64) -> Cells {
        let counts = &ran.counts;
        let all = [
            counts.forced,
            counts.lazy,
            counts.critical_forced,
            counts.critical_lazy,
            counts.messages,
            counts.critical_messages,
        ];
        let each = |count: u64| count as f64 / operations as f64;
        Cells { counts: all.map(each), writes: each(ran.writes) }
    }

    fn text(&self) -> Vec<String> {
        let [forced, lazy, critical_forced, critical_lazy, messages, critical] = self.counts;
        vec![
            format!("({forced}, {lazy})"),
            format!("({critical_forced}, {critical_lazy})"),
            messages.to_string(),
            critical.to_string(),
        ]
    }
}

impl F16 {
    /// Counts over so many operations, over modelled logs.
    pub fn measure(operations: u64) -> F16 {
        let load = |protocol, batch| Load {
            protocol,
            transactions: operations / batch,
            batch,
            record: 4096.0,
            log: Log::Own,
        };
        let row = |(protocol, paper): (Protocol, [f64; 6])| {
            let ran = agreement::run(load(protocol, 1));
            Row { protocol: protocol.name(), paper, measured: Cells::of(&ran, operations) }
        };
        let rows = Protocol::ALL.into_iter().zip(PAPER).map(row).collect();
        let batches = agreement::run(load(Protocol::OnePhase, BATCH));
        F16 { version: 1, operations, rows, batch: BATCH, batches: Cells::of(&batches, operations) }
    }

    /// Paper against measured, for people.
    pub fn text(&self) -> String {
        let mut columns = Columns::new(&[
            "protocol",
            "",
            "records",
            "critical",
            "messages",
            "critical",
            "device writes",
        ]);
        for row in &self.rows {
            let paper = Cells { counts: row.paper, writes: 0.0 };
            let mut cells = vec![row.protocol.to_owned(), "paper".to_owned()];
            cells.extend(paper.text());
            columns.row(cells);
            let verdict = if row.paper == row.measured.counts { "met" } else { "MISSED" };
            let mut cells = vec![String::new(), verdict.to_owned()];
            cells.extend(row.measured.text());
            cells.push(format!("{:.2}", row.measured.writes));
            columns.row(cells);
        }
        let [forced, .., messages, _] = self.batches.counts;
        let met = forced <= BATCHED[0] && messages <= BATCHED[1];
        format!(
            "F16: records (forced, lazy) and extra messages of an operation, counted over {} \
             modelled ones\n\n{}\n1PC in batches of {}: {forced} forced records, {messages} \
             messages (at most {}, {}: {})\n",
            self.operations,
            columns.text(),
            self.batch,
            BATCHED[0],
            BATCHED[1],
            if met { "met" } else { "MISSED" },
        )
    }

    /// A panel for each count, with a line of each protocol over nothing but itself.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn svg(&self) -> Res<String> {
        let names: Vec<&str> = self.rows.iter().map(|row| row.protocol).collect();
        let panel = |(title, cell): (&str, usize)| Curves {
            title: format!("{title}, of an operation"),
            full: 6.0,
            lines: self.rows.iter().map(|row| Some(vec![row.measured.counts[cell]; 2])).collect(),
        };
        let titles = [
            ("forced records", 0),
            ("forced records on the critical path", 2),
            ("extra messages", 4),
            ("extra messages on the critical path", 5),
        ];
        svg(&names, &titles.map(panel))
    }

    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_is_the_papers() {
        let figure = F16::measure(1_600);
        let text = figure.text();
        assert_eq!(text.matches("met").count(), 5, "{text}");
        assert!(!text.contains("MISSED"), "{text}");
        assert!(figure.svg().unwrap().matches("<polyline").count() >= 16);
        assert!(figure.to_json().contains("\"PrN\""));
    }

    #[test]
    fn verdict_names_what_is_missed() {
        let mut figure = F16::measure(160);
        figure.rows[2].measured.counts[4] = 2.0;
        figure.batches.counts[0] = 0.5;
        assert_eq!(figure.text().matches("MISSED").count(), 2);
    }
}
