//! Lists the public API of a crate, one item per line, from the JSON that rustdoc writes about it.
//!
//! Prints `skipped: …` and exits with 3 if that JSON is not of the one format this program reads.

use std::collections::HashSet;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use public_api::Builder;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let path = std::env::args()
        .nth(1)
        .ok_or("usage: api-listing FILE.json")?;
    let path = Path::new(&path);

    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let format = json["format_version"].as_u64();
    let known = rustdoc_types::FORMAT_VERSION;
    if format != Some(known.into()) {
        let format = format.map_or("unknown".to_owned(), |format| format.to_string());
        println!("skipped: this rustdoc writes format {format}, and .ci/api-listing reads {known}");
        return Ok(ExitCode::from(3));
    }

    let listing = |omit_auto_traits, omit_derived| -> Result<Vec<String>, public_api::Error> {
        let api = Builder::from_rustdoc_json(path)
            .omit_blanket_impls(true)
            .omit_auto_trait_impls(omit_auto_traits)
            .omit_auto_derived_impls(omit_derived)
            .build()?;
        Ok(api.items().map(ToString::to_string).collect())
    };
    let mut lines: HashSet<String> = listing(true, true)?.into_iter().collect();
    // The methods of a derived impl are always the same, so one line for the impl is enough.
    lines.extend(listing(true, false)?.into_iter().filter(|line| {
        line.starts_with("impl") && !line.contains("core::marker::StructuralPartialEq")
    }));
    // Nearly every type is `Send` and `Sync`; those that are not have a line.
    let everything = listing(false, false)?;
    lines.extend(
        everything
            .iter()
            .filter(|line| is_not_thread_safe(line))
            .cloned(),
    );

    for line in everything {
        // A type that is exported under two paths has its methods listed once.
        if lines.remove(&line) {
            println!("{line}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn is_not_thread_safe(line: &str) -> bool {
    line.contains("!core::marker::Send for") || line.contains("!core::marker::Sync for")
}
