//! Serving a stream as a browser needs: with threads and on a wall clock.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter, Write as _, pipe};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bigbird::{Profile, Timestamp};
use bigbird_user_agent::protocol::{Arrivals, Pace, Player, ServeOptions, StreamClock, serve};
use bigbird_user_agent::{
    Config, MemoryStore, MemoryTransaction, Report, Seal, Storage, UserAgent, Withhold,
};
use common::{FixedRandomness, SERVICE};
use serde_json::{Value, json};

const DELAY: Duration = Duration::from_millis(50);
const MANY: Arrivals = Arrivals {
    of_site: 1000,
    of_all: 1000,
};

/// A store that can be made to wait.
#[derive(Debug)]
struct Gated {
    memory: MemoryStore,
    open: Arc<(Mutex<bool>, Condvar)>,
}

impl Storage for Gated {
    type Error = std::convert::Infallible;
    type Transaction<'t> = MemoryTransaction<'t>;

    fn begin(&mut self) -> Result<MemoryTransaction<'_>, Self::Error> {
        let (open, changed) = &*self.open;
        let mut open = open.lock().unwrap();
        while !*open {
            open = changed.wait(open).unwrap();
        }
        self.memory.begin()
    }
}

struct Session {
    input: Option<PipeWriter>,
    output: BufReader<PipeReader>,
    open: Arc<(Mutex<bool>, Condvar)>,
    server: JoinHandle<MemoryStore>,
}

impl Session {
    fn start(limits: Arrivals) -> Self {
        Self::sealing(limits, Pace::default().sealing_of_site, Withhold)
    }

    /// A session with a limit on sealing, and a sealer.
    fn sealing(
        limits: Arrivals,
        sealing_of_site: u32,
        sealer: impl Seal + Send + Sync + 'static,
    ) -> Self {
        let mut config = Config::new(Profile::BigBird)
            .with_service(SERVICE)
            .for_testing();
        config.pace.delay = DELAY;
        config.pace.conversions = limits;
        config.pace.impressions = limits;
        config.pace.sealing_of_site = sealing_of_site;
        let open = Arc::new((Mutex::new(true), Condvar::new()));
        let gated = Gated {
            memory: MemoryStore::new(),
            open: Arc::clone(&open),
        };
        let (theirs, input) = pipe().unwrap();
        let (output, ours) = pipe().unwrap();
        let server = thread::spawn(move || {
            let Ok(agent) = UserAgent::new(config, gated, FixedRandomness, Timestamp(0));
            let serving = ServeOptions {
                clock: StreamClock::Wall(|| Timestamp(1_700_000_000_000)),
                warn: |told| panic!("{told}"),
                handle: || 7,
            };
            let player = Player::new(agent.sealing(sealer), None);
            let player = serve(player, BufReader::new(theirs), ours, serving).unwrap();
            player.agent.into_storage().memory
        });
        Self {
            input: Some(input),
            output: BufReader::new(output),
            open,
            server,
        }
    }

    fn send(&mut self, request: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{request}").unwrap();
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn let_through(&self, open: bool) {
        *self.open.0.lock().unwrap() = open;
        self.open.1.notify_all();
    }

    /// Ends the input and returns the remaining answers.
    fn end(mut self) -> Vec<Value> {
        self.input = None;
        let lines = self.output.lines();
        let answers = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap());
        let answers = answers.collect();
        self.server.join().unwrap();
        answers
    }

    /// Ends the input and returns the store.
    fn finish(mut self) -> MemoryStore {
        self.input = None;
        let answers = self.output.lines();
        answers.for_each(|line| {
            line.unwrap();
        });
        self.server.join().unwrap()
    }
}

fn save(id: u64) -> Value {
    json!({"event": "saveImpression", "id": id, "site": "news.example", "userAction": id,
           "options": {"histogramIndex": 1}})
}

fn measure(id: u64) -> Value {
    json!({"event": "measureConversion", "id": id, "site": "shop.example", "userAction": 1000 + id,
           "options": {"aggregationService": SERVICE, "histogramSize": 2, "epsilon": 0.1}})
}

