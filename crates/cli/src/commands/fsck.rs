//! `redbud fsck`: checks a metadata zone whose server is stopped, and repairs it with `--repair`.
//! Of several servers it checks each, and then what they say of each other.

mod across;

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use env::{DriverKind, Env};
use mfs::fsck::{
    Counts, FsckOptions, JOBS_MAX, Lost, ProblemKind, Repaired, Report as Findings, Severity,
};
use mfs::{Feature, Features, SlotFeatures};
use serde::Serialize;
use types::PagId;

use crate::args::FsckArgs;
use crate::config::Cluster;
use crate::devices::{open_error, open_metadata, zone_devices};
use crate::exit::{Ended, Failure, fsck as code};
use crate::{output, target};

/// Disagreements of several servers that a report lists.
const PROBLEMS_SHOWN: usize = 10_000;

/// Said of a server of several that was checked alone.
const ALONE: &str = "only this server was checked: without `--server`, and with the file that names all servers, \
                     fsck also checks what they say of each other";

/// Advice for a device that is in use.
const WHILE_SERVED: &str = "a server uses these metadata: stop it for fsck, or check them with `redbud scrub` and the \
                            mount or the server's address";

#[derive(Serialize)]
struct Report {
    version: u32,
    name: String,
    /// The number of the metadata server, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<u8>,
    clean: bool,
    problems: Vec<Problem>,
    problems_omitted: u64,
    /// With --repair: the findings and what repair did.
    #[serde(skip_serializing_if = "Option::is_none")]
    repair: Option<Repair>,
    /// Data zones whose path does not exist; fsck does not read their data anyway.
    data_missing: Vec<String>,
    /// Devices that are not the data zones that the cluster's file names, and why; no client can
    /// mount with them.
    data_foreign: Vec<String>,
    counts: Numbers,
    /// It is one of several servers, and was checked without the others.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    alone: bool,
    /// Bytes of a directory slot, and the features of the format; none if the
    /// superblock is unreadable.
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<Shape>,
}

/// What mkfs decided.
#[derive(Serialize)]
struct Shape {
    slot_bytes: u64,
    features: String,
}

/// What repair did; the problems of the report are those that remain.
#[derive(Serialize)]
struct Repair {
    found: Vec<Problem>,
    done: Vec<String>,
    lost: Vec<LostData>,
    /// Labels of data zones that repair needs and could not read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    wanted: Vec<String>,
    omitted: u64,
}

/// User data that repair lost.
#[derive(Serialize)]
struct LostData {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    text: String,
}

/// The reports of several metadata servers.
#[derive(Serialize)]
struct Several {
    version: u32,
    name: String,
    clean: bool,
    servers: Vec<Checked>,
    /// What they say of each other.
    between: across::Between,
}

/// What a check of one server's metadata came to.
#[derive(Serialize)]
#[serde(untagged)]
enum Checked {
    Done(Box<Report>),
    Failed(Unusable),
}

/// The report if the check failed.
#[derive(Serialize)]
struct Unusable {
    version: u32,
    /// The number of the metadata server, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<u8>,
    clean: bool,
    error: Reason,
}

#[derive(Serialize)]
struct Reason {
    code: &'static str,
    text: String,
}

#[derive(Serialize)]
struct Problem {
    kind: &'static str,
    severity: &'static str,
    subject: String,
    text: &'static str,
    detail: String,
}

#[derive(Serialize, Default)]
struct Numbers {
    inodes: u64,
    directories: u64,
    names: u64,
    orphans: u64,
    segments: u64,
    metadata_blocks: u64,
    data_blocks_in_files: u64,
    data_blocks_in_pools: u64,
    data_blocks_given_up: u64,
    data_blocks_free: u64,
    clients: u64,
}

/// Checks and repairs, prints the report, and returns the exit status.
pub fn run(args: &FsckArgs) -> Ended {
    let Some(target) = args.target.as_ref().filter(|_| !args.list) else {
        return list(args);
    };
    let chosen = clusters(target, args).map_err(|failure| failure.with_code(code::USAGE));
    let clusters = chosen.or_else(|failure| unusable(args, failure))?;
    match &clusters[..] {
        [cluster] => one(cluster, args),
        _ => several(&clusters, args),
    }
}

