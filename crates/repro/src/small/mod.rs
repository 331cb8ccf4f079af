//! Small files: PostMark, a source tree (tar, make, clean), and web content as Polygraph makes it
//! (002 §6.3.2, 004 §V.D.3), as the metadata server sees them.
//!
//! Invariants:
//! - what is measured is the metadata device; files' data lie on other devices, of which only the
//!   accounting is there, the same for all layouts;
//! - a client asks the server for a name or a file once and then knows it, as a lease lets it;
//! - all random choices follow from the process's number, so every layout gets the same calls.

mod polygraph;
mod postmark;
mod source;

use bench::scripts::source::Step;
use serde::Serialize;

use crate::layouts::loops::Yard;
use crate::layouts::site::Site;
use crate::layouts::{Contender, Ground, Measured, Place, Played, Settings};
use bench::{Res, failed};

pub use polygraph::{Polygraph, Web};
pub use postmark::PostMark;
pub use source::SourceTree;

/// A bar of F5.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// PostMark, all of it.
    PostMark,
    /// A source tree is unpacked.
    Tar,
    /// It is compiled.
    Make,
    /// The object files are removed.
    Clean,
    /// Web content with one file in each directory is made and read.
    Web1,
    /// The same with sixteen.
    Web16,
}

impl Work {
    /// In the order of the figure.
    pub const ALL: [Work; 6] =
        [Work::PostMark, Work::Tar, Work::Make, Work::Clean, Work::Web1, Work::Web16];

    /// Its name.
    pub fn text(self) -> &'static str {
        match self {
            Work::PostMark => "PostMark",
            Work::Tar => "tar",
            Work::Make => "make",
            Work::Clean => "make clean",
            Work::Web1 => "Polygraph 8*8*1",
            Work::Web16 => "Polygraph 8*8*16",
        }
    }
}

/// Sizes and counts of the works.
#[derive(Clone, Copy, Serialize, Debug)]
pub struct Shape {
    /// Clients, of one process each (002 §6.3.2).
    pub clients: u64,
    /// PostMark's files of each client.
    pub files: u64,
    /// PostMark's transactions of each client.
    pub transactions: u64,
    /// Files of the source tree of each client.
    pub source_files: u64,
    /// Trees of web content of each client.
    pub webs: u64,
    /// The store.
    #[serde(flatten)]
    pub settings: Settings,
}

impl Shape {
    /// What the papers did, but that the text leaves the number of webs open; a data zone of 4 TiB.
    pub const PAPERS: Shape = Shape {
        clients: 10,
        files: 100_000,
        transactions: 500_000,
        source_files: 28_000,
        webs: 16,
        settings: Settings { data_blocks: 1 << 30, ..Settings::PAPERS },
    };
}

/// The time and the accesses of a contender for a work.
#[derive(Clone, Copy, Serialize, Debug)]
pub struct Run {
    /// The contender.
    pub contender: Contender,
    /// On what.
    pub place: Place,
    /// The work.
    pub work: Work,
    /// Its costs.
    #[serde(flatten)]
    pub took: Measured,
}

/// Does these works with everyone, on the virtual disk and, if there is ground for them, on loop
/// devices; tells `progress` each.
///
/// # Errors
/// The step that failed and why.
pub fn measure(
    shape: &Shape,
    works: &[Work],
    ground: Option<&Ground>,
    progress: &mut dyn FnMut(&str),
) -> Res<Vec<Run>> {
    let mut runs = Vec::new();
    all(None, shape, works, &mut runs, progress)?;
    if let Some(ground) = ground {
        all(Some(&Yard::make(ground)?), shape, works, &mut runs, progress)?;
    }
    Ok(runs)
}

/// These works of all contenders there.
fn all(
    yard: Option<&Yard>,
    shape: &Shape,
    works: &[Work],
    runs: &mut Vec<Run>,
    progress: &mut dyn FnMut(&str),
) -> Res<()> {
    let place = Site::place(yard);
    for contender in Site::contenders(yard) {
        let new = || Site::new(yard, contender, shape.settings, shape.clients);
        let mut source = None;
        for &work in works {
            let took = turn(&new, shape, work, &mut source)?;
            progress(&format!(
                "{}, {}: {} {:.1} s, {}",
                place.text(),
                contender.text(),
                work.text(),
                took.settled as f64 / 1e9,
                took.counts
            ));
            runs.push(Run { contender, place, work, took });
        }
    }
    Ok(())
}

/// One work of a contender; the works on the source tree follow each other on one disk.
fn turn<'a>(
    new: &dyn Fn() -> Res<Site<'a>>,
    shape: &Shape,
    work: Work,
    source: &mut Option<Site<'a>>,
) -> Res<Measured> {
    let tree = SourceTree { clients: shape.clients, files: shape.source_files };
    let step = match work {
        Work::PostMark => return whole(new, &PostMark::new(shape), &[()]),
        Work::Web1 | Work::Web16 => {
            let files = if work == Work::Web1 { 1 } else { 16 };
            let web = Polygraph { clients: shape.clients, webs: shape.webs, files };
            return whole(new, &web, &[Web::Make, Web::Read]);
        }
        Work::Tar => Step::Unpack,
        Work::Make => Step::Compile,
        Work::Clean => Step::Clean,
    };
    if step == Step::Unpack {
        *source = Some(new()?);
    }
    let Some(site) = source else {
        return failed(work.text(), "there is no source tree yet: tar comes first");
    };
    let took = site.stage(&tree, step);
    if step == Step::Clean {
        *source = None;
    }
    took
}

/// All stages of a workload on a new disk, as one.
fn whole<'a, W: Played>(
    new: &dyn Fn() -> Res<Site<'a>>,
    workload: &W,
    stages: &[W::Stage],
) -> Res<Measured> {
    let site = new()?;
    let mut sum = Measured::default();
    for &stage in stages {
        sum.add(&site.stage(workload, stage)?);
    }
    Ok(sum)
}
