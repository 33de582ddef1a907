//! `bigbird browser`: the extension and its host in a browser.

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bigbird::Profile;
use bigbird_browser::demo::{DemoOptions, DemoServer, GUIDE};
use bigbird_browser::{
    BrowserKind, ExtensionConfig, HostCommand, InstallOptions, Installation, ProxyAddress,
    ThrowawayBrowser, ThrowawayOptions, UserFolders, uninstall,
};
use bigbird_dap::ConfiguredServices;

use crate::clock::wall_clock;
use crate::scratch::Scratch;
use crate::serving::ServingArgs;
use crate::{CommandError, CommandResult, keys, output, signals, stdio};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum BrowserCommand {
    /// Install the extension and its host for a browser of this user
    #[command(after_help = "\
Prints every file that it writes, and the steps that browsers leave to the user. `bigbird browser
uninstall` removes the files again.")]
    Install(InstallArgs),
    /// Remove what `install` wrote, and keep the stores
    Uninstall(UninstallArgs),
    /// Run an installed browser with the extension, in a profile that is removed afterwards
    #[command(after_help = "\
Ends when the browser is closed, or with Ctrl-C. Then the profile and the store are removed, unless
--keep names a folder for them.")]
    Run(RunArgs),
    /// Click through a demonstration: ads, a purchase, an attacker, and what the shop learns
    #[command(after_help = "\
Serves a newspaper, a blog, a shop, an ad company and an attacker on one port of this machine, and
opens a throw-away browser that reaches them and nothing else. `bigbird demo browser` is the same.

With --profile global-only, the attacker drains the budget, and the shop's reports say nothing.")]
    Demo(BrowserDemoArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct InstallArgs {
    /// Browser: firefox, chromium, chrome, edge, brave or vivaldi
    #[arg(long, value_name = "NAME")]
    browser: BrowserKind,
    /// Profile of Firefox that gets the extension as a file: a folder, or a name such as default
    ///
    /// Only Firefox ESR, Developer Edition and Nightly accept it there. [default: none]
    #[arg(long, value_name = "DIR")]
    browser_profile: Option<String>,
    /// Say what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    extension: ExtensionArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct UninstallArgs {
    /// Browser: firefox, chromium, chrome, edge, brave or vivaldi
    #[arg(long, value_name = "NAME")]
    browser: BrowserKind,
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) window: WindowArgs,
    #[command(flatten)]
    extension: ExtensionArgs,
    /// Address to open
    #[arg(value_name = "URL", default_value = "about:blank")]
    address: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BrowserDemoArgs {
    #[command(flatten)]
    window: WindowArgs,
    /// Profile that sets the rules of the browser: big-bird, w3c-draft, cookie-monster, global-only
    #[arg(long, default_value_t)]
    profile: Profile,
    /// Delay of answers to conversions, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2000,
          value_parser = clap::value_parser!(u64).range(1..=60_000))]
    release_after: u64,
    /// Port of the demonstration [default: any that is free]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// Open no browser: serve until Ctrl-C, and say how to connect
    #[arg(long, conflicts_with_all = ["browser", "keep", "headless"])]
    no_open: bool,
}

/// The options of a browser that is started and thrown away.
#[derive(Debug, clap::Args)]
pub(crate) struct WindowArgs {
    /// Browser [default: firefox or chromium, the first that is installed]
    #[arg(long, value_name = "NAME")]
    browser: Option<BrowserKind>,
    /// Folder for the profile and the store, which are then kept [default: none]
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Show no window
    #[arg(long)]
    headless: bool,
}

/// The options of the extension and its host.
#[derive(Debug, clap::Args)]
pub(crate) struct ExtensionArgs {
    #[command(flatten)]
    serving: ServingArgs,
    /// Time after an act of the user in which a page may use the API, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = ExtensionConfig::ACTIVATION_MS,
          value_parser = clap::value_parser!(u64).range(1..=600_000))]
    activation_duration: u64,
}

