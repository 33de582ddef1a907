//! Breaks one rule of a budget manager, and lets the auditor find a script that shows it.
//!
//! ```sh
//! cargo run --release -p bigbird-audit --example mistake -- winner-pays
//! ```

use bigbird_audit::run::{UnknownManager, find_manager};
use bigbird_audit::search::{Search, Tactics};
use bigbird_audit::story::story;

fn main() -> Result<(), UnknownManager> {
    let name = std::env::args().nth(1);
    let entry = find_manager(name.as_deref().unwrap_or("winner-pays"))?;
    println!("{}: {}.\n", entry.name, entry.about);
    let mut search = Search::new(entry.name, &*entry.make, entry.ingredients, Tactics::ALL, 1);
    search.run(20_000);
    match search.finding {
        Some(finding) => {
            println!("Caught after {} scripts:\n", finding.after);
            print!("{}", story(&*entry.make, &finding.script));
        }
        None => println!("No script of {} breaches an oracle.", search.scripts),
    }
    Ok(())
}
