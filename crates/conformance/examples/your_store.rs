//! Runs every vector on your own store.
//!
//! ```sh
//! cargo run -p bigbird-conformance --example your_store
//! ```

use bigbird_conformance::{RunError, Tally, vectors};
use bigbird_user_agent::MemoryStore;

fn main() -> Result<(), RunError> {
    let tally = Tally::of(&vectors(), |case| {
        // Each case runs under its own profile, on an empty store. Here it is the one in memory.
        case.run_on(None, || Ok(MemoryStore::new()))
    })?;
    print!("{tally}");
    Ok(())
}
