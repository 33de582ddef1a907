//! The modules of the laboratory stand on each other in one order: none imports one above it.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::{Path, PathBuf};

/// The modules, lowest first.
const LAYERS: [&str; 10] = [
    "text",
    "threads",
    "workload",
    "attack",
    "evaluation",
    "describe",
    "diagnosis",
    "plan",
    "tune",
    "paper",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The top-level modules that a line of code names.
fn named(line: &str) -> impl Iterator<Item = &str> {
    line.split("crate::").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    })
}

#[test]
fn no_module_imports_one_above_it() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&folder, &mut files);
    let layer = |name: &str| LAYERS.iter().position(|other| *other == name);
    for file in files {
        let within = file.strip_prefix(&folder).unwrap();
        let name = within.iter().next().unwrap().to_str().unwrap();
        let name = name.strip_suffix(".rs").unwrap_or(name);
        if name == "lib" {
            continue;
        }
        let own = layer(name).unwrap_or_else(|| panic!("add `{name}` to the layers"));
        let code = std::fs::read_to_string(&file).unwrap();
        // Tests may use everything.
        let code = code.split("#[cfg(test)]").next().unwrap();
        for line in code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
        {
            for used in named(line) {
                if let Some(used_layer) = layer(used) {
                    let file = within.display();
                    assert!(
                        used_layer <= own,
                        "{file} imports `{used}`, which is above `{name}`"
                    );
                }
            }
        }
    }
}

#[test]
fn names_in_code_are_found() {
    let found: Vec<&str> = named("use crate::attack::Attack; crate::text::grouped(1)").collect();
    assert_eq!(found, ["attack", "text"]);
}
