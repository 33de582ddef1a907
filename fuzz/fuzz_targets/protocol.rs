//! Property: whatever lines come, the agent answers as `docs/agent.md` says.
//!
//! * No line makes it panic. Each line that is not empty gets exactly one answer, which is a line
//!   of JSON and repeats the `id`.
//! * No filter holds more than its capacity. What was charged stays charged, also under other
//!   rules: a filter never holds less than before, and one that was forgotten never comes back.
//! * A histogram has as many buckets as were asked for, and holds at most the value of the
//!   conversion.
//! * `explain` says what the conversion gives, and neither it nor `budgets` changes any other
//!   answer.
//!
//! Input that begins with `{` is taken as lines. Any other input becomes requests that are mostly
//! valid, with a few bytes damaged. They are served on a store in memory, in the time that they
//! name themselves; now and then on a clock, where answers come from other threads, and only the
//! first two properties are checked.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Cursor, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use bigbird::{Profile, StoreLimits, Timestamp};
use bigbird_fuzz::{damage, one_in};
use bigbird_testing::FixedRandomness;
use bigbird_user_agent::protocol::{Line, LineRequest, Player, ServeOptions, StreamClock, serve};
use bigbird_user_agent::{Config, MemoryStore, UserAgent};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};

fuzz_target!(|bytes: &[u8]| {
    if bytes.starts_with(b"{") {
        let lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec);
        let config = config(Profile::BigBird);
        return in_order(&[ProtocolSession {
            config,
            lines: lines.take(MOST_LINES).collect(),
        }]);
    }
    // Input that ends early is a shorter conversation.
    let _ = converse(&mut Unstructured::new(bytes));
});

const MOST_LINES: usize = 80;
const SERVICE: &str = "https://agg.example";

/// Lines that are served under some rules.
struct ProtocolSession {
    config: Config,
    lines: Vec<Vec<u8>>,
}

fn converse(source: &mut Unstructured<'_>) -> Result<()> {
    if one_in(source, 16)? {
        on_a_clock(&session(source, None)?);
        return Ok(());
    }
    if one_in(source, 255)? {
        // About as long as a line may be. That is slow, so nothing else comes with it.
        let config = config(Profile::BigBird);
        let length = Line::longest(&config.limits) - 2 + source.int_in_range(0..=4)?;
        let mut long = br#"{"event": "status", "id": 1}"#.to_vec();
        let next = long.clone();
        long.resize(length, b' ');
        in_order(&[ProtocolSession {
            config,
            lines: vec![long, next],
        }]);
        return Ok(());
    }
    let mut sessions = vec![session(source, Some(0))?];
    // The agent is started again, perhaps with other rules.
    if one_in(source, 4)? {
        sessions.push(session(source, Some(1_000_000))?);
    }
    in_order(&sessions);
    Ok(())
}

fn config(profile: Profile) -> Config {
    Config::new(profile).with_service(SERVICE).for_testing()
}

/// Serves lines in their own time, and checks everything.
fn in_order(sessions: &[ProtocolSession]) {
    let (mut memory, mut quiet_memory) = (MemoryStore::new(), MemoryStore::new());
    let mut ledger = ChargedLedger::default();
    for ProtocolSession { config, lines } in sessions {
        let probe = br#"{"event": "budgets", "id": "probe"}"#.to_vec();
        let probed = lines.iter().flat_map(|line| [line.clone(), probe.clone()]);
        let probed: Vec<Vec<u8>> = probed.collect();
        let answers;
        (answers, memory) = play(config, memory, &probed, StreamClock::Requests);
        let expected = probed.iter().filter_map(|line| expected_id(line, config));
        let ids = answers.iter().map(|answer| answer.get("id").cloned());
        assert!(ids.eq(expected), "the answers are not those of the lines");

        let mut answers = answers.into_iter();
        let mut to_lines: Vec<Option<Value>> = Vec::new();
        for line in lines {
            let answer = expected_id(line, config).and_then(|_| answers.next());
            if let Some(answer) = &answer {
                check_histogram(line, answer);
            }
            to_lines.push(answer);
            ledger.observe(&answers.next().expect("an answer to every probe"));
        }
        check_explanations(lines, &to_lines);

        // Without those that only look.
        let quiet: Vec<Vec<u8>> = lines
            .iter()
            .map(|line| without_look(line, config))
            .collect();
        let quiet_answers;
        (quiet_answers, quiet_memory) = play(config, quiet_memory, &quiet, StreamClock::Requests);
        let mut quiet_answers = quiet_answers.into_iter();
        for ((line, quiet), answer) in lines.iter().zip(&quiet).zip(to_lines) {
            if let Some(answer) = answer {
                let quiet_answer = quiet_answers.next();
                if line == quiet {
                    assert_eq!(Some(answer), quiet_answer, "looking changed it");
                }
            }
        }
    }
}

