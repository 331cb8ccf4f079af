//! F3: files that are still whole after damage to the PAGs (002 Fig. 5).

use serde::Serialize;

use super::chart::{Panel, svg};
use crate::snapshot::{Lost, Overwritten, Plan, Snapshot};
use crate::streams::striping;
use bench::Res;
use bench::report::Columns;
use proto::placement::{Layout, PART};

/// PAGs that are overwritten, and PAGs of which some are lost (002 Fig. 5).
const OVERWRITTEN: u16 = 10;
const LOST: u16 = 12;
/// Per cent of the files' blocks that are overwritten, and the blocks of a run.
const LEVELS: [u32; 8] = [1, 2, 5, 10, 20, 30, 40, 50];
const RUN: u64 = 64;
/// Largest of the files that are overwritten: all of their content is in memory. There are fewer of
/// them by this number.
const WHOLE_MAX: u64 = 1 << 20;
const FEWER: u64 = 50;
/// Files that a client reads with each number of lost PAGs.
const SAMPLE: usize = 1_000;
/// How far FileRound may stay below 1 - k / PAGs.
const NEAR: f64 = 0.02;

/// How large it is.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct Size {
    /// Files of the snapshot that loses PAGs.
    pub files: u64,
    /// PAGs of it.
    pub pags: u16,
}

impl Size {
    /// The papers' PAGs and so many files.
    pub fn papers(files: u64) -> Size {
        Size { files, pags: LOST }
    }
}

/// See the module.
#[derive(Serialize, Debug)]
pub struct F3 {
    version: u32,
    size: Size,
    bytes: u64,
    overwritten: Vec<Overwritten>,
    fileround: Vec<Lost>,
    striping: Vec<Lost>,
}

