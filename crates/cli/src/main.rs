//! The `bigbird` command: privacy budgets, quotas and reports on the command line.

#[cfg(feature = "agent")]
mod agent;
#[cfg(feature = "aggregator")]
mod aggregate;
#[cfg(feature = "audit")]
mod audit;
#[cfg(feature = "browser")]
mod browser;
#[cfg_attr(
    not(feature = "agent"),
    allow(dead_code, reason = "stores need more of it")
)]
mod clock;
mod conformance;
#[cfg(feature = "aggregator")]
mod dap;
#[cfg(feature = "browser")]
mod demo;
mod example;
mod explain;
mod headers;
#[cfg(feature = "aggregator")]
mod keys;
#[cfg(feature = "lab")]
mod lab;
#[cfg(feature = "lab")]
mod machine;
mod manual;
#[cfg(feature = "browser")]
mod native_host;
#[cfg_attr(
    not(all(feature = "audit", feature = "browser", feature = "lab")),
    allow(
        dead_code,
        unused_imports,
        reason = "a smaller build prints fewer kinds of tables"
    )
)]
mod output;
#[cfg_attr(
    not(feature = "agent"),
    allow(dead_code, reason = "only agents read policies from files")
)]
mod policy;
#[cfg_attr(
    not(feature = "lab"),
    allow(dead_code, reason = "only the laboratory announces long work")
)]
mod progress;
#[cfg(feature = "agent")]
#[cfg_attr(
    not(feature = "browser"),
    allow(dead_code, reason = "browsers need more of it")
)]
mod scratch;
#[cfg(feature = "agent")]
#[cfg_attr(
    not(feature = "browser"),
    allow(dead_code, reason = "browsers need more of it")
)]
mod service;
#[cfg(feature = "agent")]
#[cfg_attr(
    not(feature = "browser"),
    allow(dead_code, reason = "browsers need more of it")
)]
mod serving;
#[cfg_attr(
    not(feature = "browser"),
    allow(dead_code, reason = "browsers need more of it")
)]
mod signals;
mod stdio;
#[cfg(feature = "agent")]
mod store;

use std::any::TypeId;
use std::io::ErrorKind;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

/// Privacy budgets for the open web.
#[derive(Debug, Parser)]
#[command(
    name = "bigbird",
    version = env!("BIGBIRD_VERSION"),
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = AFTER_HELP
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
`bigbird COMMAND --help` explains a command, and -h is shorter.

Exit status: 0 if all is well. 1 if the answer is no, such as a broken bound, a failed check or a
refused report, or if a result cannot be written. 2 for wrong arguments, and for input that cannot
be read or used.";

#[derive(Debug, Subcommand)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is one, and it is parsed once"
)]
enum Command {
    #[cfg(feature = "lab")]
    /// Reproduce the paper's evaluation and write a report
    Reproduce(lab::reproduce::ReproduceArgs),
    /// Replay the paper's worked example and show what remains of every budget and quota
    Example(example::ExampleArgs),
    /// Show the limits of a profile, or compute limits for a workload
    Policy(policy::PolicyArgs),
    /// Run test vectors against the user agent
    Conformance(conformance::ConformanceArgs),
    #[cfg(feature = "audit")]
    /// Measure what leaks and what holds, on the real code and on managers with known mistakes
    Audit(audit::AuditArgs),
    #[cfg(feature = "browser")]
    /// Show it all: devices, encrypted reports, a noised histogram, and what each party saw
    Demo(demo::DemoArgs),
    #[cfg(feature = "lab")]
    /// Replay a workload under policies and attackers, to see what quotas cost and prevent
    Simulate(lab::simulate::SimulateArgs),
    #[cfg(feature = "lab")]
    /// Compute limits from logs, and predict the errors under them
    Tune(lab::tune::TuneArgs),
    #[cfg(feature = "lab")]
    /// Plan a measurement: predict its error, or find the epsilon for a target error
    Plan(lab::plan::PlanArgs),
    #[cfg(feature = "lab")]
    /// Describe a workload, or write it to files
    #[command(subcommand)]
    Workload(lab::workload::WorkloadCommand),
    #[cfg(feature = "agent")]
    /// Run the user agent as a process that answers requests, each a line of JSON
    Agent(agent::AgentArgs),
    #[cfg(feature = "browser")]
    /// Put the extension and its host into a browser, or run one with them
    #[command(subcommand)]
    Browser(browser::BrowserCommand),
    #[cfg(feature = "browser")]
    /// Run the user agent as the native-messaging host of a browser's extension
    NativeHost(native_host::NativeHostArgs),
    #[cfg(feature = "aggregator")]
    /// Sum encrypted reports and add noise: leader, helper and collector in one process
    Aggregate(aggregate::AggregateArgs),
    #[cfg(feature = "aggregator")]
    /// Generate the keys of an aggregation service
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    #[cfg(feature = "aggregator")]
    /// Write tasks and reports for other implementations of DAP, such as Janus
    #[command(subcommand)]
    Dap(dap::DapCommand),
    #[cfg(feature = "agent")]
    /// Show, check, back up or reset the store file of a user agent
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Play events and print what each of them did, and why reports are null
    Explain(explain::ExplainArgs),
    /// Check Save-Impression and Measure-Conversion headers, and say what they mean
    Headers(headers::HeadersArgs),
    /// Print the completions of a shell
    Completions(manual::CompletionsArgs),
    /// Print the manual page, or write a page for each command
    Man(manual::ManArgs),
}

