//! `redbud fsck`: checks a metadata zone whose server is stopped.

use env::{DriverKind, Env};
use serde::Serialize;
use store::fsck::{Counts, FsckOptions, Report as Findings, Severity};

use crate::args::{Format, FsckArgs};
use crate::config::Cluster;
use crate::devices::open_exclusive;
use crate::exit::{Ended, Failure, fsck as code};
use crate::{output, target};

#[derive(Serialize)]
struct Report {
    version: u32,
    name: String,
    clean: bool,
    problems: Vec<Problem>,
    problems_omitted: u64,
    /// Data zones that are not where the cluster's file says; fsck does not read them.
    data_missing: Vec<String>,
    counts: Numbers,
}

/// The report if nothing could be checked.
#[derive(Serialize)]
struct Unusable {
    version: u32,
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

#[derive(Serialize)]
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

/// Checks, prints what was found, and says in its exit status whether it was clean.
pub fn run(args: &FsckArgs) -> Ended {
    let (cluster, findings) = match checked(args) {
        Ok(checked) => checked,
        Err(failure) => {
            if args.output.format() != Format::Table {
                let error = Reason { code: failure.name, text: failure.text.clone() };
                let report = Unusable { version: 1, clean: false, error };
                output::print_report(args.output, &report, |_| String::new())?;
            }
            return Err(failure);
        }
    };
    let report = report(&cluster, findings);
    output::print_report(args.output, &report, describe)?;
    Ok(if report.clean { 0 } else { code::UNCORRECTED })
}

fn checked(args: &FsckArgs) -> Result<(Cluster, Findings), Failure> {
    let cluster =
        target::cluster(&args.target).map_err(|failure| failure.with_code(code::USAGE))?;
    env::run(
        DriverKind::Auto,
        |env| async move { check(&env, &cluster).await.map(|f| (cluster, f)) },
    )
    .map_err(|error| failed(format!("cannot do input and output: {error}")))
    .flatten()
}

fn failed(text: String) -> Failure {
    Failure::failed("RB-FSCK", text).with_code(code::OPERATION)
}

async fn check(env: &Env, cluster: &Cluster) -> Result<Findings, Failure> {
    let path = cluster.metadata.path.display().to_string();
    let disk =
        open_exclusive(env, &path, false).await.map_err(|error| failed(error.to_string()))?;
    let options = FsckOptions { cache_bytes: cluster.cache as usize };
    store::fsck::fsck(env, &disk, options).await.map_err(|error| failed(error.to_string()))
}

fn report(cluster: &Cluster, findings: Findings) -> Report {
    let clean = findings.is_clean();
    let problem = |found: &store::fsck::Problem| Problem {
        kind: found.kind.name(),
        severity: match found.kind.severity() {
            Severity::Warning => "warning",
            Severity::Error => "error",
        },
        subject: found.subject.to_string(),
        text: found.kind.text(),
        detail: found.detail.clone(),
    };
    Report {
        version: 1,
        name: cluster.name.clone(),
        clean,
        problems: findings.problems.iter().map(problem).collect(),
        problems_omitted: findings.omitted,
        data_missing: missing_zones(cluster),
        counts: numbers(&findings.counts),
    }
}

fn missing_zones(cluster: &Cluster) -> Vec<String> {
    let paths = cluster.data.iter().map(|(_, zone)| &zone.path);
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

fn describe(report: &Report) -> String {
    let mut text = String::new();
    for problem in &report.problems {
        text += &format!(
            "{}: {}: {} ({})",
            problem.severity, problem.subject, problem.text, problem.kind
        );
        if !problem.detail.is_empty() {
            text += &format!(": {}", problem.detail);
        }
        text.push('\n');
    }
    for path in &report.data_missing {
        text += &format!("warning: the data zone {path} is not there (its data is not checked)\n");
    }
    if report.problems_omitted > 0 {
        text += &format!("and {} more problems\n", report.problems_omitted);
    }
    if !report.clean {
        text += "nothing was changed; ";
        text += match report.problems.iter().any(|problem| problem.severity == "error") {
            true => {
                "what cannot be read gives errors: save what can, and restore the metadata device \
                 from a backup\n"
            }
            false => "no file is at risk\n",
        };
    }
    let counts = &report.counts;
    if counts.inodes == 0 {
        return text + &format!("{}: DAMAGED: nothing could be counted\n", report.name);
    }
    let verdict = if report.clean { "clean" } else { "DAMAGED" };
    text + &format!(
        "{}: {verdict}: {} inodes ({} directories, {} orphans), {} names, {} segments, \
         {} metadata blocks, {} data blocks in files, {} free\n",
        report.name,
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