pub(crate) fn run(command: &BrowserCommand) -> CommandResult {
    match command {
        BrowserCommand::Install(args) => install(args),
        BrowserCommand::Uninstall(args) => remove(args),
        BrowserCommand::Run(args) => run_browser(args),
        BrowserCommand::Demo(args) => demo(args),
    }
}

fn install(args: &InstallArgs) -> CommandResult {
    let folders = UserFolders::from_environment()?;
    let kind = args.browser;
    if args.browser_profile.is_some() && !kind.is_firefox() {
        return Err(CommandError::misused(format!(
            "--browser-profile is for Firefox; {} loads an extension only by hand",
            kind.name()
        )));
    }
    let (config, arguments) = args.extension.read()?;
    let program = this_program()?;
    let installation = Installation::plan(InstallOptions {
        kind,
        folders: &folders,
        profile: args.browser_profile.as_deref(),
        config: &config,
        program: &program,
        arguments,
    })?;
    let mut text = String::new();
    match args.dry_run {
        true => writeln!(text, "Would write for {}:", kind.name())?,
        false => {
            installation.write(&folders)?;
            writeln!(text, "Wrote for {}:", kind.name())?;
        }
    }
    for file in &installation.files {
        writeln!(text, "  {:<24} {}", file.purpose, file.path.display())?;
    }
    writeln!(text, "\nStill to do:")?;
    for (number, step) in (1..).zip(installation.remaining_steps()) {
        writeln!(text, "  {number}. {step}")?;
    }
    writeln!(
        text,
        "\nStores will be in {}.\n\
         Remove all of it with `bigbird browser uninstall --browser {kind}`.",
        installation.stores.display()
    )?;
    Ok((text, true))
}

fn remove(args: &UninstallArgs) -> CommandResult {
    let folders = UserFolders::from_environment()?;
    let removal = uninstall(args.browser, &folders, args.dry_run)?;
    let mut text = String::new();
    let verb = if args.dry_run {
        "Would remove"
    } else {
        "Removed"
    };
    for path in &removal.removed {
        writeln!(text, "{verb} {}", path.display())?;
    }
    for path in &removal.gone {
        writeln!(text, "Already gone: {}", path.display())?;
    }
    writeln!(
        text,
        "\nThe stores in {} are kept. Without them, every budget would be there again. Delete them \
         only\nif you never want to use Big Bird again.",
        removal.stores.display()
    )?;
    if !args.browser.is_firefox() {
        writeln!(text, "Remove the extension itself on chrome://extensions.")?;
    }
    Ok((text, true))
}

fn run_browser(args: &RunArgs) -> CommandResult {
    let (config, arguments) = args.extension.read()?;
    args.window.run(&config, arguments, &args.address, None)?;
    Ok((String::new(), true))
}