/// Reports that nothing was checked.
fn unusable<T>(args: &FsckArgs, failure: Failure) -> Result<T, Failure> {
    if args.output.is_json() {
        let report = Unusable::new(None, &failure);
        output::print_report(args.output, &report, |_| String::new())?;
    }
    Err(failure)
}

/// The cluster as each server sees it that is to be checked.
fn clusters(target: &Path, args: &FsckArgs) -> Result<Vec<Cluster>, Failure> {
    let file = target::cluster(target)?;
    let relabelled = |id: &&u16| file.servers.iter().all(|one| !has_zone(one, PagId(**id)));
    if let Some(id) = args.relabel.iter().find(relabelled) {
        let text = format!("--relabel {id}: the cluster's file has no data zone {id}");
        return Err(Failure::failed("RB-FSCK", text));
    }
    target::chosen(file, args.server)
}

fn has_zone(cluster: &Cluster, id: PagId) -> bool {
    cluster.data.iter().any(|(zone, _)| *zone == id)
}

/// Checks the metadata of one server.
fn one(cluster: &Cluster, args: &FsckArgs) -> Ended {
    let (outcome, foreign) = checked(cluster, args).or_else(|failure| unusable(args, failure))?;
    let status = status(&outcome);
    let is_of_several = |features: Features| features.has(Feature::SHARDS);
    let alone = cluster.is_of_several() || outcome.left.features.is_some_and(is_of_several);
    let report = Report { alone, ..report(cluster, args.repair, (outcome, foreign)) };
    // The exit status has repairs and losses even if the report cannot be printed.
    let unprinted = |failure: Failure| failure.with_code(status | code::OPERATION);
    output::print_report(args.output, &report, describe).map_err(unprinted)?;
    Ok(status)
}

/// Checks the metadata of several servers, one after the other, those behind a failure too.
fn several(clusters: &[Cluster], args: &FsckArgs) -> Ended {
    let (mut servers, mut statuses, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for cluster in clusters {
        let checked = match checked(cluster, args) {
            Ok((outcome, foreign)) => {
                statuses.push(status(&outcome));
                names.push(across::of_one(&outcome));
                let found = report(cluster, args.repair, (outcome, foreign));
                Checked::Done(Box::new(found))
            }
            Err(failure) => {
                statuses.push(failure.code);
                names.push(None);
                Checked::Failed(Unusable::new(Some(cluster.shard.0), &failure))
            }
        };
        if !args.output.is_json() {
            output::print(&describe_one(&checked))?;
        }
        servers.push(checked);
    }
    let (name, between) = (clusters[0].name.clone(), across::compare(names));
    if !between.is_clean() {
        statuses.push(code::UNCORRECTED);
    }
    if !args.output.is_json() {
        output::print(&across::describe(&name, &between))?;
    }
    let status = worst(&statuses);
    let is_clean = |one: &Checked| matches!(one, Checked::Done(report) if report.clean);
    let clean = servers.iter().all(is_clean) && between.is_clean();
    let report = Several { version: 1, name, clean, servers, between };
    let unprinted = |failure: Failure| failure.with_code(status | code::OPERATION);
    output::print_report(args.output, &report, |_| String::new()).map_err(unprinted)?;
    Ok(status)
}

fn describe_one(checked: &Checked) -> String {
    match checked {
        Checked::Done(report) => describe(report),
        Checked::Failed(Unusable { server, error, .. }) => format!(
            "server {}: not checked: {} [{}]\n",
            server.unwrap_or_default(),
            error.text,
            error.code
        ),
    }
}

/// The status of several checks: the worst, and whether data was lost in any.
fn worst(statuses: &[u8]) -> u8 {
    let lost = statuses.iter().fold(0, |all, status| all | status & code::LOST);
    let worst = statuses.iter().map(|status| status & !code::LOST).max().unwrap_or(0);
    worst | lost
}

impl Unusable {
    fn new(server: Option<u8>, failure: &Failure) -> Unusable {
        let error = Reason { code: failure.name, text: failure.text.clone() };
        Unusable { version: 1, server, clean: false, error }
    }
}

/// The exit status.
fn status(outcome: &Repaired) -> u8 {
    let lost = if outcome.lost.is_empty() { 0 } else { code::LOST };
    lost | match (outcome.left.is_clean(), outcome.found.is_empty()) {
        (true, true) => 0,
        (true, false) => code::CORRECTED,
        (false, _) => code::UNCORRECTED,
    }
}

/// The list of all kinds of findings.
#[derive(Serialize)]
struct Catalogue {
    version: u32,
    findings: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    kind: &'static str,
    severity: &'static str,
    text: &'static str,
    repair: Cow<'static, str>,
}

fn list(args: &FsckArgs) -> Ended {
    let entry = |kind: &ProblemKind| Entry {
        kind: kind.name(),
        severity: severity(*kind),
        text: kind.text(),
        repair: kind.repair().into(),
    };
    let of_several = across::catalogue().map(|(kind, text, repair)| Entry {
        kind,
        severity: "error",
        text,
        repair: format!("nothing: {repair}").into(),
    });
    let findings = ProblemKind::ALL.iter().map(entry).chain(of_several).collect();
    output::print_report(args.output, &Catalogue { version: 1, findings }, |all| {
        let line = |entry: &Entry| {
            format!("| {} | {} | {} | {} |\n", entry.kind, entry.severity, entry.text, entry.repair)
        };
        let lines: String = all.findings.iter().map(line).collect();
        format!(
            "| finding | severity | what is wrong | what repair does |\n|---|---|---|---|\n{lines}"
        )
    })?;
    Ok(0)
}

fn severity(kind: ProblemKind) -> &'static str {
    match kind.severity() {
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}

fn checked(cluster: &Cluster, args: &FsckArgs) -> Result<(Repaired, Vec<String>), Failure> {
    let checked = env::run(DriverKind::Auto, |env| async move {
        let outcome = check(&env, cluster, args).await?;
        let foreign = foreign_zones(&env, cluster).await;
        Ok((outcome, foreign))
    });
    progress_end();
    checked.map_err(|error| failed(format!("cannot start the I/O driver: {error}"))).flatten()
}

fn failed(text: String) -> Failure {
    Failure::failed("RB-FSCK", text).with_code(code::OPERATION)
}

/// Number of threads; by default one for each processor that this process may use.
fn jobs(args: &FsckArgs) -> usize {
    let cpus = || std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(JOBS_MAX));
    args.jobs.map_or_else(cpus, usize::from)
}

