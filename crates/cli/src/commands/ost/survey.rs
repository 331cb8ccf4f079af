//! `redbud ost survey`: measures a running target through its messages.

use std::rc::Rc;

use env::{DriverKind, Env};
use ost::survey::{Measured, Pass, Plan, Survey, THREADS_PER_SESSION};
use proto::capability::TargetKey;
use proto::ost::{IO_BLOCKS_MAX, Ost};
use serde::Serialize;
use session::client::{Config, ReadClientKeys, Session};
use types::limits::BLOCK_U64;
use types::units::human_size;
use types::{Epoch, Fault};

use super::status::{keys_of, status_of};
use super::{failed, target_key, view};
use crate::address::{OST_PORT, check_address_or};
use crate::args::{OstSurveyArgs, SurveyPass};
use crate::exit::{Ended, Failure};
use crate::{log, output};

#[derive(Serialize)]
struct Report {
    version: u32,
    address: String,
    target: String,
    threads: u64,
    objects: u64,
    record: u64,
    sync: bool,
    passes: Vec<PassReport>,
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
    let view = view(args.config.as_ref())?;
    let key = target_key(args.key.as_ref(), view.as_ref())?;
    let address = check_address_or(&args.address, OST_PORT).map_err(Failure::usage)?;
    let name = args.fs.clone().or(view.as_ref().map(|view| view.name.clone()));
    let name = name.unwrap_or_default();
    let plan = plan(args)?;
    let keys = keys_of(view.as_ref());
    let status = status_of(&address, &name, keys.as_ref())?;
    let epoch = status["oldest_epoch"].as_u64().and_then(|epoch| u32::try_from(epoch).ok());
    let plan = Plan { epoch: Epoch(epoch.unwrap_or_default()), ..plan };
    let target = status["target"].as_str().unwrap_or_default().to_owned();
    let passes = env::run(DriverKind::Auto, |env| async move {
        measure(&env, args, plan, (&address, &name, keys), key).await.map(|passes| Report {
            version: 1,
            address,
            target,
            threads: plan.threads as u64,
            objects: plan.objects as u64,
            record: u64::from(plan.record) * BLOCK_U64,
            sync: plan.sync,
            passes: passes.iter().map(of_pass).collect(),
        })
    });
    let report = passes
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
    let (record, sync, epoch) = (blocks as u32, args.sync, Epoch(0));
    Ok(Plan { threads, objects, record, records, sync, epoch })
}

async fn measure(
    env: &Env,
    args: &OstSurveyArgs,
    plan: Plan,
    (address, name, keys): (&str, &str, Option<ReadClientKeys>),
    key: [u8; 32],
) -> Result<Vec<Measured>, Failure> {
    let shared = Rc::default();
    let mut sessions = Vec::new();
    for _ in 0..plan.threads.div_ceil(THREADS_PER_SESSION) {
        let config = Config {
            description: format!("survey, pid {}", std::process::id()),
            keys: keys.clone(),
            log: Rc::new(log::line),
            ..Config::new::<Ost>(vec![address.to_owned()], name)
        };
        let session = Session::<Ost>::open(env.clone(), config, Rc::clone(&shared)).await;
        sessions.push(session.map_err(|error| failed(error.text))?);
    }
    let key = TargetKey::new(key, sessions[0].offer().0);
    let survey = Survey::new(env.clone(), plan, key, sessions.clone());
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
                measured = Err(refused(address, pass, fault));
                break;
            }
            (_, Err(_)) => break,
        }
    }
    let cleaned = survey.clean().await;
    for session in &sessions {
        session.close().await;
    }
    let measured = measured?;
    cleaned.map_err(|fault| failed(format!("{address}: cannot destroy the objects: {fault}")))?;
    Ok(measured)
}

fn refused(address: &str, pass: Pass, fault: Fault) -> Failure {
    let advice = match fault {
        Fault::AccessDenied => ": is it the key of this file system's targets?",
        Fault::NoSpace => ": ask for less with --size",
        _ => "",
    };
    failed(format!("{address}: {}: {fault}{advice}", pass.name()))
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

fn table(report: &Report) -> String {
    let how = if report.sync { "synchronous" } else { "asynchronous" };
    let mut text = format!(
        "target {} at {}: {} threads, {} objects, records of {}, {how}\n{:<8} {:>10} {:>10} {:>9} \
         {:>9} {:>9} {:>9}\n",
        report.target,
        report.address,
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
