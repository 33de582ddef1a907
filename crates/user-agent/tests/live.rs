//! A stream that is served as a browser needs it: on a wall clock, by threads.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter, Write as _, pipe};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bigbird::{Profile, Timestamp};
use bigbird_user_agent::protocol::{Arrivals, Player, Serving, StreamClock, serve};
use bigbird_user_agent::{Config, Memory, MemoryTransaction, Storage, UserAgent};
use common::{Half, SERVICE};
use serde_json::{Value, json};

const DELAY: Duration = Duration::from_millis(50);
const MANY: Arrivals = Arrivals {
    of_site: 1000,
    of_all: 1000,
};

/// A store that can be held up.
#[derive(Debug)]
struct Gated {
    memory: Memory,
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
    server: JoinHandle<Memory>,
}

impl Session {
    fn start(limits: Arrivals) -> Self {
        let mut config = Config::new(Profile::BigBird)
            .with_service(SERVICE)
            .for_testing();
        config.pace.delay = DELAY;
        config.pace.conversions = limits;
        config.pace.impressions = limits;
        let open = Arc::new((Mutex::new(true), Condvar::new()));
        let gated = Gated {
            memory: Memory::new(),
            open: Arc::clone(&open),
        };
        let (theirs, input) = pipe().unwrap();
        let (output, ours) = pipe().unwrap();
        let server = thread::spawn(move || {
            let Ok(agent) = UserAgent::new(config, gated, Half, Timestamp(0));
            let serving = Serving {
                clock: StreamClock::Wall(|| Timestamp(1_700_000_000_000)),
                warn: |told| panic!("{told}"),
                handle: || 7,
            };
            let player = Player::new(agent, None);
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

    /// Nothing more is asked; gives what is still answered.
    fn end(mut self) -> Vec<Value> {
        self.input = None;
        let lines = self.output.lines();
        let answers = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap());
        let answers = answers.collect();
        self.server.join().unwrap();
        answers
    }

    /// Nothing more is asked; gives what is stored.
    fn finish(mut self) -> Memory {
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

/// What came before the input ended is answered, each at its moment.
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

/// A store that is held up holds up no answer: the conversion is answered null at its moment, done and
/// charged afterwards, and counted.
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
    // The page of an impression does not wait either.
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

/// Over the limit of its site a conversion is answered null at its moment, an impression as any other, and
/// nothing is read, stored or charged for them.
#[test]
fn arrivals_over_the_limit_touch_nothing() {
    let none = Arrivals {
        of_site: 0,
        of_all: 10,
    };
    let mut session = Session::start(none);
    session.send(&save(1));
    assert_eq!(session.receive(), json!({"ok": true, "id": 1}));
    // Whatever the store does.
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
    assert_eq!(session.receive()["missed"], 0, "it was not taken");
    assert!(session.end().is_empty());
}

/// A site that asks to be forgotten more often than is taken is forgotten all the same, a delay later.
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
    // Its one arrival is used up, unless the machine has slept for all of the delay.
    session.send(&forget);
    assert_eq!(session.receive(), json!({"ok": true, "id": 2}));
    // What was put off is done before the end.
    session.send(&json!({"event": "status", "id": 3}));
    session.receive();
    let stored = session.finish();
    assert_eq!(stored.impressions().len(), 0);
}