/// Serves lines on a clock, where answers come when they are ready.
fn on_a_clock(ProtocolSession { config, lines }: &ProtocolSession) {
    let mut config = config.clone();
    config.pace.delay = Duration::from_millis(1);
    let clock = StreamClock::Wall(|| Timestamp(1_000_000_000_000));
    let (answers, memory) = play(&config, MemoryStore::new(), lines, clock);
    let text = |id: Option<Value>| id.map(|id| id.to_string());
    let expected = lines.iter().filter_map(|line| expected_id(line, &config));
    let mut expected: Vec<_> = expected.map(text).collect();
    let ids = answers.iter().map(|answer| answer.get("id").cloned());
    let mut ids: Vec<_> = ids.map(text).collect();
    expected.sort();
    ids.sort();
    assert_eq!(ids, expected, "the answers are not those of the lines");
    let probe = [br#"{"event": "budgets"}"#.to_vec()];
    let (budgets, _) = play(&config, memory, &probe, StreamClock::Requests);
    ChargedLedger::default().observe(&budgets[0]);
}

/// Serves lines, and gives the answers.
fn play(
    config: &Config,
    memory: MemoryStore,
    lines: &[Vec<u8>],
    clock: StreamClock,
) -> (Vec<Value>, MemoryStore) {
    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);
    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let mut output = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            output.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let Ok(agent) = UserAgent::new(config.clone(), memory, FixedRandomness, Timestamp(i64::MIN));
    let serving = ServeOptions {
        clock,
        warn: |told| panic!("a store in memory failed: {told}"),
        handle: || 7,
    };
    let mut input = lines.join(&b'\n');
    input.push(b'\n');
    let output = Output::default();
    let player = Player::new(agent, None);
    let player = serve(player, Cursor::new(input), output.clone(), serving);
    let player = player.expect("memory can be written");
    let output = std::mem::take(&mut *output.0.lock().unwrap_or_else(PoisonError::into_inner));
    let output = String::from_utf8(output).expect("answers are text");
    assert!(output.is_empty() || output.ends_with('\n'), "half a line");
    let answers = output.lines().map(|line| {
        let answer: Value = serde_json::from_str(line).expect("an answer is JSON");
        check_form(&answer);
        answer
    });
    (answers.collect(), player.agent.into_storage())
}

/// The `id` that the answer to a line must have; nothing if the line gets no answer.
fn expected_id(line: &[u8], config: &Config) -> Option<Option<Value>> {
    if line.len() > Line::longest(&config.limits) {
        return Some(None);
    }
    let Ok(text) = std::str::from_utf8(line) else {
        return Some(None);
    };
    if text.trim().is_empty() {
        return None;
    }
    let id = match serde_json::from_str(text) {
        Ok(Value::Object(mut fields)) => fields.remove("id"),
        _ => None,
    };
    Some(id.filter(|id| id.to_string().len() <= 256))
}

fn check_form(answer: &Value) {
    let text = |name: &str| answer[name].as_str();
    match answer["ok"].as_bool() {
        Some(true) => assert_eq!(answer.get("error"), None, "{answer}"),
        Some(false) => {
            assert!(text("message").is_some(), "{answer}");
            match text("error") {
                Some("RangeError" | "ReferenceError" | "MalformedRequest") => {}
                Some("DOMException") => assert_eq!(text("name"), Some("SyntaxError"), "{answer}"),
                _ => panic!("not an error that docs/agent.md has: {answer}"),
            }
        }
        None => panic!("an answer says whether it is ok: {answer}"),
    }
}

fn check_histogram(line: &[u8], answer: &Value) {
    let Some(histogram) = answer["histogram"].as_array() else {
        return;
    };
    let request: Value = serde_json::from_slice(line).expect("it was understood");
    let options = &request["options"];
    let size = options["histogramSize"].as_u64();
    assert_eq!(Some(histogram.len() as u64), size, "{answer}");
    let total: u64 = histogram.iter().filter_map(Value::as_u64).sum();
    let value = options["value"].as_u64().unwrap_or(1);
    assert!(total <= value, "{total} of {value}");
}