#[test]
fn answers_are_matched_by_id_and_nobody_waits_for_a_conversion() {
    let mut session = Session::start(MANY);
    session.send(&save(1));
    assert_eq!(session.receive(), json!({"ok": true, "id": 1}));
    let begin = Instant::now();
    session.send(&measure(2));
    session.send(&save(3));
    session.send(&json!({"event": "status", "id": 4}));
    session.send(&json!({"event": "nonsense", "id": 5}));
    let mut answers: Vec<Value> = (0..4).map(|_| session.receive()).collect();
    let at = answers.iter().position(|answer| answer["id"] == 2).unwrap();
    let conversion = answers.remove(at);
    assert!(begin.elapsed() >= DELAY);
    assert_eq!(
        conversion,
        json!({"ok": true, "id": 2, "histogram": [0, 1]})
    );
    let ids: Vec<_> = answers
        .iter()
        .map(|it| it["id"].as_u64().unwrap())
        .collect();
    assert!(
        ids.contains(&3) && ids.contains(&4) && ids.contains(&5),
        "{ids:?}"
    );
    assert!(session.end().is_empty());
}

/// Every request that came before the end of the input is answered, each conversion at its moment.
#[test]
fn the_end_of_the_input_loses_no_answer() {
    let mut session = Session::start(MANY);
    session.send(&save(1));
    let begin = Instant::now();
    for id in 2..6 {
        session.send(&measure(id));
    }
    let answers = session.end();
    assert!(begin.elapsed() >= DELAY);
    let ids: Vec<_> = answers
        .iter()
        .map(|it| it["id"].as_u64().unwrap())
        .collect();
    assert_eq!(ids, [1, 2, 3, 4, 5]);
}

/// A store that is stuck does not delay an answer. The conversion is answered null at its moment,
/// is carried out and charged afterwards, and is counted as missed.
#[test]
fn a_conversion_that_is_not_ready_is_answered_null_and_charged() {
    let mut session = Session::start(MANY);
    session.send(&save(1));
    session.receive();
    session.send(&json!({"event": "budgets", "id": 2}));
    session.receive();
    session.let_through(false);
    session.send(&measure(3));
    assert_eq!(
        session.receive(),
        json!({"ok": true, "id": 3, "histogram": [0, 0]})
    );
    // A page that saves an impression does not wait either.
    session.send(&save(4));
    assert_eq!(session.receive(), json!({"ok": true, "id": 4}));
    session.let_through(true);
    session.send(&json!({"event": "status", "id": 5}));
    let status = session.receive();
    assert_eq!((&status["id"], &status["missed"]), (&json!(5), &json!(1)));
    session.send(&json!({"event": "budgets", "id": 6}));
    let budgets = session.receive();
    assert!(
        !budgets["budgets"].as_array().unwrap().is_empty(),
        "{budgets}"
    );
    assert!(session.end().is_empty());
}

/// A conversion over the limit of its site is answered null at its moment. An impression over the
/// limit is answered like any other. Nothing is read, stored or charged for them.
#[test]
fn arrivals_over_the_limit_touch_nothing() {
    let none = Arrivals {
        of_site: 0,
        of_all: 10,
    };
    let mut session = Session::start(none);
    session.send(&save(1));
    assert_eq!(session.receive(), json!({"ok": true, "id": 1}));
    // The answer comes even while the store is stuck.
    session.let_through(false);
    let begin = Instant::now();
    session.send(&measure(2));
    assert_eq!(
        session.receive(),
        json!({"ok": true, "id": 2, "histogram": [0, 0]})
    );
    assert!(begin.elapsed() >= DELAY);
    session.let_through(true);
    session.send(&json!({"event": "budgets", "id": 3}));
    let budgets = session.receive();
    assert_eq!(
        (&budgets["budgets"], &budgets["rules"]),
        (&json!([]), &json!([]))
    );
    session.send(&json!({"event": "status", "id": 4}));
    assert_eq!(
        session.receive()["missed"],
        0,
        "the conversion was not taken"
    );
    session.send(&json!({"event": "status", "id": 5}));
    assert_eq!(session.receive()["overLimit"], 2);
    session.send(&json!({"event": "history", "id": 6}));
    assert_eq!(session.receive()["history"], json!([]));
    assert!(session.end().is_empty());
}

