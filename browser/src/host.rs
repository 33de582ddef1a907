//! The native-messaging host: a user agent that a browser starts and talks to in frames.
//!
//! The first frame is `connect`, which names the profile of the browser. After it, frames carry the
//! protocol of `docs/agent.md`, and [`serve`] answers them. A store that cannot be opened does not
//! end the host: pages get null reports at their moment, the user is told what is wrong, and
//! opening is tried again.
//!
//! A browser may start a second host while the first still answers its last calls. Both may use the
//! same store: its transactions are those of any two processes.

use std::fs;
use std::io::{self, BufRead, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bigbird::Timestamp;
use bigbird_dap::DapSealer;
use bigbird_store::{SqliteStore, StoreError, StoreOptions};
use bigbird_user_agent::protocol::{
    AgentAnswer, Line, Player, Reason as _, ServeOptions, StreamClock, serve,
};
use bigbird_user_agent::{Config, Storage as _, SystemRandomness, UserAgent};
use serde_json::{Value, json};

use crate::frames::{FrameLines, FrameOutput};
use crate::lazy_store::LazyStore;

/// The longest wait for another process that holds the lock of the store. It is shorter than the
/// delay of answers, so that the user is told soon and no conversion is charged after its moment.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// The longest name of a profile.
const LONGEST_PROFILE: usize = 64;

/// A native-messaging host, before its browser connects.
#[derive(Debug, Clone)]
pub struct NativeHost {
    /// The configuration of the user agent. Its services must be those of the sealer.
    pub config: Config,
    /// The sealer of reports.
    pub sealer: DapSealer,
    /// The name of the rules, such as `big-bird`, which the user is shown.
    pub rules: String,
    /// The place of the store.
    pub store: StorePlace,
    /// The clock, in milliseconds since 1970.
    pub clock: fn() -> Timestamp,
    /// Tells the user's side what no page may learn, such as that the store failed.
    pub warn: fn(&str),
}

/// The place where a host keeps its store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StorePlace {
    /// This file, whatever the profile.
    File(PathBuf),
    /// A file of its own for each profile, in a folder that is created if it does not exist.
    Folder(PathBuf),
}

impl StorePlace {
    /// The store file of a profile, whose name [`is_profile`] allows.
    fn file(&self, profile: &str) -> PathBuf {
        match self {
            Self::File(file) => file.clone(),
            Self::Folder(folder) => folder.join(format!("{profile}.store")),
        }
    }
}

