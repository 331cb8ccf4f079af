//! What commands print: tables for people, JSON for programs.

use std::io::Write;

use serde::Serialize;

use crate::args::{Format, Output};
use crate::exit::Failure;

/// Prints `text` as it is. A reader that left early (`| head`) ends the process quietly.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            Err(Failure::failed("", String::new()))
        }
        Err(error) => {
            Err(Failure::failed("RB-OUTPUT", format!("cannot write the output: {error}")))
        }
    }
}

/// Prints `value`, which has a field `version`, as `output` asks; `table`: as a table.
pub fn print_report<T: Serialize>(
    output: Output,
    value: &T,
    table: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    let text = match output.format() {
        Format::Table => return print(&table(value)),
        Format::Json => serde_json::to_string(value),
        Format::JsonPretty => serde_json::to_string_pretty(value),
    };
    let text =
        text.map_err(|error| Failure::failed("RB-OUTPUT", format!("cannot make JSON: {error}")))?;
    print(&format!("{text}\n"))
}

/// Rows under a head, in columns: the first to the left, the others to the right.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with this head.
    pub fn new(head: &[&str]) -> Table {
        Table { rows: vec![head.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The lines.
    pub fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = " ".repeat(width - cell.chars().count());
                match column {
                    0 => line += &format!("{cell}{gap}"),
                    _ => line += &format!("  {gap}{cell}"),
                }
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["zone", "size"]);
        table.row(vec!["0".into(), "16G".into()]);
        table.row(vec!["total".into(), "1024P".into()]);
        assert_eq!(table.text(), "zone    size\n0        16G\ntotal  1024P\n");
    }
}
