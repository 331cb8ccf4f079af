//! `redbud ost check`: checks a target whose server is stopped.

use env::{DriverKind, Env};
use serde::Serialize;

use super::DeviceSpec;
use crate::args::OstCheckArgs;
use crate::devices::with_path;
use crate::exit::{Ended, Failure, fsck};
use crate::output;

/// Cache of metadata blocks.
const CACHE: usize = 256 << 20;

#[derive(Serialize)]
struct Report {
    version: u32,
    target: String,
    fs_name: String,
    fs_uuid: String,
    blocks: u64,
    free: u64,
    /// None: it is inside.
    #[serde(skip_serializing_if = "Option::is_none")]
    journal: Option<JournalReport>,
    findings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scrub: Option<ScrubReport>,
}

/// The slice with the journal.
#[derive(Serialize)]
struct JournalReport {
    journal: String,
    device: String,
    first_block: u64,
    blocks: u64,
    /// Journals of others on the device.
    others: usize,
}

#[derive(Serialize)]
struct ScrubReport {
    objects: u64,
    blocks: u64,
    damaged: u64,
    findings: Vec<String>,
}

/// Checks the target.
pub fn run(args: &OstCheckArgs) -> Ended {
    let spec = DeviceSpec::parse(&args.device)
        .map_err(|failure| Failure { code: fsck::USAGE, ..failure })?;
    let checked = env::run(DriverKind::Auto, |env| async move { check(&env, &spec, args).await });
    let report = checked
        .map_err(|error| failed(format!("cannot start the I/O driver: {error}")))
        .flatten()?;
    output::print_report(args.output, &report, describe)?;
    let damaged = report.scrub.as_ref().map_or(0, |scrub| scrub.damaged);
    Ok(if report.findings.is_empty() && damaged == 0 { 0 } else { fsck::UNCORRECTED })
}

fn failed(text: String) -> Failure {
    super::failed(text).with_code(fsck::OPERATION)
}

async fn check(env: &Env, spec: &DeviceSpec, args: &OstCheckArgs) -> Result<Report, Failure> {
    let path = spec.device.display().to_string();
    let opened = super::open_stopped(env, spec, CACHE).await;
    let store = opened.map_err(|failure| failure.with_code(fsck::OPERATION))?;
    let findings = store.check().await.map_err(|error| failed(with_path(&path, &error)))?;
    let scrub = match args.scrub {
        true => Some(store.scrub(0).await.map_err(|fault| failed(format!("{path}: {fault}")))?),
        false => None,
    };
    let (info, (fs, fs_name, _)) = (store.info(), store.identity());
    let journal = store.journal().await.map(|place| JournalReport {
        journal: place.uuid.to_string(),
        device: place.device,
        first_block: place.start,
        blocks: place.blocks,
        others: place.others,
    });
    store.close().await.map_err(|error| failed(with_path(&path, &error)))?;
    Ok(Report {
        version: 1,
        target: info.uuid.to_string(),
        fs_name,
        fs_uuid: fs.to_string(),
        blocks: info.blocks,
        free: info.free,
        journal,
        findings: findings.iter().map(ToString::to_string).collect(),
        scrub: scrub.map(|found| ScrubReport {
            objects: found.objects,
            blocks: found.blocks,
            damaged: found.damaged,
            findings: found.findings.iter().map(ost::server::scrub::describe).collect(),
        }),
    })
}

fn describe(report: &Report) -> String {
    let mut text = format!("target {} of `{}`\n", report.target, report.fs_name);
    if let Some(place) = &report.journal {
        let end = place.first_block + place.blocks;
        text += &format!(
            "  journal {}: blocks {}..{end} of {}, which has {} of others\n",
            place.journal, place.first_block, place.device, place.others
        );
    }
    for finding in &report.findings {
        text += &format!("  {finding}\n");
    }
    text += &match report.findings.len() {
        0 => "  its records are sound\n".to_owned(),
        count => format!("  {count} findings: what is damaged must be restored from a backup\n"),
    };
    if let Some(scrub) = &report.scrub {
        for finding in &scrub.findings {
            text += &format!("  {finding}\n");
        }
        let (objects, blocks, damaged) = (scrub.objects, scrub.blocks, scrub.damaged);
        text += &format!("  {objects} objects, {blocks} blocks read, {damaged} damaged\n");
    }
    text
}
