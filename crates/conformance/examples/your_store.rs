//! Every vector on a store of your own.
//!
//! ```sh
//! cargo run -p bigbird-conformance --example your_store
//! ```

use bigbird_conformance::{RunError, Tally, vectors};
use bigbird_user_agent::Memory;

fn main() -> Result<(), RunError> {
    let tally = Tally::of(&vectors(), |case| {
        // Under the profile of the case, on an empty store: here the one in memory.
        case.run_on(None, || Ok(Memory::new()))
    })?;
    print!("{tally}");
    Ok(())
}
