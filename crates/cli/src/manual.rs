//! `bigbird completions` and `bigbird man`: what shells and `man` know about the command.

use std::fs;
use std::path::{Path, PathBuf};

use clap_complete::Shell;
use clap_mangen::Man;

use crate::{CommandError, CommandResult, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  bigbird completions bash > ~/.local/share/bash-completion/completions/bigbird
  bigbird completions zsh > ~/.zfunc/_bigbird
  bigbird completions fish > ~/.config/fish/completions/bigbird.fish")]
pub(crate) struct CompletionsArgs {
    /// Shell that reads them
    shell: Shell,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  bigbird man | man -l -
  bigbird man --out ~/.local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Folder to write the pages of all commands to, created if it does not exist
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn completions(args: &CompletionsArgs) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::command(), "bigbird", &mut script);
    Ok((String::from_utf8(script)?, true))
}

pub(crate) fn pages(args: &ManArgs) -> CommandResult {
    let mut command = crate::command();
    // The pages of commands are named after the whole path, such as bigbird-store-show.
    command.build();
    let Some(folder) = &args.out else {
        return Ok((String::from_utf8(page(&command)?)?, true));
    };
    let unwritable = |path: &Path, error: &std::io::Error| {
        CommandError::because(format!("cannot write {}: {error}", path.display()))
    };
    fs::create_dir_all(folder).map_err(|error| unwritable(folder, &error))?;
    let mut pages = Vec::new();
    collect(&command, &mut pages)?;
    for (name, page) in &pages {
        let path = folder.join(name);
        fs::write(&path, page).map_err(|error| unwritable(&path, &error))?;
    }
    let text = format!(
        "Wrote {} to {}\n",
        output::count(pages.len() as u64, "page"),
        folder.display()
    );
    Ok((text, true))
}

fn page(command: &clap::Command) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page)?;
    Ok(page)
}

/// The pages of a command and of all commands below it.
fn collect(command: &clap::Command, pages: &mut Vec<(String, Vec<u8>)>) -> std::io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    pages.push((format!("{name}.1"), page(command)?));
    let mut below = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set() && command.get_name() != "help");
    below.try_for_each(|command| collect(command, pages))
}
