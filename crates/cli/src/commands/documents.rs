//! `redbud completions` and `redbud man`: made from the definitions in `args`.

use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::exit::{Ended, Failure};
use crate::output;

/// Prints a completion script.
pub fn completions(args: &CompletionsArgs) -> Ended {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "redbud", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(0)
}

/// Writes one manual page for the program and one for each command.
pub fn manual(args: &ManArgs) -> Ended {
    let failed = |error: std::io::Error| {
        Failure::failed("RB-OUTPUT", format!("{}: {error}", args.dir.display()))
    };
    std::fs::create_dir_all(&args.dir).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), &args.dir).map_err(failed)?;
    Ok(0)
}