async fn check(env: &Env, cluster: &Cluster, args: &FsckArgs) -> Result<Repaired, Failure> {
    let (repair, jobs) = (args.repair, jobs(args));
    let relabel = args.relabel.iter().copied().map(PagId);
    let relabel: Vec<PagId> = relabel.filter(|id| has_zone(cluster, *id)).collect();
    let opened = open_metadata(env, cluster, repair).await;
    let disks = opened.map_err(|error| failed(open_error(&error, WHILE_SERVED)))?;
    let progress = std::io::stderr().is_terminal().then_some(show as fn(u64, u64));
    let paths = cluster.zone_paths();
    let zones = &zone_devices(&paths)[..];
    let cache_bytes = cluster.cache as usize;
    let name = Some(&*cluster.name);
    let on_loss = repair.then_some(print_loss as fn(&Lost));
    let options =
        FsckOptions { cache_bytes, progress, on_loss, jobs, zones, name, relabel: &relabel };
    let error = |error: mfs::StoreError| failed(error.to_string());
    if repair {
        return mfs::fsck::repair(env, &disks, options).await.map_err(error);
    }
    let left = mfs::fsck::fsck(env, &disks, options).await.map_err(error)?;
    Ok(Repaired { left, ..Repaired::default() })
}

/// The tenths of a percent that the bar on the terminal shows.
static SHOWN: AtomicU64 = AtomicU64::new(u64::MAX);

/// Shows the progress of a check on a terminal.
fn show(done: u64, total: u64) {
    let tenths = (done * 1000).checked_div(total).unwrap_or(0).min(1000);
    if SHOWN.swap(tenths, Ordering::Relaxed) == tenths {
        return;
    }
    let filled = (tenths / 25) as usize;
    let bar = format!("{}{}", "#".repeat(filled), "-".repeat(40 - filled));
    let text = format!("\r[{bar}] {}.{} % of {total} inodes", tenths / 10, tenths % 10);
    drop(std::io::stderr().write_all(text.as_bytes()));
}

