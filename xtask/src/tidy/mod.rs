//! `cargo xtask tidy`: what keeps the tree readable, checked without compiling it.
//!
//! A few rules are absolute. Most are *ratchets*: `xtask/ratchet.txt` holds today's count for a
//! rule and a place, and a count may only fall. A rule without an entry there allows nothing.
//!
//! Invariants:
//! - each finding names the file, what is wrong, and what the rule allows;
//! - a count below its entry is a finding as well, so that the ratchet follows at once
//!   (`cargo xtask tidy --lower`); nothing ever raises an entry by itself.

mod circles;
mod prose;
mod ratchet;
mod sizes;
mod sources;

use std::path::Path;
use std::process::ExitCode;

use crate::documents;
use ratchet::{Counts, Ratchet};
use sources::Sources;

/// Columns of a line of a comment or a document.
const COLUMNS: usize = 100;

/// Checks the tree. `lower`: entries of the ratchet fall to what is counted.
pub fn run(root: &Path, lower: bool) -> ExitCode {
    match findings(root, lower) {
        Ok(findings) if findings.is_empty() => {
            println!("tidy: passed");
            ExitCode::SUCCESS
        }
        Ok(findings) => {
            for finding in &findings {
                println!("tidy: {finding}");
            }
            println!("tidy: FAILED: {} findings", findings.len());
            ExitCode::FAILURE
        }
        Err(text) => {
            println!("tidy: FAILED: {text}");
            ExitCode::FAILURE
        }
    }
}

/// What is wrong with the tree, in lines for people.
pub fn findings(root: &Path, lower: bool) -> Result<Vec<String>, String> {
    let sources = Sources::read(root)?;
    let mut findings: Vec<String> = documents::check(root).err().into_iter().collect();
    findings.extend(prose::wide_lines(&sources));
    let mut counts = Counts::default();
    sizes::count(&sources, &mut counts);
    circles::count(&sources, &mut counts);
    prose::count(&sources, &mut counts);
    let mut ratchet = Ratchet::read(root)?;
    if lower {
        ratchet.lower(&counts);
        ratchet.write(root)?;
    }
    findings.extend(ratchet.compare(&counts));
    Ok(findings)
}
