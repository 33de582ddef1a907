//! Pages on a failing disk, served as a browser would: with threads and on a wall clock.

use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter, Write as _, pipe};
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bigbird::{Profile, Timestamp};
use bigbird_user_agent::Config;
use bigbird_user_agent::protocol::{Arrivals, Player, ServeOptions, StreamClock, serve};
use rusqlite::ffi;
use serde_json::{Value, json};

use crate::common::{DAY, SERVICE, folder, open};
use crate::{TURN, recorder};

const DELAY: Duration = Duration::from_millis(50);

/// A user agent on a store that answers lines of JSON.
struct Serving {
    input: PipeWriter,
    output: BufReader<PipeReader>,
    server: JoinHandle<()>,
}

impl Serving {
    fn start(path: &Path) -> Self {
        let many = Arrivals {
            of_site: 1000,
            of_all: 1000,
        };
        let mut config = Config::new(Profile::BigBird)
            .with_service(SERVICE)
            .for_testing();
        config.pace.delay = DELAY;
        config.pace.conversions = many;
        config.pace.impressions = many;
        let agent = open(path, &config);
        let (theirs, input) = pipe().unwrap();
        let (output, ours) = pipe().unwrap();
        let server = thread::spawn(move || {
            let serving = ServeOptions {
                clock: StreamClock::Wall(|| Timestamp(100 * DAY)),
                warn: |_| {},
                handle: || 7,
            };
            let player = Player::new(agent, None);
            let player = serve(player, BufReader::new(theirs), ours, serving).unwrap();
            player.agent.into_storage().close().unwrap();
        });
        Self {
            input,
            output: BufReader::new(output),
            server,
        }
    }

    fn ask(&mut self, request: &Value) -> String {
        writeln!(self.input, "{request}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    fn ask_own(&mut self, event: &str) -> Value {
        serde_json::from_str(&self.ask(&json!({"event": event}))).unwrap()
    }

    fn end(self) {
        drop(self.input);
        self.server.join().unwrap();
    }
}

/// Saves an ad that one site may measure.
fn save(action: u64, conversion_site: &str) -> Value {
    json!({"event": "saveImpression", "site": "news.example", "userAction": action,
           "options": {"histogramIndex": 1, "conversionSites": [conversion_site]}})
}

fn measure(action: u64) -> Value {
    json!({"event": "measureConversion", "site": "shop.example", "userAction": action,
           "options": {"aggregationService": SERVICE, "histogramSize": 2, "epsilon": 0.1}})
}

/// Every call that a page can make, each with the line that answers it. A conversion is not
/// answered before its moment.
fn call_everything(serving: &mut Serving) -> Vec<String> {
    let options = json!({"aggregationService": SERVICE, "histogramSize": 2, "epsilon": 0.1});
    let create = json!({"event": "createSharedConversion", "site": "shop.example",
                        "userAction": 12, "participants": ["ads.example"], "options": options});
    let handle = format!("{:032x}", 7);
    let share = json!({"event": "takeShare", "site": "shop.example", "userAction": 12,
                       "intermediarySite": "ads.example", "shared": handle, "options": options});
    let mut answers = vec![serving.ask(&save(10, "other.example"))];
    for request in [measure(11), create, share] {
        let asked = Instant::now();
        answers.push(serving.ask(&request));
        assert!(asked.elapsed() >= DELAY);
    }
    answers
}

/// If the store fails, each page gets the answer that it would get from a device that holds
/// nothing, byte for byte and not before its moment. The user can see the failure, and nothing is
/// charged.
#[test]
fn a_page_does_not_learn_that_the_disk_failed() {
    let _turn = TURN.lock();
    recorder::install();

    let healthy = folder();
    let mut serving = Serving::start(&healthy.file("store"));
    let expected = call_everything(&mut serving);
    assert_eq!(serving.ask_own("status")["storeErrors"], 0);
    serving.end();

    let failing = folder();
    let path = failing.file("store");
    let mut serving = Serving::start(&path);
    serving.ask(&save(1, "shop.example"));
    // Requests of the user wait for what pages asked before.
    let before = serving.ask_own("budgets")["budgets"].clone();
    recorder::fail_after(path.parent().unwrap(), 0, ffi::SQLITE_IOERR_WRITE);
    let answers = call_everything(&mut serving);
    let status = serving.ask_own("status");
    recorder::stop();
    assert_eq!(answers, expected);
    assert_eq!(status["storeErrors"], 4, "{status}");
    assert!(status["lastStoreError"].is_string(), "{status}");
    assert_eq!(serving.ask_own("budgets")["budgets"], before);
    // The disk has recovered, and the impression is still there.
    let answer: Value = serde_json::from_str(&serving.ask(&measure(20))).unwrap();
    assert_eq!(answer["histogram"], json!([0, 1]));
    serving.end();
}