/// Prints a loss at once: an interrupted repair prints no report.
fn print_loss(lost: &Lost) {
    progress_end();
    drop(std::io::stderr().write_all(format!("LOST so far: {lost}\n").as_bytes()));
}

fn progress_end() {
    if SHOWN.swap(u64::MAX, Ordering::Relaxed) != u64::MAX {
        drop(std::io::stderr().write_all(b"\r\x1b[K"));
    }
}

fn problem(found: &mfs::fsck::Problem) -> Problem {
    Problem {
        kind: found.kind.name(),
        severity: severity(found.kind),
        subject: found.subject.to_string(),
        text: found.kind.text(),
        detail: found.detail.clone(),
    }
}

fn lost_data(lost: &Lost) -> LostData {
    LostData {
        kind: lost.kind(),
        inode: lost.inode().map(|ino| ino.0),
        path: lost.path().map(|path| String::from_utf8_lossy(path).into_owned()),
        text: lost.to_string(),
    }
}

fn report(cluster: &Cluster, repair: bool, (outcome, foreign): (Repaired, Vec<String>)) -> Report {
    let Repaired { found, done, lost, wanted, omitted, left, .. } = outcome;
    let findings: Findings = left;
    Report {
        version: 1,
        name: cluster.name.clone(),
        server: cluster.is_of_several().then_some(cluster.shard.0),
        clean: findings.is_clean(),
        problems: findings.problems.iter().map(problem).collect(),
        problems_omitted: findings.omitted,
        repair: repair.then(|| Repair {
            found: found.iter().map(problem).collect(),
            done,
            lost: lost.iter().map(lost_data).collect(),
            wanted,
            omitted,
        }),
        data_missing: missing_zones(cluster),
        data_foreign: foreign,
        counts: numbers(&findings.counts),
        alone: false,
        format: findings.features.map(|features| Shape {
            slot_bytes: features.slots().share() as u64,
            features: features.names(),
        }),
    }
}

/// Devices of another file system. Without a readable label of the metadata device none are found.
async fn foreign_zones(env: &Env, cluster: &Cluster) -> Vec<String> {
    let path = cluster.metadata.path.display().to_string();
    let Some(label) = mfs::label_on(env, &path).await else { return Vec::new() };
    mfs::foreign_devices(env, label.fs_uuid, &zone_devices(&cluster.zone_paths())).await
}

fn missing_zones(cluster: &Cluster) -> Vec<String> {
    let paths = cluster.data_devices().into_iter().map(|(zone, _)| &zone.path);
    paths.filter(|path| !path.exists()).map(|path| path.display().to_string()).collect()
}

fn numbers(counts: &Counts) -> Numbers {
    Numbers {
        inodes: counts.inodes,
        directories: counts.directories,
        names: counts.names,
        orphans: counts.orphans,
        segments: counts.segments,
        metadata_blocks: counts.meta_blocks,
        data_blocks_in_files: counts.mapped,
        data_blocks_in_pools: counts.pooled,
        data_blocks_given_up: counts.freed,
        data_blocks_free: counts.free,
        clients: counts.clients,
    }
}

fn line(problem: &Problem) -> String {
    let mut text =
        format!("{}: {}: {} ({})", problem.severity, problem.subject, problem.text, problem.kind);
    if !problem.detail.is_empty() {
        text += &format!(": {}", problem.detail);
    }
    text + "\n"
}

/// Advice for labels that repair needs.
const WANTED: &str = "\
The table of data zones is lost; repair rebuilds it from their labels, the first block of each
device. Make sure that the cluster's file has every data zone under [[data]], with its `id` and the
`path` of its device on this host, and run `redbud fsck --repair` again. Until then repair leaves
data and free space unchanged.
";

fn describe_repair(repair: &Repair, left: bool) -> String {
    let mut text: String = repair.found.iter().map(line).collect();
    for done in &repair.done {
        text += &format!("repaired: {done}\n");
    }
    for lost in &repair.lost {
        text += &format!("LOST: {}\n", lost.text);
    }
    if repair.omitted > 0 {
        text += &format!("and {} more lines\n", repair.omitted);
    }
    for wanted in &repair.wanted {
        text += &format!("WANTED: {wanted}\n");
    }
    if !repair.wanted.is_empty() {
        text += WANTED;
    }
    if left && repair.wanted.is_empty() {
        text += "left, because it cannot be repaired:\n";
    } else if left {
        text += "left until then:\n";
    }
    text
}

