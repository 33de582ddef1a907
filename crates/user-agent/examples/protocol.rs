//! A user agent that answers lines of JSON, as in a native-messaging host or a binding.
//!
//! ```sh
//! cargo run -p bigbird-user-agent --example protocol
//! ```

use std::error::Error;
use std::io::{self, Cursor};

use bigbird::Profile;
use bigbird_user_agent::protocol::{Player, ServeOptions, StreamClock, serve};
use bigbird_user_agent::{Config, Randomness, UserAgent};

/// Gives the same numbers each time, because this is a demonstration.
struct MiddleRandomness;

impl Randomness for MiddleRandomness {
    fn epoch_start(&mut self) -> f64 {
        0.5
    }

    fn credit(&mut self) -> f64 {
        0.5
    }

    fn handle(&mut self, number: u64) -> u128 {
        number.into()
    }
}

const REQUESTS: &str = r#"
{"event": "saveImpression", "seconds": 1, "site": "news.example", "options": {"histogramIndex": 2}}
{"event": "measureConversion", "seconds": 60, "site": "shop.example", "options": {"aggregationService": "https://agg.example", "histogramSize": 4, "epsilon": 0.7}}
{"event": "measureConversion", "seconds": 61, "site": "shop.example", "options": {"aggregationService": "https://agg.example", "histogramSize": 4, "epsilon": 0.7}}
{"event": "explain", "seconds": 62, "site": "shop.example", "options": {"aggregationService": "https://agg.example", "histogramSize": 4, "epsilon": 0.7}, "id": "why?"}
"#;

fn main() -> Result<(), Box<dyn Error>> {
    let config = Config::new(Profile::BigBird)
        .with_service("https://agg.example")
        .for_testing();
    let player = Player::new(UserAgent::in_memory(config, MiddleRandomness), None);
    let serving = ServeOptions {
        clock: StreamClock::Requests,
        warn: |what| eprintln!("{what}"),
        handle: || 0,
    };
    serve(player, Cursor::new(REQUESTS), io::stdout(), serving)?;
    Ok(())
}