impl F3 {
    /// Measures it.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn measure(size: Size, progress: &mut dyn FnMut(&str)) -> Res<F3> {
        let overwritten = Snapshot::make(Plan {
            zones: OVERWRITTEN,
            files: (size.files / FEWER).max(100),
            layout: Layout::default(),
            whole: Some(WHOLE_MAX),
        })?;
        let overwritten = overwritten.overwrite(&LEVELS, RUN)?;
        progress("F3: PAGs were overwritten");
        let mut bytes = 0;
        let mut lose = |name: &str, layout| {
            let made =
                Snapshot::make(Plan { zones: size.pags, files: size.files, layout, whole: None })?;
            progress(&format!("F3, {name}: {} files were made", size.files));
            bytes = made.bytes();
            made.lose(SAMPLE)
        };
        let fileround = lose("FileRound", Layout::default())?;
        let striping = lose("Striping", striping(PART))?;
        Ok(F3 { version: 1, size, bytes, overwritten, fileround, striping })
    }

    /// Paper against measured, for people.
    pub fn text(&self) -> String {
        let mut columns =
            Columns::new(&["blocks overwritten %", "whole %", "hurt", "named", "not as named"]);
        for level in &self.overwritten {
            columns.row(vec![
                format!("{:.1}", 100.0 * level.blocks),
                format!("{:.1}", 100.0 * level.whole),
                level.hurt.to_string(),
                level.named.to_string(),
                level.surprises.to_string(),
            ]);
        }
        let mut text = format!(
            "F3: runs of {} KiB overwritten on {OVERWRITTEN} PAGs, files up to {} KiB; paper: files \
             are hurt in proportion to the damage\n\n{}{}",
            (RUN * types::limits::BLOCK_U64) >> 10,
            WHOLE_MAX >> 10,
            columns.text(),
            self.named()
        );
        let mut columns = Columns::new(&[
            "lost PAGs",
            "1 - k/n %",
            "FileRound whole %",
            "fullest lost %",
            "Striping whole %",
            "fullest lost %",
            "read",
            "not as expected",
        ]);
        for (whole, parts) in self.fileround.iter().zip(&self.striping) {
            let percent = |share: f64| format!("{:.2}", 100.0 * share);
            columns.row(vec![
                whole.lost.to_string(),
                percent(self.left(whole)),
                percent(whole.average),
                percent(whole.fullest),
                percent(parts.average),
                percent(parts.fullest),
                (whole.read + parts.read).to_string(),
                (whole.surprises + parts.surprises).to_string(),
            ]);
        }
        text += &format!(
            "\n{} files of {} GB on {} PAGs, some of them lost, on average over all choices of them, \
             and if those with most files are lost\n\n{}{}",
            self.size.files,
            self.bytes / 1_000_000_000,
            self.size.pags,
            columns.text(),
            self.verdict()
        );
        text
    }

    /// The share that is left on average if each file lies on one PAG.
    fn left(&self, lost: &Lost) -> f64 {
        1.0 - f64::from(lost.lost) / f64::from(self.size.pags)
    }

    fn named(&self) -> String {
        let surprises: u64 = self.overwritten.iter().map(|level| level.surprises).sum();
        format!(
            "\nExactly the files that `redbud pag files` names are hurt: {}\n",
            met(surprises == 0)
        )
    }

    fn verdict(&self) -> String {
        let both = || self.fileround.iter().zip(&self.striping);
        let near = both().all(|(whole, _)| whole.average >= self.left(whole) - NEAR);
        let fullest = both().all(|(whole, _)| whole.fullest >= self.left(whole) - NEAR);
        let above = both().all(|(whole, parts)| whole.average >= parts.average);
        let even = both().all(|(whole, parts)| whole.fullest >= parts.fullest);
        let read = both().all(|(whole, parts)| whole.surprises + parts.surprises == 0);
        format!(
            "\nFileRound keeps 1 - k/{} - {:.0} %: {} (if the fullest are lost: {}); it is not below \
             Striping: {} (if the fullest are lost: {}); files read with dead PAGs are as expected: \
             {}\n",
            self.size.pags,
            100.0 * NEAR,
            met(near),
            met(fullest),
            met(above),
            met(even),
            met(read),
        )
    }

    /// Bars: shares of whole files.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn svg(&self) -> Res<String> {
        let overwritten = self.overwritten.iter();
        let overwritten = overwritten
            .map(|level| (format!("{:.0} %", 100.0 * level.blocks), vec![Some(level.whole), None]));
        let lost = self.fileround.iter().zip(&self.striping);
        let lost = lost.map(|(whole, parts)| {
            (whole.lost.to_string(), vec![Some(whole.average), Some(parts.average)])
        });
        let panel = |title: &str, groups| Panel { title: title.to_owned(), full: 1.0, groups };
        let panels = [
            panel("whole files, by blocks overwritten", overwritten.collect()),
            panel("whole files, by lost PAGs", lost.collect()),
        ];
        svg(&["FileRound", "Striping"], 1, &panels)
    }

    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

fn met(good: bool) -> &'static str {
    if good { "met" } else { "MISSED" }
}

#[cfg(test)]
mod tests {
    use super::super::chart::bars;
    use super::*;

    #[test]
    fn damage_is_measured_and_stays_local() {
        let figure = F3::measure(Size { files: 300, pags: 4 }, &mut |_| ()).unwrap();
        let text = figure.text();
        assert!(text.contains("names are hurt: met"), "{text}");
        assert!(text.contains("as expected: met"), "{text}");
        assert!(figure.bytes > 0 && figure.fileround.len() == 3, "{text}");
        assert_eq!(bars(&figure.svg().unwrap(), 2).len(), LEVELS.len() + 2 * 3);
    }

    #[test]
    fn verdict_names_what_is_missed() {
        let lost =
            |average, fullest| vec![Lost { lost: 1, average, fullest, read: 9, surprises: 0 }];
        let with = |whole, parts, surprises| {
            let level = Overwritten { blocks: 0.1, whole: 0.9, hurt: 3, named: 3, surprises };
            let figure = F3 {
                version: 1,
                size: Size { files: 9, pags: 4 },
                bytes: 1,
                overwritten: vec![level],
                fileround: whole,
                striping: parts,
            };
            figure.text().matches("MISSED").count()
        };
        assert_eq!(with(lost(0.75, 0.74), lost(0.74, 0.73), 0), 0);
        assert_eq!(with(lost(0.75, 0.72), lost(0.74, 0.73), 1), 3);
        assert_eq!(with(lost(0.72, 0.74), lost(0.73, 0.73), 0), 2);
    }
}