pub(crate) fn demo(args: &BrowserDemoArgs) -> CommandResult {
    if !args.no_open {
        // It is looked for before anything begins.
        args.window.kind()?.program()?;
    }
    let (service, keys) = keys::new_service()?;
    let mut services = ConfiguredServices::new();
    services.insert(service.clone());
    let config = ExtensionConfig {
        services,
        rules: args.profile.to_string(),
        release_after_ms: args.release_after,
        activation_ms: ExtensionConfig::ACTIVATION_MS,
    };
    let server = DemoServer::start(DemoOptions {
        port: args.port,
        service,
        keys,
        rules: args.profile.to_string(),
        people: 400,
        now: wall_clock(),
    })?;
    let arguments = vec![
        "--profile".into(),
        args.profile.to_string().into(),
        "--release-after".into(),
        args.release_after.to_string().into(),
    ];
    if !args.no_open {
        args.window
            .run(&config, arguments, GUIDE, Some(server.proxy()))?;
        return Ok((String::new(), true));
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    signals::notice_interrupts(&interrupted);
    let scratch = Scratch::new()?;
    for kind in [BrowserKind::Firefox, BrowserKind::Chromium] {
        let host = HostCommand {
            program: this_program()?,
            arguments: arguments.clone(),
        };
        let options = ThrowawayOptions {
            kind,
            folder: scratch.path(),
            config: &config,
            host,
            address: GUIDE,
            headless: true,
            proxy: None,
        };
        options.prepare()?;
    }
    let ProxyAddress { port, key_hash } = server.proxy();
    let folder = scratch.path().display();
    output::print(&format!(
        "First page:    {GUIDE}\n\
         Proxy:         http://127.0.0.1:{port}\n\
         Key hash:      {key_hash}\n\
         Folder:        {folder}\n\n\
         Start Chromium with:\n  \
         --user-data-dir={folder}/profile --load-extension={folder}/extension\n  \
         --proxy-server=http://127.0.0.1:{port} \
         --ignore-certificate-errors-spki-list={key_hash}\n\
         Start Firefox with HOME={folder}, use the proxy for HTTPS, accept its certificate, and \
         load\n{folder}/extension at about:debugging.\n\
         Press Ctrl-C to end.\n"
    ))?;
    while !interrupted.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(100));
    }
    scratch.remove()?;
    Ok((String::new(), true))
}

impl WindowArgs {
    fn kind(&self) -> Result<BrowserKind, CommandError> {
        Ok(self.browser.map_or_else(BrowserKind::any, Ok)?)
    }

    /// Runs a browser until it is closed or interrupted, and removes what it left.
    pub(crate) fn run(
        &self,
        config: &ExtensionConfig,
        arguments: Vec<OsString>,
        address: &str,
        proxy: Option<ProxyAddress>,
    ) -> Result<(), CommandError> {
        let kind = self.kind()?;
        // The browser is looked for before anything is written.
        kind.program()?;
        let scratch = match &self.keep {
            Some(_) => None,
            None => Some(Scratch::new()?),
        };
        let folder = match (&self.keep, &scratch) {
            (Some(keep), _) => {
                let made = fs::create_dir_all(keep).and_then(|()| keep.canonicalize());
                made.map_err(|error| {
                    CommandError::because(format!("cannot write {}: {error}", keep.display()))
                })?
            }
            (None, Some(scratch)) => scratch.path().to_owned(),
            (None, None) => PathBuf::new(),
        };
        let interrupted = Arc::new(AtomicBool::new(false));
        signals::notice_interrupts(&interrupted);
        let mut browser = ThrowawayBrowser::start(&ThrowawayOptions {
            kind,
            folder: &folder,
            config,
            host: HostCommand {
                program: this_program()?,
                arguments,
            },
            address,
            headless: self.headless,
            proxy,
        })?;
        stdio::tell(&format!(
            "{} runs with the extension; close it or press Ctrl-C to end",
            kind.name()
        ));
        browser.wait(|| interrupted.load(Ordering::Relaxed));
        if let Some(scratch) = scratch {
            scratch.remove()?;
        }
        Ok(())
    }
}

impl ExtensionArgs {
    /// The configuration of the extension, and the arguments of the host without its services.
    fn read(&self) -> Result<(ExtensionConfig, Vec<OsString>), CommandError> {
        let serving = self.serving.read()?;
        let config = ExtensionConfig {
            services: serving.sealer.services().clone(),
            rules: serving.profile.to_string(),
            release_after_ms: self.serving.release_after(),
            activation_ms: self.activation_duration,
        };
        Ok((config, self.serving.host_arguments()?))
    }
}

/// The path of this program, which browsers start.
fn this_program() -> Result<PathBuf, CommandError> {
    env::current_exe()
        .and_then(|path| path.canonicalize())
        .map_err(|error| {
            CommandError::because(format!("cannot find the path of this program: {error}"))
        })
}