/// Calls from private windows are answered like any other, at their moment. They do not wait for
/// the store, leave nothing in it, and take nothing from the limits of calls that are not private.
#[test]
fn private_calls_are_answered_and_leave_nothing() {
    let one = Arrivals {
        of_site: 1,
        of_all: 10,
    };
    let private = |mut request: Value| {
        request["private"] = json!(true);
        request
    };
    let mut session = Session::start(one);
    session.send(&private(save(1)));
    assert_eq!(session.receive(), json!({"ok": true, "id": 1}));
    session.let_through(false);
    let begin = Instant::now();
    for id in 2..5 {
        session.send(&private(measure(id)));
    }
    for id in 2..5 {
        let null = json!({"ok": true, "id": id, "histogram": [0, 0]});
        assert_eq!(session.receive(), null);
        assert!(begin.elapsed() >= DELAY);
    }
    session.let_through(true);
    let mut wrong = private(measure(5));
    wrong["options"]["epsilon"] = json!(-1);
    session.send(&wrong);
    assert_eq!(session.receive()["error"], "RangeError");
    session.send(&json!({"event": "status", "id": 6}));
    let status = session.receive();
    // Any other valid call would have begun epochs.
    assert_eq!(status["epoch"], Value::Null);
    assert_eq!(
        (&status["missed"], &status["overLimit"]),
        (&json!(0), &json!(0))
    );
    // The limit of one call a delay is whole: an impression and a conversion are taken.
    session.send(&save(7));
    assert_eq!(session.receive()["id"], 7);
    session.send(&measure(8));
    assert_eq!(session.receive()["histogram"], json!([0, 1]));
    session.send(&json!({"event": "history", "id": 9}));
    let history = session.receive();
    assert_eq!(history["history"].as_array().map(Vec::len), Some(2));
    assert!(session.end().is_empty());
}

/// A site that asks to be forgotten more often than its limit allows is still forgotten, one delay
/// later.
#[test]
fn asking_to_be_forgotten_too_often_is_put_off_and_done() {
    let one = Arrivals {
        of_site: 1,
        of_all: 10,
    };
    let mut session = Session::start(one);
    session.send(&save(1));
    session.receive();
    let forget = json!({"event": "clearImpressionsForSite", "site": "news.example", "id": 2});
    // The site's only arrival is used up, unless the machine has slept for the whole delay.
    session.send(&forget);
    assert_eq!(session.receive(), json!({"ok": true, "id": 2}));
    // Work that was put off is done before the stream ends.
    session.send(&json!({"event": "status", "id": 3}));
    session.receive();
    let stored = session.finish();
    assert_eq!(stored.impressions().len(), 0);
}

/// A sealer that says what it would seal.
#[derive(Debug)]
struct Telling;

impl Seal for Telling {
    fn seal(&self, report: &Report<'_>) -> Vec<u8> {
        format!("{} {:?}", report.caller, report.histogram.buckets()).into_bytes()
    }
}

/// Every conversion has a sealed report: one that was measured, one over a limit, and one that was
/// not ready.
#[test]
fn every_conversion_is_answered_with_a_sealed_report() {
    let few = Arrivals {
        of_site: 1,
        of_all: 2,
    };
    let base64 = |text: &str| match text {
        "shop.example [0, 1]" => "c2hvcC5leGFtcGxlIFswLCAxXQ==",
        "shop.example [0, 0]" => "c2hvcC5leGFtcGxlIFswLCAwXQ==",
        _ => panic!("{text}"),
    };
    let mut session = Session::sealing(few, u32::MAX, Telling);
    session.send(&save(1));
    session.receive();
    session.send(&measure(2));
    let expected = base64("shop.example [0, 1]");
    assert_eq!(session.receive()["report"], expected);
    // The store is stuck, so this one is not ready, if it is taken.
    session.let_through(false);
    let nothing = base64("shop.example [0, 0]");
    for id in 3..6 {
        session.send(&measure(id));
    }
    for _ in 3..6 {
        let answer = session.receive();
        assert_eq!(
            (&answer["ok"], &answer["report"]),
            (&json!(true), &json!(nothing))
        );
    }
    session.let_through(true);
    assert!(session.end().is_empty());
}

