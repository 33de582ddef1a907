//! Files of aggregation services and of keys, as `bigbird keys generate` writes them.

use std::fs;
use std::path::{Path, PathBuf};

use bigbird_dap::{AggregationService, AggregatorKeys, ConfiguredServices, Role};

use crate::CommandError;

/// The file of services in a folder.
pub(crate) const SERVICES: &str = "aggregation-services.toml";

/// The name of the file with an aggregator's keys.
pub(crate) fn keys_file(role: Role) -> String {
    format!("{role}.toml")
}

fn read(path: &Path) -> Result<String, CommandError> {
    let text = fs::read_to_string(path);
    text.map_err(|error| {
        CommandError::unreadable(format!("cannot read {}: {error}", path.display()))
    })
}

/// Reads a file of services, or the one in a folder.
pub(crate) fn read_services(path: &Path) -> Result<ConfiguredServices, CommandError> {
    let path = match path.is_dir() {
        true => path.join(SERVICES),
        false => path.to_owned(),
    };
    let parsed = ConfiguredServices::parse(&read(&path)?);
    parsed.map_err(|error| CommandError::unreadable(format!("{}: {error}", path.display())))
}

/// A service with the keys of both aggregators: what a process needs that is both.
pub(crate) struct OperatedService {
    pub(crate) service: AggregationService,
    pub(crate) keys: [AggregatorKeys; 2],
    /// The folder in which everything is.
    pub(crate) folder: PathBuf,
}

impl OperatedService {
    /// Reads the folder that `bigbird keys generate` wrote, or the folder of a file of services.
    /// With a `url`, that service of several.
    pub(crate) fn read(path: &Path, url: Option<&str>) -> Result<Self, CommandError> {
        let services = read_services(path)?;
        let folder = match path.is_dir() {
            true => path,
            false => path.parent().unwrap_or(Path::new("")),
        };
        let service = match url {
            Some(url) => services.get(url).ok_or_else(|| {
                let known: Vec<_> = services.iter().map(AggregationService::url).collect();
                let known = known.join(", ");
                CommandError::misused(format!("unknown service `{url}`; use one of: {known}"))
            })?,
            None => services.iter().next().ok_or_else(|| {
                CommandError::because(format!("{}: there is no service", folder.display()))
            })?,
        };
        let keys = |role: Role| {
            let path = folder.join(keys_file(role));
            let parsed = AggregatorKeys::parse(&read(&path)?);
            parsed.map_err(|error| CommandError::unreadable(format!("{}: {error}", path.display())))
        };
        Ok(Self {
            service: service.clone(),
            keys: [keys(Role::Leader)?, keys(Role::Helper)?],
            folder: folder.to_owned(),
        })
    }
}
