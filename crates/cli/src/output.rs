//! What commands print: tables for people, JSON for programs.

use std::io::Write;

use serde::Serialize;

use crate::args::{Format, Output};
use crate::exit::Failure;

/// Prints a line to standard error. Ignores errors: the reader may be gone.
pub fn eprint_line(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}

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

/// Prints `value`, which has a field `version`, in the format of `output`; `table` makes a table.
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
    let text = text.map_err(|error| {
        Failure::failed("RB-OUTPUT", format!("cannot format the result as JSON: {error}"))
    })?;
    print(&format!("{text}\n"))
}
