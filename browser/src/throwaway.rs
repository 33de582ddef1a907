//! A throw-away browser: a new profile in a folder, with the extension and its host, that leaves
//! nothing behind.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::error::BrowserError;
use crate::extension::{ExtensionConfig, write_extension};
use crate::kind::{BrowserKind, UserFolders};
use crate::marionette::{Marionette, PORT_FILE};
use crate::registration::{HostCommand, host_manifest, manifest_file, write_file};

/// The longest time to wait for Firefox to offer its remote control.
const READY: Duration = Duration::from_secs(120);

/// The time that a browser gets to end by itself.
const GRACE: Duration = Duration::from_secs(5);

/// The pause between two looks at a browser.
const PAUSE: Duration = Duration::from_millis(50);

/// What a throw-away browser is made from.
#[derive(Debug)]
pub struct ThrowawayOptions<'a> {
    /// The browser.
    pub kind: BrowserKind,
    /// The folder for everything. It must be empty, or have been used for this before.
    pub folder: &'a Path,
    /// The configuration of the extension.
    pub config: &'a ExtensionConfig,
    /// The program and the arguments of the host. The place of its store and its services are
    /// added.
    pub host: HostCommand,
    /// The address to open.
    pub address: &'a str,
    /// True if no window is shown.
    pub headless: bool,
    /// The proxy for all connections, for a demonstration without the network.
    pub proxy: Option<ProxyAddress>,
}

/// A proxy on this machine through which a browser makes all its connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyAddress {
    /// Its port.
    pub port: u16,
    /// The hash of the public key of its sites, in base64. Browsers then accept their certificate.
    pub key_hash: String,
}

/// A browser that runs.
#[derive(Debug)]
pub struct ThrowawayBrowser {
    kind: BrowserKind,
    process: Child,
    /// The session that accepts the certificate of the proxy. It ends with the browser.
    session: Option<Marionette>,
}

impl ThrowawayBrowser {
    /// Starts a browser with a new profile.
    ///
    /// # Errors
    /// If the browser is not installed, does not start, or refuses the extension.
    pub fn start(options: &ThrowawayOptions<'_>) -> Result<Self, BrowserError> {
        let program = options.kind.program()?;
        let extension = options.prepare()?;
        match options.kind.is_firefox() {
            true => options.start_firefox(&program, &extension),
            false => options.start_chromium(&program, &extension),
        }
    }

    /// The id of the browser's process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the user closes the browser, or `interrupted` returns true. Then ends it.
    pub fn wait(&mut self, interrupted: impl Fn() -> bool) {
        while !interrupted() && matches!(self.process.try_wait(), Ok(None)) {
            thread::sleep(PAUSE);
        }
        self.end();
    }

    /// Ends the browser, with all processes that it started.
    pub fn end(&mut self) {
        self.session = None;
        self.signal(Signal::Terminate);
        let since = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) {
            if since.elapsed() > GRACE {
                self.signal(Signal::Kill);
                let _ = self.process.kill();
                let _ = self.process.wait();
            }
            thread::sleep(PAUSE);
        }
    }

    /// Sends a signal to the browser's group of processes.
    #[cfg(unix)]
    fn signal(&self, signal: Signal) {
        use rustix::process::{Pid, kill_process_group};
        let signal = match signal {
            Signal::Terminate => rustix::process::Signal::TERM,
            Signal::Kill => rustix::process::Signal::KILL,
        };
        let id = i32::try_from(self.process.id())
            .ok()
            .and_then(Pid::from_raw);
        if let Some(id) = id {
            // The group may be gone already.
            let _ = kill_process_group(id, signal);
        }
    }

    #[cfg(not(unix))]
    fn signal(&self, _: Signal) {}

    /// The browser.
    pub fn kind(&self) -> BrowserKind {
        self.kind
    }
}

impl Drop for ThrowawayBrowser {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Debug, Clone, Copy)]
enum Signal {
    Terminate,
    Kill,
}