/// What a conversion is said to give is what it gives, if nothing comes between.
fn check_explanations(lines: &[Vec<u8>], answers: &[Option<Value>]) {
    for (line, answer) in lines.windows(2).zip(answers.windows(2)) {
        let (Some(explained), Some(answer)) = (&answer[0], &answer[1]) else {
            continue;
        };
        let Some(told) = explained["explanation"].get("histogram") else {
            continue;
        };
        let request = |line: &[u8]| -> Option<Map<String, Value>> {
            let mut fields: Map<String, Value> = serde_json::from_slice(line).ok()?;
            fields.retain(|name, _| !["event", "id", "seconds"].contains(&name.as_str()));
            Some(fields)
        };
        let measures = serde_json::from_slice::<Value>(&line[1]).is_ok_and(|it| {
            let event = it["event"].as_str();
            let is_explained_as = match it.get("shared") {
                Some(_) => "takeShare",
                None => "measureConversion",
            };
            it.get("seconds").is_none() && event == Some(is_explained_as)
        });
        // A line that is too long is not a request.
        let is_short = line[1].len() < 10_000;
        if measures && is_short && request(&line[0]) == request(&line[1]) {
            let given = answer.get("histogram");
            assert_eq!(Some(told), given, "{explained}, then {answer}");
        }
    }
}

/// The same line, or one at the same moment that does even less.
fn without_look(line: &[u8], config: &Config) -> Vec<u8> {
    let text = std::str::from_utf8(line).ok();
    let parsed = text.and_then(|text| Line::parse(text, &config.limits).ok());
    match parsed {
        Some(Line {
            seconds,
            asked: LineRequest::Explain(_) | LineRequest::Budgets(_),
            ..
        }) => {
            let mut status = json!({"event": "status"});
            if let Some(seconds) = seconds {
                status["seconds"] = json!(seconds);
            }
            status.to_string().into_bytes()
        }
        _ => line.to_vec(),
    }
}

/// What `budgets` said so far.
#[derive(Default)]
struct ChargedLedger {
    /// What each filter holds, and its capacity.
    known: BTreeMap<String, (u64, Option<u64>)>,
    forgotten: BTreeSet<String>,
}

impl ChargedLedger {
    fn observe(&mut self, answer: &Value) {
        let budgets = answer["budgets"].as_array().expect("budgets");
        if answer.get("next").is_some() {
            // Only a part of them.
            return;
        }
        let mut now = BTreeMap::new();
        for budget in budgets {
            let names = ["epoch", "filter", "site", "userAction"];
            let key = names.map(|name| budget[name].to_string()).join(" ");
            let consumed = budget["consumed"].as_u64().expect("whole µε");
            let capacity = budget["capacity"].as_u64();
            assert!(capacity.is_none_or(|most| consumed <= most), "{budget}");
            assert!(!self.forgotten.contains(&key), "came back: {budget}");
            if let Some((before, of)) = self.known.get(&key) {
                assert!(consumed >= *before, "held {before}: {budget}");
                assert_eq!(capacity, *of, "{budget}");
            }
            assert_eq!(now.insert(key, (consumed, capacity)), None, "{budget}");
        }
        let before = std::mem::replace(&mut self.known, now);
        let gone = before
            .into_keys()
            .filter(|key| !self.known.contains_key(key));
        self.forgotten.extend(gone);
    }
}

fn session(source: &mut Unstructured<'_>, begin: Option<i64>) -> Result<ProtocolSession> {
    let mut config = config(*source.choose(&Profile::ALL)?);
    if one_in(source, 4)? {
        // Little room, so that things are evicted.
        config.max_shared_conversions = source.int_in_range(1..=3)?;
        config.store_limits = StoreLimits {
            units_per_epoch: source.int_in_range(1..=8_u32)?.try_into().expect("not 0"),
        };
    }
    if one_in(source, 4)? {
        let epsilon = f64::from(source.int_in_range(0..=4_000_u16)?) / 1e3;
        let kinds = bigbird::FilterKind::ALL;
        let policy = config.policy.to_builder();
        let policy = policy.capacity(*source.choose(&kinds)?, epsilon).build();
        config.policy = policy.expect("any capacity is valid");
    }
    if one_in(source, 4)? {
        config.epoch_days = *source.choose(&[1, 3, 30, 400])?;
    }
    let mut talk = Talk {
        now: begin,
        lines: Vec::new(),
    };
    while !source.is_empty() && talk.lines.len() < MOST_LINES {
        talk.say(source)?;
        // The next session.
        if begin.is_some() && one_in(source, 32)? {
            break;
        }
    }
    let lines = talk.lines;
    Ok(ProtocolSession { config, lines })
}

/// Requests, one after the other.
struct Talk {
    /// The time in seconds, if requests say it.
    now: Option<i64>,
    lines: Vec<Vec<u8>>,
}

