//! `redbud reproduce`: the papers' figures.

use bench::layouts::Settings;
use bench::metarates::{Plan, Shape, measure};
use bench::reproduce::{F4, F5, F9};
use bench::{aging, small};

use crate::args::{Figure, ReproduceArgs};
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
            Figure::F5 => f5(args)?,
            Figure::F9 => f9(args)?,
        }
    }
    Ok(0)
}

fn settings(args: &ReproduceArgs) -> Settings {
    Settings { durable: !args.lazy, ..Settings::PAPERS }
}

fn progress(line: &str) {
    output::tell(line);
}

/// Writes the figure's files.
fn keep(args: &ReproduceArgs, figure: &str, svg: &str, json: &str) -> Result<(), Failure> {
    for (ending, content) in [("svg", svg), ("json", json)] {
        let path = args.out.join(format!("{figure}.{ending}"));
        std::fs::write(&path, content)
            .map_err(|error| failed(format!("{}: {error}", path.display())))?;
    }
    Ok(())
}

fn f4(args: &ReproduceArgs) -> Result<(), Failure> {
    let plan = Plan {
        shape: Shape {
            clients: 10,
            processes: 4,
            files: 0,
            settings: Settings {
                price: args.price.then_some(env::sim::Price::MEASURED),
                ..settings(args)
            },
        },
        files: args.files.clone(),
        ground: None,
        without: Vec::new(),
    };
    let report = measure(&plan, &mut progress).map_err(|e| failed(e.0))?;
    let figure = F4(&report);
    keep(args, "F4", &figure.svg(), &report.to_json())?;
    output::print(&figure.text())?;
    output::print(&report.text())
}

fn f5(args: &ReproduceArgs) -> Result<(), Failure> {
    let shape = small::Shape {
        files: args.pool,
        transactions: 5 * args.pool,
        settings: Settings { durable: !args.lazy, ..small::Shape::PAPERS.settings },
        ..small::Shape::PAPERS
    };
    let runs = small::measure(&shape, &small::Work::ALL, None, &mut progress);
    let figure = F5::new(shape, runs.map_err(|e| failed(e.0))?);
    keep(args, "F5", &figure.svg(), &figure.to_json())?;
    output::print(&figure.text())
}

fn f9(args: &ReproduceArgs) -> Result<(), Failure> {
    let plan = aging::Plan::on(args.aged, settings(args)).map_err(|e| Failure::usage(e.0))?;
    let points = aging::measure(&plan, &mut progress).map_err(|e| failed(e.0))?;
    let figure = F9::new(points);
    keep(args, "F9", &figure.svg(), &figure.to_json())?;
    output::print(&figure.text())
}