fn main() -> ExitCode {
    signals::survive_file_size_limit();
    #[cfg(feature = "lab")]
    output::quiet_when(bigbird_lab::workload::table::is_guarded);
    let command = match parse() {
        Ok(cli) => cli.command,
        Err(instead) => return print_instead(&instead),
    };
    let finished = match command {
        #[cfg(feature = "lab")]
        Command::Reproduce(args) => lab::reproduce::run(&args),
        Command::Example(args) => example::run(&args),
        Command::Policy(args) => policy::run(&args),
        Command::Conformance(args) => conformance::run(&args),
        #[cfg(feature = "audit")]
        Command::Audit(args) => audit::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Headers(args) => headers::run(&args),
        #[cfg(feature = "lab")]
        Command::Simulate(args) => lab::simulate::run(&args),
        #[cfg(feature = "lab")]
        Command::Tune(args) => lab::tune::run(&args),
        #[cfg(feature = "lab")]
        Command::Plan(args) => lab::plan::run(&args),
        #[cfg(feature = "lab")]
        Command::Workload(command) => lab::workload::run(&command),
        #[cfg(feature = "agent")]
        Command::Agent(args) => agent::run(&args),
        #[cfg(feature = "browser")]
        Command::Browser(command) => browser::run(&command),
        #[cfg(feature = "browser")]
        Command::NativeHost(args) => native_host::run(&args),
        #[cfg(feature = "browser")]
        Command::Demo(args) => demo::run(&args),
        #[cfg(feature = "aggregator")]
        Command::Aggregate(args) => aggregate::run(&args),
        #[cfg(feature = "aggregator")]
        Command::Keys(command) => keys::run(&command),
        #[cfg(feature = "aggregator")]
        Command::Dap(command) => dap::run(&command),
        #[cfg(feature = "agent")]
        Command::Store(command) => store::run(&command),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::pages(&args),
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
    let matches = command().try_get_matches()?;
    Cli::from_arg_matches(&matches)
}

/// The whole command line.
fn command() -> clap::Command {
    with_plain_errors(Cli::command())
}

/// Makes errors about numbers say what is wrong. A flag that takes a value also takes a negative
/// number, which is then out of range and not an unknown flag.
fn with_plain_errors(command: clap::Command) -> clap::Command {
    fn number(text: &str) -> Result<f64, &'static str> {
        text.parse().map_err(|_| "it is not a number")
    }
    let command = command.mut_args(|arg| {
        if arg.is_positional() {
            // Help begins with what a command reads.
            return arg.help_heading(None::<&str>);
        }
        if !arg.get_action().takes_values() {
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
    if let Some(ContextValue::String(name)) = instead.get(ContextKind::InvalidSubcommand)
        && let Some(feature) = left_out(name)
    {
        stdio::tell(&format!(
            "this build has no `{name}`: it was built without the feature `{feature}`"
        ));
        return ExitCode::from(2);
    }
    match instead.print() {
        // A usage error that cannot be printed still sets the exit status.
        Err(error) if !instead.use_stderr() && error.kind() != ErrorKind::BrokenPipe => {
            stdio::tell(&format!("cannot write the result: {error}"));
            ExitCode::from(1)
        }
        _ => ExitCode::from(u8::try_from(instead.exit_code()).unwrap_or(2)),
    }
}

/// The feature that a command needs, if this build does not have it.
fn left_out(command: &str) -> Option<&'static str> {
    let (feature, there) = match command {
        "aggregate" | "dap" | "keys" => ("aggregator", cfg!(feature = "aggregator")),
        "agent" | "store" => ("agent", cfg!(feature = "agent")),
        "audit" => ("audit", cfg!(feature = "audit")),
        "browser" | "demo" | "native-host" => ("browser", cfg!(feature = "browser")),
        "plan" | "reproduce" | "simulate" | "tune" | "workload" => ("lab", cfg!(feature = "lab")),
        _ => return None,
    };
    (!there).then_some(feature)
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
    #[expect(
        clippy::needless_pass_by_value,
        reason = "an error is passed on, and a function of it has the shape of map_err"
    )]
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
