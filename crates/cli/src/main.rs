//! The `bigbird` command: privacy budgets, quotas and reports on the command line.

mod agent;
mod aggregate;
mod audit;
mod browser;
mod clock;
mod conformance;
mod dap;
mod demo;
mod example;
mod explain;
mod keys;
mod lab;
mod native_host;
mod output;
mod policy;
mod progress;
mod scratch;
mod service;
mod serving;
mod signals;
mod stdio;
mod store;

use std::any::TypeId;
use std::io::ErrorKind;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

/// Privacy budgets for the open web.
#[derive(Debug, Parser)]
#[command(name = "bigbird", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Reproduce the paper's evaluation and write a report
    Reproduce(lab::reproduce::ReproduceArgs),
    /// Replay the paper's worked example and show what remains of every budget and quota
    Example(example::ExampleArgs),
    /// Show the limits of a profile, or compute limits for a workload
    Policy(policy::PolicyArgs),
    /// Run test vectors against the user agent
    Conformance(conformance::ConformanceArgs),
    /// Measure what leaks and what holds, on the real code and on managers with known mistakes
    Audit(audit::AuditArgs),
    /// Show it all: devices, encrypted reports, a noised histogram, and what each party saw
    Demo(demo::DemoArgs),
    /// Replay a workload under policies and attackers, to see what quotas cost and prevent
    Simulate(lab::simulate::SimulateArgs),
    /// Compute limits from logs, and predict the errors under them
    Tune(lab::tune::TuneArgs),
    /// Plan a measurement: predict its error, or find the epsilon for a target error
    Plan(lab::plan::PlanArgs),
    /// Describe a workload, or write it to files
    #[command(subcommand)]
    Workload(lab::workload::WorkloadCommand),
    /// Run the user agent as a process that answers requests, each a line of JSON
    Agent(agent::AgentArgs),
    /// Put the extension and its host into a browser, or run one with them
    #[command(subcommand)]
    Browser(browser::BrowserCommand),
    /// Run the user agent as the native-messaging host of a browser's extension
    NativeHost(native_host::NativeHostArgs),
    /// Sum encrypted reports and add noise: leader, helper and collector in one process
    Aggregate(aggregate::AggregateArgs),
    /// Generate the keys of an aggregation service
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// Write tasks and reports for other implementations of DAP, such as Janus
    #[command(subcommand)]
    Dap(dap::DapCommand),
    /// Show, check, back up or reset the store file of a user agent
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Play one scenario and print what each event did, and why reports are null
    Explain(explain::ExplainArgs),
}

fn main() -> ExitCode {
    signals::survive_file_size_limit();
    let command = match parse() {
        Ok(cli) => cli.command,
        Err(instead) => return print_instead(&instead),
    };
    let finished = match command {
        Command::Reproduce(args) => lab::reproduce::run(&args),
        Command::Example(args) => example::run(&args),
        Command::Policy(args) => policy::run(&args),
        Command::Conformance(args) => conformance::run(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Simulate(args) => lab::simulate::run(&args),
        Command::Tune(args) => lab::tune::run(&args),
        Command::Plan(args) => lab::plan::run(&args),
        Command::Workload(command) => lab::workload::run(&command),
        Command::Agent(args) => agent::run(&args),
        Command::Browser(command) => browser::run(&command),
        Command::NativeHost(args) => native_host::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Aggregate(args) => aggregate::run(&args),
        Command::Keys(command) => keys::run(&command),
        Command::Dap(command) => dap::run(&command),
        Command::Store(command) => store::run(&command),
    };
    let printed = finished.and_then(|(text, good)| {
        output::print(&text).map_err(|error| CommandError {
            why: format!("cannot write the result: {error}"),
            status: 1,
        })?;
        Ok(good)
    });
    match printed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(CommandError { why, status }) => {
            stdio::tell(&why);
            ExitCode::from(status)
        }
    }
}

/// Parses the arguments.
fn parse() -> Result<Cli, clap::Error> {
    let matches = with_plain_errors(Cli::command()).try_get_matches()?;
    Cli::from_arg_matches(&matches)
}

/// Makes errors about numbers say what is wrong. A flag that takes a value also takes a negative
/// number, which is then out of range and not an unknown flag.
fn with_plain_errors(command: clap::Command) -> clap::Command {
    fn number(text: &str) -> Result<f64, &'static str> {
        text.parse().map_err(|_| "it is not a number")
    }
    let command = command.mut_args(|arg| {
        if arg.is_positional() || !arg.get_action().takes_values() {
            return arg;
        }
        let arg = arg.allow_negative_numbers(true);
        match arg.get_value_parser().type_id() == TypeId::of::<f64>() {
            true => arg.value_parser(number),
            false => arg,
        }
    });
    command.mut_subcommands(with_plain_errors)
}

/// Prints the help, the version, or a usage error, when there is no command to run.
fn print_instead(instead: &clap::Error) -> ExitCode {
    match instead.print() {
        // A usage error that cannot be printed still sets the exit status.
        Err(error) if !instead.use_stderr() && error.kind() != ErrorKind::BrokenPipe => {
            stdio::tell(&format!("cannot write the result: {error}"));
            ExitCode::from(1)
        }
        _ => ExitCode::from(u8::try_from(instead.exit_code()).unwrap_or(2)),
    }
}

/// The text that a command prints and whether its result is good, or the reason for its failure.
type CommandResult = Result<(String, bool), CommandError>;

/// The failure of a command: a reason in one line, and the exit status.
#[derive(Debug)]
struct CommandError {
    why: String,
    status: u8,
}

impl CommandError {
    /// A command that cannot do what was asked.
    fn because(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            status: 1,
        }
    }

    /// Arguments that are wrong, that contradict each other, or that do not suit the input.
    fn misused(why: impl ToString) -> Self {
        Self {
            why: why.to_string(),
            status: 2,
        }
    }

    /// Input that cannot be read.
    fn unreadable(why: impl ToString) -> Self {
        Self::misused(why)
    }
}

impl<E: std::error::Error> From<E> for CommandError {
    fn from(error: E) -> Self {
        Self {
            why: error.to_string(),
            status: 1,
        }
    }
}
