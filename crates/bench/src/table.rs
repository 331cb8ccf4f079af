//! The table: every work by every contender, in turns, several times.

use std::collections::BTreeMap;

use crate::contender::{Field, Kind, SetUp};
use crate::works::{Compared, Row, Sizes, WORKS, Work, make_entries};
use crate::{Res, failed, process, report};

/// A measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where and with what; its `kinds` are chosen by the works.
    pub set_up: SetUp,
    /// Sizes of the works.
    pub sizes: Sizes,
    /// Runs of each work.
    pub runs: usize,
    /// Which contenders there are.
    pub compared: Compared,
    /// Only the works of these names; all usual ones, if there are none.
    pub only: Vec<String>,
}

/// Measures, telling `progress` each turn.
///
/// # Errors
/// The step that failed and why; everything is taken away again.
pub fn measure(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Res<Vec<Row>> {
    process::catch_interrupts();
    let works = chosen(&plan.only)?;
    let kinds: Vec<Kind> = Kind::ALL
        .into_iter()
        .filter(|kind| works.iter().any(|work| plan.compared.kinds(work).contains(kind)))
        .collect();
    progress("setting up");
    let set_up = SetUp { kinds, ..plan.set_up.clone() };
    let mut field = Field::set_up(&set_up)?;
    let rows = turns(plan, &works, &mut field, progress)?;
    field.tear_down()?;
    Ok(rows)
}

fn turns(
    plan: &Plan,
    works: &[&'static Work],
    field: &mut Field,
    progress: &mut dyn FnMut(&str),
) -> Res<Vec<Row>> {
    if let Some(work) = works.iter().find(|work| work.needs_entries()) {
        for &kind in plan.compared.kinds(work) {
            progress(&format!("making {} entries on {}", plan.sizes.entries, kind.text()));
            make_entries(field, &plan.sizes, kind)?;
        }
    }
    let compared = plan.compared;
    let row = |&work: &&'static Work| Row { work, compared, samples: BTreeMap::new() };
    let mut rows: Vec<Row> = works.iter().map(row).collect();
    for run in 1..=plan.runs {
        for row in &mut rows {
            let mut line = format!("run {run}/{}, {}:", plan.runs, row.work.name);
            for &kind in compared.kinds(row.work) {
                let sample = row.work.turn(field, &plan.sizes, kind)?;
                line += &format!(" {} {}", kind.text(), report::rate(row.work, sample.rate()));
                row.samples.entry(kind).or_default().push(sample);
            }
            progress(&line);
        }
    }
    Ok(rows)
}

fn chosen(only: &[String]) -> Res<Vec<&'static Work>> {
    for name in only {
        if !WORKS.iter().any(|work| work.name == name) {
            let names: Vec<&str> = WORKS.iter().map(|work| work.name).collect();
            return failed("--only", format!("`{name}` is none of {}", names.join(", ")));
        }
    }
    let named = |work: &Work| only.iter().any(|name| name == work.name);
    let wanted = |work: &&Work| named(work) || only.is_empty() && work.is_usual();
    Ok(WORKS.iter().filter(wanted).collect())
}