impl NativeHost {
    /// Serves a browser until its input ends.
    ///
    /// # Errors
    /// If answers cannot be written, the operating system gives no random numbers, or the store
    /// cannot be closed. A browser that went away is not an error.
    pub fn run<R, W>(self, input: R, output: W) -> io::Result<()>
    where
        R: Read + Send + 'static,
        W: Write + Send + 'static,
    {
        let output = FrameOutput::new(output);
        let longest = Line::longest(&self.config.limits);
        let mut input = FrameLines::new(input, output.clone(), longest);
        match self.connect(&mut input, output.clone()) {
            Ok(Some(agent)) => self.serve(agent, input, output),
            Ok(None) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Answers frames until one connects. Returns `None` if the input ends before.
    fn connect(
        &self,
        input: &mut impl BufRead,
        mut output: impl Write,
    ) -> io::Result<Option<UserAgent<LazyStore, SystemRandomness>>> {
        let mut line = Vec::new();
        loop {
            line.clear();
            if input.read_until(b'\n', &mut line)? == 0 {
                return Ok(None);
            }
            let (answer, agent) = match Connect::parse(&line) {
                Ok(connect) => {
                    let file = self.store.file(&connect.profile);
                    let mut agent = self.agent(&file)?;
                    let store = agent.storage_mut().begin().map(drop);
                    (self.connected(connect, &file, store.err()), Some(agent))
                }
                Err(answer) => (answer.line(), None),
            };
            output.write_all(answer.as_bytes())?;
            output.flush()?;
            if agent.is_some() {
                return Ok(agent);
            }
        }
    }

    fn connected(&self, connect: Connect, file: &Path, failed: Option<StoreError>) -> String {
        let services: Vec<&String> = self.config.aggregation_services.keys().collect();
        let mut answer = json!({
            "ok": true,
            "version": env!("CARGO_PKG_VERSION"),
            "rules": self.rules,
            "releaseAfter": self.config.pace.delay.as_millis(),
            "store": file.display().to_string(),
            "services": services,
        });
        if let Some(error) = failed {
            answer["storeError"] = json!({
                "reason": error.reason(),
                "message": error.to_string(),
                "advice": error.advice(),
            });
        }
        if let Some(id) = connect.id {
            answer["id"] = id;
        }
        answer.to_string() + "\n"
    }

    /// A user agent on a store that may not be usable yet.
    fn agent(&self, file: &Path) -> io::Result<UserAgent<LazyStore, SystemRandomness>> {
        let randomness = SystemRandomness::new().map_err(io::Error::other)?;
        let (file, place) = (file.to_owned(), self.store.clone());
        // A store that disappears while the host runs is not created anew: that would give every
        // budget back.
        let mut existed = false;
        let store = LazyStore::new(move || {
            if let StorePlace::Folder(folder) = &place {
                // If this fails, opening the store says why.
                let _ = create_private(folder);
            }
            let options = StoreOptions {
                wait: LOCK_WAIT,
                ..StoreOptions::default()
            };
            let opened = match existed {
                true => SqliteStore::open(&file, &options),
                false => SqliteStore::open_or_create(&file, &options),
            };
            existed |= opened.is_ok();
            opened
        });
        let agent = UserAgent::on(self.config.clone(), store, randomness);
        Ok(agent.sealing(self.sealer.clone()))
    }

    fn serve<R, W>(
        &self,
        agent: UserAgent<LazyStore, SystemRandomness>,
        input: FrameLines<R, W>,
        output: FrameOutput<W>,
    ) -> io::Result<()>
    where
        R: Read + Send + 'static,
        W: Write + Send + 'static,
    {
        let serving = ServeOptions {
            clock: StreamClock::Wall(self.clock),
            warn: self.warn,
            handle: SystemRandomness::handle_bits,
        };
        let player = serve(Player::new(agent, None), input, output, serving)?;
        let closed = player.agent.into_storage().close();
        closed.map_err(io::Error::other)
    }
}

/// The first request of a browser.
#[derive(Debug)]
struct Connect {
    id: Option<Value>,
    profile: String,
}

impl Connect {
    fn parse(line: &[u8]) -> Result<Self, AgentAnswer> {
        let malformed = |why: &str| AgentAnswer::malformed(why);
        let value: Value = serde_json::from_slice(line)
            .map_err(|error| malformed(&format!("the frame is not JSON: {error}")))?;
        let id = value.get("id").cloned();
        // The answer to a long id would not be what the sender waits for.
        let id = id.filter(|id| id.to_string().len() <= 256);
        let malformed = |why: String| AgentAnswer::malformed(&why).with_id(id.clone());
        if value.get("event").and_then(Value::as_str) != Some("connect") {
            return Err(malformed(
                "the first request must be {\"event\": \"connect\", \"profile\": …}".to_owned(),
            ));
        }
        let profile = value.get("profile").unwrap_or(&Value::Null);
        match profile.as_str() {
            Some(name) if is_profile(name) => Ok(Self {
                profile: name.to_owned(),
                id,
            }),
            _ => Err(malformed(format!(
                "`profile` must be a string of 1 to {LONGEST_PROFILE} characters from a-z and 0-9"
            ))),
        }
    }
}

/// True if a browser may name its profile like this. The name becomes the name of a file.
fn is_profile(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=LONGEST_PROFILE).contains(&name.len()) && name.bytes().all(allowed)
}

/// Creates a folder that only its owner can read, with the folders above it.
fn create_private(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        // `install` may have made it for the launcher, which everybody may read.
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
        }
        return Ok(());
    }
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}