impl ThrowawayOptions<'_> {
    /// Writes the extension and registers the host, without starting a browser. Returns the folder
    /// of the extension.
    ///
    /// Chromium finds the host if its `--user-data-dir` is the folder `profile`, Firefox if its
    /// `HOME` is the folder itself.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn prepare(&self) -> Result<PathBuf, BrowserError> {
        let extension = self.folder.join("extension");
        write_extension(&extension, self.config)?;
        self.register_host()?;
        Ok(extension)
    }

    fn profile(&self) -> PathBuf {
        self.folder.join("profile")
    }

    /// Writes the launcher and the manifest where this browser, with this profile, looks for them.
    fn register_host(&self) -> Result<(), BrowserError> {
        let launcher = self.folder.join("native-host");
        let mut host = self.host.clone();
        host.arguments
            .extend(["--folder".into(), self.folder.join("stores").into()]);
        let services = self.config.services_toml()?;
        if !services.is_empty() {
            let path = self.folder.join("aggregation-services.toml");
            write_file(&path, services.as_bytes(), false)?;
            host.arguments
                .extend(["--aggregation-services".into(), path.into()]);
        }
        write_file(&launcher, host.launcher()?.as_bytes(), true)?;
        let manifests = match self.kind.is_firefox() {
            // Firefox looks in the folder of the user alone, so it gets another user's folder.
            true => self.kind.host_folder(&UserFolders {
                home: self.folder.to_owned(),
                config: self.folder.join(".config"),
                data: self.folder.join(".local/share"),
                mac: cfg!(target_os = "macos"),
            }),
            false => self.profile().join("NativeMessagingHosts"),
        };
        let manifest = host_manifest(self.kind, &launcher)?;
        write_file(&manifests.join(manifest_file()), manifest.as_bytes(), false)
    }

    fn spawn(&self, mut command: Command, program: &Path) -> Result<Child, BrowserError> {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        if self.headless {
            command.stderr(Stdio::null());
        }
        // A group of its own, so that everything that it starts can be ended with it.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.spawn().map_err(|source| BrowserError::Start {
            program: program.to_owned(),
            source,
        })
    }

    fn start_chromium(
        &self,
        program: &Path,
        extension: &Path,
    ) -> Result<ThrowawayBrowser, BrowserError> {
        let with = |flag: &str, path: &Path| {
            let mut argument = std::ffi::OsString::from(flag);
            argument.push(path);
            argument
        };
        let mut command = Command::new(program);
        command
            .arg(with("--user-data-dir=", &self.profile()))
            .arg(with("--load-extension=", extension))
            .arg(with("--disable-extensions-except=", extension))
            // Branded browsers ignore --load-extension unless this is off.
            .arg("--disable-features=DisableLoadExtensionCommandLineSwitch")
            .args(["--no-first-run", "--no-default-browser-check"])
            .args(["--password-store=basic", "--use-mock-keychain"])
            .args(["--disable-sync", "--disable-component-update"]);
        if self.headless {
            command.arg("--headless=new");
        }
        if is_root() {
            // Chromium's sandbox does not work for root.
            command.arg("--no-sandbox");
        }
        if let Some(ProxyAddress { port, key_hash }) = &self.proxy {
            command
                .arg(format!("--proxy-server=http://127.0.0.1:{port}"))
                .arg("--proxy-bypass-list=<-loopback>")
                .arg(format!("--ignore-certificate-errors-spki-list={key_hash}"))
                .arg("--disable-background-networking");
        }
        command.arg(self.address);
        Ok(ThrowawayBrowser {
            kind: self.kind,
            process: self.spawn(command, program)?,
            session: None,
        })
    }

    fn start_firefox(
        &self,
        program: &Path,
        extension: &Path,
    ) -> Result<ThrowawayBrowser, BrowserError> {
        let profile = self.profile();
        write_file(
            &profile.join("user.js"),
            self.preferences().as_bytes(),
            false,
        )?;
        let port_file = profile.join(PORT_FILE);
        let _ = fs::remove_file(&port_file);
        let mut command = Command::new(program);
        command.arg("--profile").arg(&profile);
        command.args(["--no-remote", "--new-instance", "--marionette"]);
        if self.headless {
            command.arg("--headless");
        }
        // With its own folder of the user, Firefox finds our host and nothing of the real user.
        if let (None, Some(home)) = (env::var_os("XAUTHORITY"), env::var_os("HOME")) {
            command.env("XAUTHORITY", Path::new(&home).join(".Xauthority"));
        }
        command.env("HOME", self.folder);
        for variable in ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"] {
            command.env_remove(variable);
        }
        let mut browser = ThrowawayBrowser {
            kind: self.kind,
            process: self.spawn(command, program)?,
            session: None,
        };
        let port = wait_for_port(&mut browser.process, &port_file)?;
        let mut session = Marionette::connect(port, self.proxy.is_some())?;
        session.install(extension)?;
        session.open(self.address)?;
        match self.proxy {
            // The certificate is accepted as long as the session lasts.
            Some(_) => browser.session = Some(session),
            None => session.end()?,
        }
        Ok(browser)
    }

    /// The preferences of the profile: a remote control, no first-run pages, no telemetry.
    fn preferences(&self) -> String {
        let mut preferences = vec![
            ("marionette.port", json!(0)),
            ("app.normandy.enabled", json!(false)),
            ("app.update.enabled", json!(false)),
            ("browser.aboutConfig.showWarning", json!(false)),
            ("browser.aboutwelcome.enabled", json!(false)),
            ("browser.shell.checkDefaultBrowser", json!(false)),
            ("browser.startup.homepage", json!("about:blank")),
            ("browser.startup.page", json!(0)),
            ("datareporting.healthreport.uploadEnabled", json!(false)),
            ("datareporting.policy.dataSubmissionEnabled", json!(false)),
            ("toolkit.telemetry.reportingpolicy.firstRun", json!(false)),
            ("termsofuse.bypassNotification", json!(true)),
        ];
        if let Some(ProxyAddress { port, .. }) = &self.proxy {
            preferences.extend([
                ("network.proxy.type", json!(1)),
                ("network.proxy.http", json!("127.0.0.1")),
                ("network.proxy.http_port", json!(port)),
                ("network.proxy.ssl", json!("127.0.0.1")),
                ("network.proxy.ssl_port", json!(port)),
                ("network.proxy.allow_hijacking_localhost", json!(true)),
                ("network.proxy.no_proxies_on", json!("")),
                ("network.captive-portal-service.enabled", json!(false)),
                ("network.connectivity-service.enabled", json!(false)),
                ("network.dns.disablePrefetch", json!(true)),
                ("network.prefetch-next", json!(false)),
                ("network.trr.mode", json!(5)),
                (
                    "browser.safebrowsing.downloads.remote.enabled",
                    json!(false),
                ),
                ("extensions.update.enabled", json!(false)),
                ("security.OCSP.enabled", json!(0)),
            ]);
        }
        let line = |(name, value)| format!("user_pref({}, {value});\n", json!(name));
        preferences.into_iter().map(line).collect()
    }
}

/// Waits until Firefox says which port its remote control has.
fn wait_for_port(process: &mut Child, file: &Path) -> Result<u16, BrowserError> {
    let name = BrowserKind::Firefox.name();
    let since = Instant::now();
    loop {
        let text = fs::read_to_string(file).unwrap_or_default();
        if let Ok(port) = text.trim().parse() {
            return Ok(port);
        }
        if !matches!(process.try_wait(), Ok(None)) {
            return Err(BrowserError::Ended(name));
        }
        if since.elapsed() > READY {
            let seconds = READY.as_secs();
            return Err(BrowserError::NotReady { name, seconds });
        }
        thread::sleep(PAUSE);
    }
}

#[cfg(unix)]
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(not(unix))]
fn is_root() -> bool {
    false
}
