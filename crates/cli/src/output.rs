//! What commands print: tables for people, JSON for programs.

use std::io::Write;

use serde::Serialize;

use crate::args::{Format, Output};
use crate::exit::Failure;

/// Says something beside the output. Nobody may be left to read it.
pub fn tell(line: &str) {
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
