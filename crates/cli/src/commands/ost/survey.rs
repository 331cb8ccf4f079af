//! `redbud ost survey`: measures a running target, several, or what lies below one.

mod place;

use std::rc::Rc;

use env::DriverKind;
use ost::survey::{Measured, Pass, Plan, Survey};
use proto::ost::IO_BLOCKS_MAX;
use serde::Serialize;
use types::Fault;
use types::limits::BLOCK_U64;
use types::units::human_size;

use super::failed;
use crate::args::{OstSurveyArgs, SurveyMode, SurveyPass};
use crate::exit::{Ended, Failure};
use crate::output;
use place::{Asked, Opened};

#[derive(Serialize)]
struct Report {
    version: u32,
    #[serde(flatten)]
    place: PlaceReport,
    threads: u64,
    objects: u64,
    record: u64,
    sync: bool,
    passes: Vec<PassReport>,
}

/// What was measured.
#[derive(Serialize)]
#[serde(tag = "mode", rename_all = "lowercase")]
enum PlaceReport {
    Raw { device: String },
    Store { device: String, target: String },
    Messages { address: String, target: String },
    Striped { part: u64, targets: Vec<TargetReport> },
}

#[derive(Serialize)]
struct TargetReport {
    address: String,
    target: String,
}

#[derive(Serialize)]
struct PassReport {
    pass: &'static str,
    bytes: u64,
    answered_seconds: f64,
    durable_seconds: f64,
    mib_per_second: f64,
    p50_us: u64,
    p90_us: u64,
    p99_us: u64,
    max_us: u64,
}

/// Runs the survey, and prints it.
pub fn run(args: &OstSurveyArgs) -> Ended {
    let plan = plan(args)?;
    let asked = Asked::of(args)?;
    let measured = env::run(DriverKind::Auto, |env| async move {
        let Opened { place, report } = asked.open(&env, args, plan).await?;
        let name = args.targets.join(", ");
        let survey = Survey::new(env, plan, place).map_err(|_| too_small(&name, plan))?;
        let passes = measure(&survey, args, &name).await?;
        Ok(Report {
            version: 1,
            place: report,
            threads: plan.threads as u64,
            objects: plan.objects as u64,
            record: u64::from(plan.record) * BLOCK_U64,
            sync: plan.sync,
            passes: passes.iter().map(of_pass).collect(),
        })
    });
    let report = measured
        .map_err(|error| failed(format!("cannot start the I/O driver: {error}")))
        .flatten()?;
    output::print_report(args.output, &report, table)?;
    Ok(0)
}

fn plan(args: &OstSurveyArgs) -> Result<Plan, Failure> {
    let blocks = args.record / BLOCK_U64;
    let whole = args.record.is_multiple_of(BLOCK_U64);
    if !whole || !(1..=u64::from(IO_BLOCKS_MAX)).contains(&blocks) {
        return Err(Failure::usage("--record: write a multiple of 4K from 4K to 1M"));
    }
    let threads = usize::from(args.threads);
    let objects = usize::from(args.objects.unwrap_or(args.threads)).min(threads);
    let records = (args.size / args.record / objects as u64).max(1);
    Ok(Plan { threads, objects, record: blocks as u32, records, sync: args.sync })
}

fn too_small(device: &str, plan: Plan) -> Failure {
    let size = human_size(plan.bytes());
    failed(format!("{device}: it is smaller than {size}: ask for less with --size"))
}

async fn measure(
    survey: &Rc<Survey>,
    args: &OstSurveyArgs,
    name: &str,
) -> Result<Vec<Measured>, Failure> {
    let mut measured = Ok(Vec::new());
    for pass in &args.passes {
        let pass = match pass {
            SurveyPass::Write => Pass::Write,
            SurveyPass::Rewrite => Pass::Rewrite,
            SurveyPass::Read => Pass::Read,
        };
        match (survey.run(pass).await, &mut measured) {
            (Ok(one), Ok(all)) => all.push(one),
            (Err(fault), _) => {
                measured = Err(refused(args.mode, name, pass, fault));
                break;
            }
            (_, Err(_)) => break,
        }
    }
    let cleaned = survey.clean().await;
    let closed = survey.close().await;
    let measured = measured?;
    cleaned.map_err(|fault| failed(format!("{name}: cannot destroy the objects: {fault}")))?;
    closed.map_err(|fault| failed(format!("{name}: closing the store: {fault}")))?;
    Ok(measured)
}

fn refused(mode: SurveyMode, name: &str, pass: Pass, fault: Fault) -> Failure {
    let advice = match (fault, mode) {
        (Fault::AccessDenied, _) => ": is it the key of this file system's targets?",
        (Fault::NoSpace, _) => ": ask for less with --size",
        (Fault::Corrupt, SurveyMode::Raw) => ": the device has other bytes than a survey writes",
        _ => "",
    };
    failed(format!("{name}: {}: {fault}{advice}", pass.name()))
}

fn of_pass(measured: &Measured) -> PassReport {
    let micros = |percent| measured.percentile(percent).as_micros() as u64;
    PassReport {
        pass: measured.pass.name(),
        bytes: measured.bytes,
        answered_seconds: measured.answered.as_secs_f64(),
        durable_seconds: measured.durable.as_secs_f64(),
        mib_per_second: measured.rate(),
        p50_us: micros(50),
        p90_us: micros(90),
        p99_us: micros(99),
        max_us: micros(100),
    }
}

fn describe(place: &PlaceReport) -> String {
    match place {
        PlaceReport::Raw { device } => format!("{device} alone"),
        PlaceReport::Store { device, target } => {
            format!("target {target} on {device}, without messages")
        }
        PlaceReport::Messages { address, target } => format!("target {target} at {address}"),
        PlaceReport::Striped { part, targets } => {
            let addresses: Vec<&str> = targets.iter().map(|one| one.address.as_str()).collect();
            let (count, part) = (targets.len(), human_size(*part));
            format!("{count} targets at {}, units of {part}", addresses.join(", "))
        }
    }
}

fn table(report: &Report) -> String {
    let how = if report.sync { "synchronous" } else { "asynchronous" };
    let mut text = format!(
        "{}: {} threads, {} objects, records of {}, {how}\n{:<8} {:>10} {:>10} {:>9} \
         {:>9} {:>9} {:>9}\n",
        describe(&report.place),
        report.threads,
        report.objects,
        human_size(report.record),
        "pass",
        "bytes",
        "MiB/s",
        "50 % ms",
        "90 % ms",
        "99 % ms",
        "max ms"
    );
    for pass in &report.passes {
        let ms = |us: u64| us as f64 / 1e3;
        text += &format!(
            "{:<8} {:>10} {:>10.1} {:>9.2} {:>9.2} {:>9.2} {:>9.2}\n",
            pass.pass,
            human_size(pass.bytes),
            pass.mib_per_second,
            ms(pass.p50_us),
            ms(pass.p90_us),
            ms(pass.p99_us),
            ms(pass.max_us)
        );
    }
    text
}
