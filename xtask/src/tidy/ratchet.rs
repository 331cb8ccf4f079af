//! `xtask/ratchet.txt`: what each rule still allows where. Lines of `rule place count`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const FILE: &str = "xtask/ratchet.txt";

/// A rule, the place that it is counted for, and what its count is of.
type Key = (&'static str, String);

/// What was counted. What a rule allows without an entry is not in here.
#[derive(Default)]
pub struct Counts(BTreeMap<Key, Count>);

struct Count {
    number: usize,
    /// Where, in the first case.
    first: String,
}

impl Counts {
    /// Adds `number` for `rule` at `place`; `seen` tells where it was seen.
    pub fn add(&mut self, rule: &'static str, place: &str, number: usize, seen: impl Into<String>) {
        let key = (rule, place.to_owned());
        let first = || Count { number: 0, first: seen.into() };
        self.0.entry(key).or_insert_with(first).number += number;
    }

    /// The count of `rule` at `place`.
    fn get(&self, rule: &str, place: &str) -> usize {
        let mut all = self.0.iter();
        all.find(|((r, p), _)| *r == rule && p == place).map_or(0, |(_, count)| count.number)
    }
}

/// What is allowed.
pub struct Ratchet(BTreeMap<(String, String), usize>);

impl Ratchet {
    /// The ratchet of the project at `root`.
    pub fn read(root: &Path) -> Result<Ratchet, String> {
        let text = fs::read_to_string(root.join(FILE)).map_err(|e| format!("{FILE}: {e}"))?;
        Ratchet::parse(&text)
    }

    fn parse(text: &str) -> Result<Ratchet, String> {
        let mut entries = BTreeMap::new();
        for (at, line) in text.lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong =
                || format!("{FILE}:{}: expected `rule place count`, found `{line}`", at + 1);
            let (start, number) = line.rsplit_once(' ').ok_or_else(wrong)?;
            let (rule, place) = start.split_once(' ').ok_or_else(wrong)?;
            let number = number.parse().map_err(|_| wrong())?;
            entries.insert((rule.to_owned(), place.to_owned()), number);
        }
        Ok(Ratchet(entries))
    }

    /// Entries above what was counted fall to it.
    pub fn lower(&mut self, counts: &Counts) {
        for ((rule, place), allowed) in &mut self.0 {
            *allowed = counts.get(rule, place).min(*allowed);
        }
        self.0.retain(|_, allowed| *allowed > 0);
    }

    /// Writes the file.
    pub fn write(&self, root: &Path) -> Result<(), String> {
        let mut text = String::from(
            "# What `cargo xtask tidy` still allows: rule, place, count. A count may only fall;\n\
             # `cargo xtask tidy --lower` brings entries down to what is counted.\n",
        );
        for ((rule, place), allowed) in &self.0 {
            text += &format!("{rule} {place} {allowed}\n");
        }
        fs::write(root.join(FILE), text).map_err(|error| format!("{FILE}: {error}"))
    }

    /// What is counted more often than allowed, and less often than recorded.
    pub fn compare(&self, counts: &Counts) -> Vec<String> {
        let mut findings = Vec::new();
        for ((rule, place), Count { number, first }) in &counts.0 {
            let key = ((*rule).to_owned(), place.clone());
            let allowed = self.0.get(&key).copied().unwrap_or(0);
            if *number > allowed {
                findings.push(format!("{rule} {place}: {number}, allowed {allowed} ({first})"));
            }
        }
        for ((rule, place), allowed) in &self.0 {
            let number = counts.get(rule, place);
            if number < *allowed {
                findings.push(format!(
                    "{rule} {place}: only {number} now, recorded {allowed}: cargo xtask tidy --lower"
                ));
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::{Counts, Ratchet};

    #[test]
    fn count_may_fall_and_never_rise() {
        let mut ratchet = Ratchet::parse("# c\nlines a.rs 810\nlines b.rs 900\n").expect("parses");
        let mut counts = Counts::default();
        counts.add("lines", "a.rs", 811, "");
        counts.add("lines", "b.rs", 850, "");
        counts.add("lines", "c.rs", 801, "");
        let findings = ratchet.compare(&counts);
        assert_eq!(findings.len(), 3, "{findings:?}");
        ratchet.lower(&counts);
        let findings = ratchet.compare(&counts);
        assert!(findings[0].starts_with("lines a.rs: 811, allowed 810"), "{findings:?}");
        assert!(findings[1].starts_with("lines c.rs: 801, allowed 0"), "{findings:?}");
        assert_eq!(findings.len(), 2, "b.rs fell, and is recorded so");
    }

    #[test]
    fn malformed_ratchet_line_is_named() {
        assert!(Ratchet::parse("lines 3\n").is_err_and(|text| text.contains("ratchet.txt:1")));
    }
}