impl Talk {
    fn say(&mut self, source: &mut Unstructured<'_>) -> Result<()> {
        let mut request = self.request(source)?;
        if one_in(source, 6)? {
            let mut explained = request.clone();
            explained.insert("event".to_owned(), json!("explain"));
            self.lines.push(json!(explained).to_string().into_bytes());
            request.remove("seconds");
        }
        let mut line = json!(request).to_string().into_bytes();
        if one_in(source, 12)? {
            damage(source, &mut line, 8)?;
        }
        // As long as a line of some events may be.
        if one_in(source, 64)? {
            let length = 4094 + source.int_in_range(0..=4)?;
            line.resize(length.max(line.len()), b' ');
        }
        // A line is a line.
        for byte in &mut line {
            if *byte == b'\n' {
                *byte = b'\r';
            }
        }
        self.lines.push(line);
        Ok(())
    }

    fn request(&mut self, source: &mut Unstructured<'_>) -> Result<Map<String, Value>> {
        let mut request = Map::new();
        let event = match source.int_in_range(0..=31)? {
            0..=7 => "saveImpression",
            8..=15 => "measureConversion",
            16..=18 => "createSharedConversion",
            19..=22 => "takeShare",
            23 => "explain",
            24 => "clearImpressionsForSite",
            25 => "clearBrowsingHistoryForAttribution",
            26 => "budgets",
            27 => "status",
            28 => "maintain",
            29 => "restartEpochs",
            30 => "disableAPI",
            _ => "enableAPI",
        };
        let mut fields = Fields {
            source,
            of: &mut request,
        };
        fields.put("event", |_| Ok(json!(event)))?;
        if matches!(
            event,
            "saveImpression"
                | "measureConversion"
                | "createSharedConversion"
                | "takeShare"
                | "explain"
        ) {
            fields.put("site", host)?;
            fields.maybe(3, "intermediarySite", host)?;
            fields.maybe(2, "userAction", |source| number(source, 9))?;
            if event != "saveImpression" {
                let queriers = ["conversionSite", "intermediary"];
                fields.maybe(4, "querier", |it| Ok(json!(it.choose(&queriers)?)))?;
            }
            fields.put("options", |source| match event {
                "saveImpression" => impression(source),
                _ => conversion(source),
            })?;
        }
        match event {
            "createSharedConversion" => fields.put("participants", hosts)?,
            "takeShare" => fields.put("shared", handle)?,
            "clearImpressionsForSite" => fields.put("site", host)?,
            "clearBrowsingHistoryForAttribution" => {
                fields.put("sites", hosts)?;
                fields.put("forgetVisits", |it| Ok(json!(it.arbitrary::<bool>()?)))?;
            }
            "explain" => {
                fields.maybe(4, "participants", hosts)?;
                fields.maybe(4, "shared", handle)?;
            }
            "budgets" => fields.maybe(4, "behind", |source| {
                let places = [number(source, 4)?, number(source, 4)?, number(source, 4)?];
                Ok(json!(places))
            })?,
            _ => {}
        }
        fields.maybe(3, "id", |source| match one_in(source, 8)? {
            true => Ok(json!("i".repeat(source.int_in_range(0..=300)?))),
            false => number(source, 200),
        })?;
        if let Some(now) = &mut self.now {
            let day = 86_400;
            let step = match source.int_in_range(0..=22)? {
                0..=9 => 1,
                10..=13 => 3_600,
                14..=17 => day,
                18..=19 => 7 * day,
                20 => 40 * day,
                21 => -source.int_in_range(0..=20)? * day,
                _ => source.int_in_range(-1_000_000..=1_000_000)?,
            };
            *now = now.saturating_add(step);
            // A clock may be far off for one request.
            let now = match one_in(source, 64)? {
                true => *source.choose(&[i64::MIN, i64::MIN / 1000, i64::MAX / 1000, i64::MAX])?,
                false => *now,
            };
            Fields {
                source,
                of: &mut request,
            }
            .put("seconds", |_| Ok(json!(now)))?;
        }
        Ok(request)
    }
}

/// The fields of a request, of which a few are wrong.
struct Fields<'f, 's> {
    source: &'f mut Unstructured<'s>,
    of: &'f mut Map<String, Value>,
}

