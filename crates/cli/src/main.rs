//! The `bigbird` command: budgets, quotas and reports from the command line.

mod agent;
mod clock;
mod conformance;
mod example;
mod explain;
mod lab;
mod output;
mod policy;
mod progress;
mod scratch;
mod signals;
mod stdio;
mod store;

use std::io::ErrorKind;
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
    /// Reproduce the paper's evaluation, with a report
    Reproduce(lab::reproduce::Args),
    /// Replay the paper's worked example and show what remains of every budget and quota
    Example(example::Args),
    /// Show every capacity of a profile, or compute them for a workload
    Policy(policy::Args),
    /// Run test vectors against the user agent
    Conformance(conformance::Args),
    /// Replay a workload under policies and attackers: what quotas cost, and what they prevent
    Simulate(lab::simulate::Args),
    /// Find capacities for logs, and what to expect of them
    Tune(lab::tune::Args),
    /// Plan a measurement: what error to expect, and which epsilon to choose
    Plan(lab::plan::Args),
    /// Look into workloads, or write them
    #[command(subcommand)]
    Workload(lab::workload::Command),
    /// Run the user agent as a process: requests in, answers out, one JSON a line
    Agent(agent::Args),
    /// Look into the file of a user agent, check it, copy it, or start over
    #[command(subcommand)]
    Store(store::Command),
    /// Play one scenario and tell what each event did, and why reports are null
    Explain(explain::Args),
}

fn main() -> ExitCode {
    signals::survive_file_size_limit();
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(instead) => return print_instead(&instead),
    };
    let finished = match command {
        Command::Reproduce(args) => lab::reproduce::run(&args),
        Command::Example(args) => example::run(&args),
        Command::Policy(args) => policy::run(&args),
        Command::Conformance(args) => conformance::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Simulate(args) => lab::simulate::run(&args),
        Command::Tune(args) => lab::tune::run(&args),
        Command::Plan(args) => lab::plan::run(&args),
        Command::Workload(command) => lab::workload::run(&command),
        Command::Agent(args) => agent::run(&args),
        Command::Store(command) => store::run(&command),
    };
    let printed = finished.and_then(|(text, good)| {
        output::print(&text).map_err(|error| Failed {
            why: format!("writing the result: {error}"),
            status: 1,
        })?;
        Ok(good)
    });
    match printed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(Failed { why, status }) => {
            stdio::tell(&why);
            ExitCode::from(status)
        }
    }
}

/// Prints what there is instead of a command: help, a version, or what is wrong with the arguments.
fn print_instead(instead: &clap::Error) -> ExitCode {
    match instead.print() {
        // Who cannot be told what is wrong sees it from the status.
        Err(error) if !instead.use_stderr() && error.kind() != ErrorKind::BrokenPipe => {
            stdio::tell(&format!("writing the result: {error}"));
            ExitCode::from(1)
        }
        _ => ExitCode::from(u8::try_from(instead.exit_code()).unwrap_or(2)),
    }
}

/// What a command prints and whether its result is good; or why it has none.
type Finished = Result<(String, bool), Failed>;

/// Why a command has no result: one line, and the exit status.
#[derive(Debug)]
struct Failed {
    why: String,
    status: u8,
}

impl Failed {
    /// Something that cannot be done.
    fn because(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            status: 1,
        }
    }

    /// Arguments that make no sense together.
    fn misused(why: String) -> Self {
        Self { why, status: 2 }
    }

    /// Input that cannot be read.
    fn unreadable(why: String) -> Self {
        Self { why, status: 2 }
    }
}

impl<E: std::error::Error> From<E> for Failed {
    fn from(error: E) -> Self {
        Self {
            why: error.to_string(),
            status: 1,
        }
    }
}
