//! `redbud reproduce`: the papers' figures.

use bench::layouts::Settings;
use bench::metarates::{Plan, Shape, measure};
use bench::reproduce::F4;

use crate::args::{Figure, ReproduceArgs};
use crate::commands::local::this_program;
use crate::exit::{Ended, Failure};
use crate::output;

fn failed(text: String) -> Failure {
    Failure::failed("RB-BENCH", text)
}

/// Makes each figure that was asked for.
pub fn run(args: &ReproduceArgs) -> Ended {
    let at = |error: std::io::Error| failed(format!("{}: {error}", args.out.display()));
    std::fs::create_dir_all(&args.out).map_err(at)?;
    for figure in &args.figures {
        match figure {
            Figure::F4 => f4(args)?,
        }
    }
    Ok(0)
}

fn f4(args: &ReproduceArgs) -> Result<(), Failure> {
    let settings = Settings { durable: !args.lazy, ..Settings::PAPERS };
    let plan = Plan {
        shape: Shape { clients: 10, processes: 4, files: 0, settings },
        files: args.files.clone(),
        dir: None,
        limit: std::time::Duration::from_secs(3600),
        program: this_program(),
    };
    let report = measure(&plan, &mut |line| eprintln!("{line}")).map_err(|e| failed(e.0))?;
    let figure = F4(&report);
    for (name, content) in [("F4.svg", figure.svg()), ("F4.json", report.to_json())] {
        let path = args.out.join(name);
        std::fs::write(&path, content)
            .map_err(|error| failed(format!("{}: {error}", path.display())))?;
    }
    output::print(&figure.text())?;
    output::print(&report.text())?;
    Ok(())
}