/// A site that asks for more reports than are made for one site is told so at once, even while the
/// store is stuck. Other sites notice nothing.
#[test]
fn a_site_that_floods_is_rejected_and_others_are_not() {
    let mut session = Session::sealing(MANY, 1000, Withhold);
    session.send(&save(1));
    session.receive();
    // Alone it is larger than the limit, whatever else the machine does.
    let large = |id: u64| {
        let mut request = measure(id);
        request["site"] = json!("flood.example");
        request["options"]["histogramSize"] = json!(1000);
        request
    };
    session.let_through(false);
    for id in 2..50 {
        session.send(&large(id));
        let answer = session.receive();
        assert_eq!(answer["id"], id);
        assert_eq!(
            (&answer["error"], &answer["name"]),
            (&json!("DOMException"), &json!("QuotaExceededError"))
        );
        assert_eq!(
            answer["message"],
            "QuotaExceededError: this site asked for too many reports; ask again in 50 ms"
        );
    }
    session.let_through(true);
    session.send(&measure(50));
    assert_eq!(
        session.receive(),
        json!({"ok": true, "id": 50, "histogram": [0, 1]})
    );
    assert!(session.end().is_empty());
}

/// A sealer that waits until it is let through.
#[derive(Debug, Clone, Default)]
struct Stuck(Arc<(Mutex<bool>, Condvar)>);

impl Seal for Stuck {
    fn seal(&self, _: &Report<'_>) -> Vec<u8> {
        let (open, changed) = &*self.0;
        let mut open = open.lock().unwrap();
        while !*open {
            open = changed.wait(open).unwrap();
        }
        vec![7]
    }
}

/// Reports that are not sealed in time make nobody else wait: they come late, and every one comes.
#[test]
fn a_stuck_sealer_delays_only_reports() {
    let stuck = Stuck::default();
    let mut session = Session::sealing(MANY, u32::MAX, stuck.clone());
    session.send(&save(1));
    session.receive();
    let begin = Instant::now();
    for id in 2..6 {
        session.send(&measure(id));
    }
    while begin.elapsed() < 3 * DELAY {
        thread::sleep(Duration::from_millis(1));
    }
    // They are overdue. Other requests are answered all the same.
    session.send(&save(6));
    assert_eq!(session.receive(), json!({"ok": true, "id": 6}));
    session.send(&json!({"event": "status", "id": 7}));
    let status = session.receive();
    assert_eq!((&status["id"], &status["missed"]), (&json!(7), &json!(4)));
    *stuck.0.0.lock().unwrap() = true;
    stuck.0.1.notify_all();
    let mut ids: Vec<u64> = session
        .end()
        .iter()
        .map(|answer| {
            assert_eq!(answer["report"], "Bw==");
            answer["id"].as_u64().unwrap()
        })
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, [2, 3, 4, 5]);
}

/// A sealer that panics.
#[derive(Debug)]
struct Panicking;

impl Seal for Panicking {
    fn seal(&self, _: &Report<'_>) -> Vec<u8> {
        panic!("no random numbers")
    }
}

/// A sealer that panics ends the stream with an error. Nobody waits for it.
#[test]
fn a_sealer_that_panics_ends_the_stream() {
    let mut config = Config::new(Profile::BigBird).with_service(SERVICE);
    config.pace.delay = DELAY;
    let (theirs, mut input) = pipe().unwrap();
    let (_output, ours) = pipe().unwrap();
    let agent = UserAgent::in_memory(config, FixedRandomness).sealing(Panicking);
    writeln!(input, "{}", measure(1)).unwrap();
    let serving = ServeOptions {
        clock: StreamClock::Wall(|| Timestamp(1_700_000_000_000)),
        warn: |_| {},
        handle: || 7,
    };
    // The input stays open.
    let served = serve(
        Player::new(agent, None),
        BufReader::new(theirs),
        ours,
        serving,
    );
    assert_eq!(
        served.map(|_| ()).unwrap_err().to_string(),
        "the thread that seals reports panicked"
    );
    drop(input);
}
