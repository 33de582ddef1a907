//! `bigbird native-host`: the user agent that a browser starts for its extension.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use bigbird_browser::{NativeHost, StorePlace};

use crate::clock::wall_clock;
use crate::serving::{ServingArgs, ServingSetup};
use crate::{CommandError, CommandResult, stdio};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A browser starts the host when its extension connects, and ends it by closing the input. `bigbird
browser install` tells the browser how. Requests and answers are JSON objects in native-messaging
frames: four bytes of length in the byte order of the machine, then the object.

The first request connects and names the profile of the browser, 1 to 64 characters from a-z and
0-9:
  {\"event\": \"connect\", \"id\": 1, \"profile\": \"p1\"}

After that, requests and answers are those of `bigbird agent`, which docs/agent.md describes. A
store that cannot be used does not end the host. Pages then get null reports, requests of the user
get a StoreError, and the host tries again once a second.")]
#[command(group = clap::ArgGroup::new("where").args(["store", "folder"]))]
pub(crate) struct NativeHostArgs {
    /// File that keeps everything, created if it does not exist
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
    /// Folder with a store for each profile [default: the user's data folder, bigbird]
    ///
    /// Created if it does not exist, and then readable by its owner only. The user's data folder is
    /// $XDG_DATA_HOME, or ~/.local/share.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    #[command(flatten)]
    serving: ServingArgs,
    /// Words that browsers append: the origin of the extension, or the manifest and its id
    ///
    /// The browser has checked them against its manifest of the host. They have no effect.
    #[arg(value_name = "CALLER")]
    caller: Vec<OsString>,
}

pub(crate) fn run(args: &NativeHostArgs) -> CommandResult {
    let ServingSetup {
        config,
        profile,
        sealer,
    } = args.serving.read()?;
    let store = match (&args.store, &args.folder) {
        (Some(file), _) => StorePlace::File(file.clone()),
        (None, Some(folder)) => StorePlace::Folder(folder.clone()),
        (None, None) => StorePlace::Folder(data_folder()?),
    };
    let host = NativeHost {
        config,
        sealer,
        rules: profile.to_string(),
        store,
        clock: wall_clock,
        warn: stdio::tell,
    };
    let served = host.run(stdio::input(), stdio::output());
    served.map_err(|error| CommandError::because(format!("cannot serve the browser: {error}")))?;
    Ok((String::new(), true))
}

/// The folder of the stores, unless another is given.
pub(crate) fn data_folder() -> Result<PathBuf, CommandError> {
    let variable = |name| env::var_os(name).filter(|value| Path::new(value).is_absolute());
    let data = match variable("XDG_DATA_HOME") {
        Some(data) => PathBuf::from(data),
        None => match variable("HOME") {
            Some(home) => Path::new(&home).join(".local/share"),
            None => {
                return Err(CommandError::because(
                    "neither XDG_DATA_HOME nor HOME names a folder; use --folder or --store",
                ));
            }
        },
    };
    Ok(data.join("bigbird"))
}