fn is_data_label(problem: &Problem) -> bool {
    problem.kind == ProblemKind::DamagedDataLabel.name()
}

fn describe(report: &Report) -> String {
    let mut text = match &report.repair {
        Some(repair) => describe_repair(repair, !report.clean),
        None => String::new(),
    };
    text.extend(report.problems.iter().map(line));
    for path in &report.data_missing {
        text +=
            &format!("warning: the data zone {path} does not exist (fsck does not check data)\n");
    }
    for foreign in &report.data_foreign {
        text += &format!(
            "warning: {foreign}; no server starts with it: correct its `path` in the cluster's file\n"
        );
    }
    if report.problems_omitted > 0 {
        text += &format!("and {} more problems\n", report.problems_omitted);
    }
    if !report.clean {
        let risk = report.problems.iter().any(|problem| problem.severity == "error");
        let wanted = report.repair.as_ref().is_some_and(|repair| !repair.wanted.is_empty());
        text += match (report.repair.is_some(), risk) {
            (true, true) if wanted => {
                "give repair these labels first; then it reports what remains\n"
            }
            (true, true) if report.problems.iter().all(is_data_label) => {
                "the metadata are sound; make sure that each data zone has the `path` of its device\n"
            }
            (true, true) => {
                "files with damaged metadata give errors: save the readable ones, and restore the metadata \
                 device from a backup\n"
            }
            (false, true) => {
                "nothing was changed; `redbud fsck --repair` repairs what it can, everything else needs a \
                 backup: copy the metadata device first\n"
            }
            (true, false) => "no file is at risk\n",
            (false, false) => "nothing was changed; no file is at risk\n",
        };
    }
    let counts = &report.counts;
    if counts.inodes == 0 {
        return text + &format!("{}: DAMAGED: no inode is readable\n", subject(report));
    }
    let shape = report.format.as_ref().map_or_else(String::new, |format| {
        let features = if format.features.is_empty() { "none" } else { &format.features };
        format!("; slots of {} bytes, features: {features}", format.slot_bytes)
    });
    if report.alone {
        text += &format!("{ALONE}\n");
    }
    let held = held(counts);
    let verdict = if report.clean { "clean" } else { "DAMAGED" };
    text + &format!(
        "{}: {verdict}: {} inodes ({} directories, {} orphans), {} names, {} segments, \
         {} metadata blocks, {} data blocks in files{held}, {} free{shape}\n",
        subject(report),
        counts.inodes,
        counts.directories,
        counts.orphans,
        counts.names,
        counts.segments,
        counts.metadata_blocks,
        counts.data_blocks_in_files,
        counts.data_blocks_free
    )
}

/// Whose metadata the report is about.
fn subject(report: &Report) -> String {
    match report.server {
        None => report.name.clone(),
        Some(server) => format!("{}, server {server}", report.name),
    }
}

/// Data blocks that are neither in files nor free.
fn held(counts: &Numbers) -> String {
    let all = [
        (counts.data_blocks_in_pools, "in clients' pools"),
        (counts.data_blocks_given_up, "freed at the next start of a server"),
    ];
    let nonzero = all.iter().filter(|(blocks, _)| *blocks > 0);
    nonzero.map(|(blocks, by)| format!(", {blocks} {by}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_of_several_checks_is_the_worst() {
        use code::{CORRECTED, LOST, OPERATION, UNCORRECTED};
        assert_eq!(worst(&[0, 0]), 0);
        assert_eq!(worst(&[CORRECTED, 0]), CORRECTED);
        assert_eq!(worst(&[UNCORRECTED, CORRECTED | LOST]), UNCORRECTED | LOST);
        assert_eq!(worst(&[OPERATION, UNCORRECTED]), OPERATION);
    }

    #[test]
    fn blocks_neither_in_files_nor_free_are_reported() {
        let counts = |data_blocks_in_pools, data_blocks_given_up| Numbers {
            data_blocks_in_pools,
            data_blocks_given_up,
            ..Numbers::default()
        };
        assert_eq!(held(&counts(0, 0)), "");
        assert_eq!(
            held(&counts(8192, 5)),
            ", 8192 in clients' pools, 5 freed at the next start of a server"
        );
    }
}
