//! The `bigbird` command: budgets, quotas and reports from the command line.

mod example;
mod output;
mod policy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Privacy budgets for the open web.
#[derive(Debug, Parser)]
#[command(name = "bigbird", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Replay the paper's worked example and show what remains of every budget and quota
    Example(example::Args),
    /// Show every capacity of a profile, or compute them for a workload
    Policy(policy::Args),
}

fn main() -> ExitCode {
    let printed = match Cli::parse().command {
        Command::Example(args) => example::run(&args),
        Command::Policy(args) => policy::run(&args),
    };
    match printed.and_then(|text| Ok(output::print(&text)?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bigbird: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What a command prints, or the one line that says why it does not.
type Printed = Result<String, Box<dyn std::error::Error>>;