impl<'s> Fields<'_, 's> {
    fn put(
        &mut self,
        name: &str,
        value: impl FnOnce(&mut Unstructured<'s>) -> Result<Value>,
    ) -> Result<()> {
        let value = match self.source.int_in_range(0..=63)? {
            63 => return Ok(()),
            62 => anything(self.source)?,
            _ => value(self.source)?,
        };
        self.of.insert(name.to_owned(), value);
        Ok(())
    }

    fn maybe(
        &mut self,
        n: u8,
        name: &str,
        value: impl FnOnce(&mut Unstructured<'s>) -> Result<Value>,
    ) -> Result<()> {
        match one_in(self.source, n)? {
            true => self.put(name, value),
            false => Ok(()),
        }
    }
}

fn impression(source: &mut Unstructured<'_>) -> Result<Value> {
    let mut options = Map::new();
    let of = &mut options;
    let mut fields = Fields { source, of };
    fields.put("histogramIndex", |source| number(source, 4))?;
    fields.maybe(3, "matchValue", |source| number(source, 3))?;
    fields.maybe(4, "conversionSites", hosts)?;
    fields.maybe(4, "conversionCallers", hosts)?;
    fields.maybe(4, "lifetimeDays", |source| number(source, 40))?;
    fields.maybe(4, "priority", |source| number(source, 3))?;
    Ok(json!(options))
}

fn conversion(source: &mut Unstructured<'_>) -> Result<Value> {
    let mut options = Map::new();
    let of = &mut options;
    let mut fields = Fields { source, of };
    fields.put("aggregationService", |_| Ok(json!(SERVICE)))?;
    fields.put("histogramSize", |source| number(source, 5))?;
    fields.maybe(2, "epsilon", |source| {
        Ok(json!(f64::from(source.arbitrary::<u16>()?) / 1e4))
    })?;
    fields.maybe(3, "lookbackDays", |source| number(source, 40))?;
    fields.maybe(4, "matchValues", |source| {
        Ok(json!([number(source, 3)?, number(source, 3)?]))
    })?;
    fields.maybe(4, "impressionSites", hosts)?;
    fields.maybe(4, "impressionCallers", hosts)?;
    fields.maybe(4, "credit", |source| {
        let mut credit = Vec::new();
        for _ in 0..source.int_in_range(0..=5)? {
            credit.push(f64::from(source.arbitrary::<u8>()?) / 100.0);
        }
        Ok(json!(credit))
    })?;
    fields.maybe(3, "value", |source| number(source, 10))?;
    fields.maybe(2, "maxValue", |source| number(source, 10))?;
    Ok(json!(options))
}

fn host(source: &mut Unstructured<'_>) -> Result<Value> {
    let usual = [
        "news.example",
        "shop.example",
        "ads.example",
        "blog.example",
    ];
    Ok(match source.int_in_range(0..=15)? {
        14 => {
            let unusual = [
                "www.shop.example",
                "NEWS.example.",
                "bücher.example",
                "someone.github.io",
                "localhost",
                "127.0.0.1",
                "com",
                "",
            ];
            json!(source.choose(&unusual)?)
        }
        15 => json!(source.arbitrary::<&str>()?),
        number => json!(usual[number % usual.len()]),
    })
}

fn hosts(source: &mut Unstructured<'_>) -> Result<Value> {
    let most = match one_in(source, 16)? {
        true => 70,
        false => 3,
    };
    let count = source.int_in_range(0..=most)?;
    let hosts: Result<Vec<Value>> = (0..count).map(|_| host(source)).collect();
    Ok(json!(hosts?))
}

/// Handles are running numbers here.
fn handle(source: &mut Unstructured<'_>) -> Result<Value> {
    Ok(json!(format!("{:032x}", source.int_in_range(0..=6)?)))
}

/// A small number, or one at the end of a range.
fn number(source: &mut Unstructured<'_>, most: u64) -> Result<Value> {
    if !one_in(source, 24)? {
        return Ok(json!(source.int_in_range(0..=most)?));
    }
    let numbers = [
        json!(-1),
        json!(i32::MAX),
        json!(u32::MAX),
        json!(1_u64 << 32),
        json!((1_u64 << 48) - 1),
        json!(1_u64 << 48),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(0.5),
        json!(1e300),
        json!(-0.0),
    ];
    Ok(source.choose(&numbers)?.clone())
}

fn anything(source: &mut Unstructured<'_>) -> Result<Value> {
    Ok(match source.int_in_range(0..=6)? {
        0 => Value::Null,
        1 => json!(source.arbitrary::<bool>()?),
        2 => json!({}),
        3 => json!([]),
        4 => number(source, 100)?,
        5 => {
            let depth = source.int_in_range(1..=120)?;
            (0..depth).fold(json!(1), |inner, _| json!([inner]))
        }
        _ => json!(source.arbitrary::<&str>()?),
    })
}
