//! The bits that one site can send to another through the user agent:
//! `cargo bench -p bigbird-store --bench leak`.
//!
//! A sender knows who the user is, and encodes that as a 16-bit number: in what is stored, spent,
//! cleared or disabled. A receiver on another site, whose budgets are depleted, reads the number
//! bit by bit. It observes when its own conversion is answered, when the calls of other tabs are
//! answered, the order and the size of answers, and what a third site measures at the same time.
//!
//! A threshold is learned on half of the calls and tried on the other half, and the other way
//! around. A channel counts as 0 bits if guessing would make as few errors with a probability of
//! more than 1 in 1,000.
//!
//! * `-- --rounds 12` reads every bit more often (default 4).
//! * `-- --slot 200` sets the time between calls, in ms (default 70).
//! * `-- --variant 1` measures only the user agent as it is, and none of the broken variants.
#![allow(missing_docs, clippy::unwrap_used)]
#![allow(clippy::cast_precision_loss, reason = "small numbers")]

mod process;

use std::time::{Duration, Instant};

use bigbird::Timestamp;
use bigbird_testing::{Dice, Folder};
use bigbird_user_agent::{ConversionOptions, ImpressionOptions};
use process::agent::{AgentStep, SERVICE, Setup, Template, moments, serve, wall_clock};
use process::numbers::{bits, median};
use process::{Noted, Process, UNNOTED, argument, own, page};
use serde_json::{Value, json};

const BITS: u32 = 16;

/// The way in which the sender encodes a bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    /// Many impressions match in every epoch, or none.
    Stores,
    /// The quota of an impression site is depleted, or none of it is spent.
    Spends,
    /// Just before, a site is cleared that has many impressions, or one that has none.
    Clears,
    /// The API is disabled while the receiver measures, or enabled.
    Disables,
    /// As [`Stores`](Self::Stores), but all receivers read the same bit at once, each as often as
    /// its limit allows, so that the differences add up.
    Crowds,
}

const SENDERS: [Sender; 5] = [
    Sender::Stores,
    Sender::Spends,
    Sender::Clears,
    Sender::Disables,
    Sender::Crowds,
];

impl Sender {
    /// The time between calls of the receiver.
    fn slot(self) -> Duration {
        Duration::from_millis(match self {
            Self::Crowds => 2200,
            _ => argument("--slot", 70),
        })
    }
}

/// The observations of the receiver.
const CHANNELS: [&str; 7] = [
    "own time",
    "save time",
    "tab time",
    "own order",
    "tab order",
    "size",
    "third's sum",
];

/// The number that is sent. Half of its bits are ones, so that guessing is right half of the time.
const SECRET: u32 = 0b1011_0010_0110_1001;

/// The impressions per epoch for each bit that is one, and for all sites to be cleared together.
const STORED: u32 = 6000;
const TO_CLEAR: u32 = 40_000;
const SITES: u32 = 1500;

/// The number of sites in each role. They take turns, so that none exceeds its limit.
const TURNS: usize = 16;

/// The number of calls of each receiver for [`Sender::Crowds`]: as many as the limit allows.
/// Without limits, enough for the difference to exceed the delay. On disk, the usual limit of 4 is
/// enough for that.
fn crowd(setup: &Setup) -> usize {
    match (setup.pace.conversions.of_site, &setup.store) {
        (u32::MAX, None) => 250,
        (u32::MAX, Some(_)) => 4,
        (limit, _) => limit as usize,
    }
}

/// One call of the receiver.
#[derive(Debug, Clone, Copy)]
struct TimeSlot {
    sender: Sender,
    /// The index of the bit that is read.
    index: u32,
    bit: bool,
}

/// The calls of the receiver, in a random order that is the same in the parent and in the child.
fn plan() -> Vec<TimeSlot> {
    let mut dice = Dice(0x0b16_b12d);
    let mut slots = Vec::new();
    let rounds = argument("--rounds", 4);
    let mut round = |senders: &[Sender]| {
        let begin = slots.len();
        for sender in senders {
            slots.extend((0..BITS).map(|index| TimeSlot {
                sender: *sender,
                index,
                bit: SECRET >> index & 1 == 1,
            }));
        }
        for at in (begin + 1..slots.len()).rev() {
            let other = dice.below((at - begin + 1) as u64);
            slots.swap(at, begin + usize::try_from(other).unwrap());
        }
    };
    for _ in 0..rounds {
        round(&SENDERS[..4]);
    }
    // These take longer, so there are fewer.
    for _ in 0..rounds.div_ceil(8) {
        round(&[Sender::Crowds]);
    }
    slots
}

/// The site that is cleared in a slot. Its name does not reveal the bit.
fn cleared(slot: usize) -> String {
    format!("cleared-{slot:05}.example")
}

/// Everything that happens before the receiver begins.
fn contents(now: i64) -> impl Iterator<Item = AgentStep> {
    let full: Vec<String> = (0..)
        .zip(plan())
        .filter(|(_, slot)| slot.sender == Sender::Clears && slot.bit)
        .map(|(number, _)| cleared(number))
        .collect();
    let of_each = TO_CLEAR / u32::try_from(full.len()).unwrap().max(1);
    let ones = || (0..BITS).filter(|index| SECRET >> index & 1 == 1);
    let saves = moments(now).flat_map(move |moment| {
        let save = move |site: String, match_value, priority| {
            let options = ImpressionOptions {
                match_value,
                priority,
                ..ImpressionOptions::new(3)
            };
            AgentStep::Save(site, options, moment)
        };
        let stored = ones().flat_map(move |index| {
            (0..STORED).map(move |number| {
                // 7,919 is prime, so that this is a permutation.
                let rank = number * 7919 % STORED;
                let site = format!("news-{}.example", rank % SITES);
                save(site, 100 + index, i32::try_from(rank).unwrap())
            })
        });
        let to_clear = full.clone().into_iter().flat_map(move |site| {
            let save = move |_| save(site.clone(), 50, 0);
            (0..of_each.min(1000)).map(save)
        });
        let quotas = (0..BITS * 20).map(move |number| save(quota(number % BITS), 51, 0));
        let baits = (0..TURNS).map(move |turn| save(bait(turn), 52, 0));
        let calm = (0..3).map(move |_| save("calm.example".to_owned(), 53, 0));
        stored
            .chain(to_clear)
            .chain(quotas)
            .chain(baits)
            .chain(calm)
    });
    let exhausted = (0..TURNS).flat_map(move |turn| spend(receiver(turn), bait(turn), now));
    let spent = ones().flat_map(move |index| {
        (0..3).flat_map(move |number| {
            let spender = format!("spender-{index}-{number}.example");
            spend(spender, quota(index), now)
        })
    });
    saves.chain(exhausted).chain(spent)
}

fn receiver(turn: usize) -> String {
    format!("receiver-{turn:02}.example")
}

fn bait(turn: usize) -> String {
    format!("bait-{turn:02}.example")
}

fn quota(index: u32) -> String {
    format!("quota-{index:02}.example")
}

/// Conversions on an impression site that use up a querier's budget.
fn spend(site: String, impression_site: String, now: i64) -> impl Iterator<Item = AgentStep> {
    (0..40).map(move |time| {
        let options = ConversionOptions {
            // 0.5, 0.25, …, each twice, down to a millionth.
            epsilon: 0.5_f64.powi(1 + time / 2),
            impression_sites: vec![impression_site.clone()],
            ..ConversionOptions::new(SERVICE, 8)
        };
        AgentStep::Measure(site.clone(), options, Timestamp(now))
    })
}

/// The options of a conversion, with more options from a JSON object.
fn measured(more: &Value) -> Value {
    let mut options = json!({
        "aggregationService": SERVICE, "histogramSize": 8, "epsilon": 1e-5, "value": 5, "maxValue": 5,
    });
    for (name, value) in more.as_object().unwrap() {
        options[name] = value.clone();
    }
    options
}

/// Lines that are sent to the child.
struct LeakEvent {
    /// The time since the beginning.
    at: Duration,
    lines: String,
    /// The id of the call whose time counts.
    id: u64,
}

/// The id of a call in a slot. All ids have the same length, so that they do not show in the size
/// of answers.
fn id(slot: usize, of: u64) -> u64 {
    1_000_000 + 10 * slot as u64 + of
}

const OWN: u64 = 1;
const THIRD: u64 = 2;
const SAVE: u64 = 3;
const TAB: u64 = 4;

fn events(slots: &[TimeSlot], setup: &Setup, busy: bool) -> Vec<LeakEvent> {
    let micros = Duration::from_micros;
    let mut events = Vec::new();
    // The answer to another tab is due while the agent works on the receiver's conversion.
    let mut begin = setup.pace.delay;
    for (number, slot) in slots.iter().enumerate() {
        begin += slot.sender.slot();
        let turn = number % TURNS;
        let mut event = |at, of, lines| {
            let id = id(number, of);
            events.push(LeakEvent { at, lines, id });
        };
        let query = match slot.sender {
            Sender::Stores | Sender::Crowds => json!({"matchValues": [100 + slot.index]}),
            Sender::Spends => json!({"impressionSites": [quota(slot.index)]}),
            Sender::Clears => json!({"matchValues": [999]}),
            // Impressions that are stored.
            Sender::Disables => json!({"matchValues": [100 + SECRET.trailing_zeros()]}),
        };
        let measure =
            |id, receiver: &str| page(id, "measureConversion", receiver, &measured(&query));
        let call = measure(id(number, OWN), &receiver(turn));
        let enable = own(UNNOTED, "enableAPI");
        let lines = match slot.sender {
            Sender::Clears => {
                // The site has impressions only if the bit is one.
                let clear = json!({
                    "event": "clearImpressionsForSite", "id": UNNOTED, "site": cleared(number),
                });
                format!("{clear}\n{call}")
            }
            Sender::Disables if slot.bit => own(UNNOTED, "disableAPI") + &call + &enable,
            Sender::Disables => enable.clone() + &call + &enable,
            Sender::Crowds => {
                let others = (1..TURNS * crowd(setup)).map(|it| receiver((turn + it) % TURNS));
                let others = others.map(|receiver| measure(UNNOTED, &receiver));
                call + &others.collect::<String>()
            }
            _ => call,
        };
        event(begin, OWN, lines);
        let third = measured(&json!({"impressionSites": ["calm.example"]}));
        let site = format!("third-{turn:02}.example");
        let lines = page(id(number, THIRD), "measureConversion", &site, &third);
        event(begin + micros(500), THIRD, lines);
        let impression = json!({"histogramIndex": 1, "matchValue": 54});
        let site = format!("saver-{turn:02}.example");
        let lines = page(id(number, SAVE), "saveImpression", &site, &impression);
        event(begin + micros(1500), SAVE, lines);
        let nothing = measured(&json!({"matchValues": [998]}));
        let site = format!("tab-{turn:02}.example");
        let lines = page(id(number, TAB), "measureConversion", &site, &nothing);
        event(begin + micros(1000) - setup.pace.delay, TAB, lines);
    }
    if busy {
        load(&mut events);
    }
    events.sort_by_key(|event| event.at);
    events
}

/// Adds calls of other sites within the limits: at random, 40 conversions and 200 impressions a
/// second.
fn load(events: &mut Vec<LeakEvent>) {
    let mut dice = Dice(0xfeed);
    let last = events
        .iter()
        .map(|event| event.at)
        .max()
        .unwrap_or_default();
    let mut at = Duration::ZERO;
    while at < last {
        at += Duration::from_micros(dice.below(8000));
        let site = format!("load-{:02}.example", dice.below(20));
        let lines = match dice.below(6) {
            0 => {
                let query = measured(&json!({"impressionSites": ["calm.example", bait(3)]}));
                page(UNNOTED, "measureConversion", &site, &query)
            }
            _ => page(
                UNNOTED,
                "saveImpression",
                &site,
                &json!({"histogramIndex": 2}),
            ),
        };
        let id = UNNOTED;
        events.push(LeakEvent { at, lines, id });
    }
}

/// The observations of the receiver for each call, in the order of [`CHANNELS`], and the number of
/// missed conversions.
fn observe(setup: &Setup, slots: &[TimeSlot], busy: bool) -> (Vec<[f64; 7]>, String) {
    let mut process = Process::start(setup);
    let begin = Instant::now() + Duration::from_millis(100);
    let mut sent = std::collections::HashMap::new();
    for event in events(slots, setup, busy) {
        std::thread::sleep((begin + event.at).saturating_duration_since(Instant::now()));
        sent.insert(event.id, Instant::now());
        process.send(&event.lines);
    }
    let last = id(slots.len() - 1, OWN);
    process.wait_for(last, setup.pace.delay + Duration::from_secs(30));
    let status = process.ask(1, "status", Duration::from_secs(60));
    let missed = status.map_or("?".to_owned(), |it| it.json()["missed"].to_string());
    let seen = (0..slots.len()).map(|slot| {
        let [own, third, save, tab] =
            [OWN, THIRD, SAVE, TAB].map(|of| process.answer(id(slot, of)));
        let time = |of, answer: &Option<Noted>| match answer {
            Some(answer) => (answer.at - sent[&id(slot, of)]).as_secs_f64(),
            None => f64::MAX,
        };
        let places = [&own, &third, &save, &tab].map(|it| it.as_ref().map(|it| it.place));
        let before = |a: usize, b: usize| f64::from(u8::from(places[a] < places[b]));
        [
            time(OWN, &own),
            time(SAVE, &save),
            time(TAB, &tab),
            before(0, 1),
            before(2, 3),
            own.map_or(0.0, |it| it.line.len() as f64),
            third.map_or(0.0, |it| it.total() as f64),
        ]
    });
    (seen.collect(), missed)
}

fn main() {
    if let Some(setup) = Setup::asked() {
        return serve(&setup, contents(setup.now));
    }
    let folder = Folder::below(env!("CARGO_TARGET_TMPDIR"));
    let ours = Setup::new(wall_clock().0);
    let template = Template::new(&ours, folder.file("template"), contents(ours.now));
    let mut late = ours.clone();
    late.pace.delay = Duration::from_millis(1);
    let variants = [
        ("ours", ours.clone()),
        ("no read limits", ours.clone().without_read_limits()),
        ("no arrival limits", ours.clone().without_arrival_limits()),
        ("a delay of 1 ms", late),
    ];
    let slots = plan();
    println!(
        "Bits that one call of the receiver reads, estimated from {} calls",
        slots.len()
    );
    let heads = CHANNELS.map(|name| format!(" {name:>11}")).concat();
    println!(
        "{:<20} {:<10} {:<6} {:<9}{heads}  missed",
        "", "store", "load", "sender"
    );
    let only = argument("--variant", 0);
    let chosen = (1..)
        .zip(&variants)
        .filter(|(number, _)| only == 0 || only == *number);
    for (_, (variant, setup)) in chosen {
        for store in ["memory", "disk"] {
            for busy in [false, true] {
                let mut setup = setup.clone();
                if store == "disk" {
                    let path = folder.file("leak");
                    template.copy(&path);
                    setup.store = Some(path);
                }
                let (seen, missed) = observe(&setup, &slots, busy);
                let load = if busy { "busy" } else { "quiet" };
                for sender in SENDERS {
                    let of_sender = slots.iter().zip(&seen).filter(|it| it.0.sender == sender);
                    let of_sender: Vec<_> =
                        of_sender.map(|(slot, seen)| (slot.bit, *seen)).collect();
                    let (told, evidence) = told(&of_sender);
                    let sender = format!("{sender:?}");
                    println!("{variant:<20} {store:<10} {load:<6} {sender:<9}{told}  {missed}");
                    print!("{evidence}");
                }
            }
        }
    }
}

/// The bits of each channel. For channels that reveal any, also the median for zeros and for ones.
fn told(seen: &[(bool, [f64; 7])]) -> (String, String) {
    let (mut told, mut evidence) = (String::new(), String::new());
    for (channel, name) in CHANNELS.iter().enumerate() {
        let values: Vec<_> = seen
            .iter()
            .map(|(bit, seen)| (*bit, seen[channel]))
            .collect();
        let bits = bits(&values);
        told += &format!(" {bits:>11.2}");
        if bits > 0.0 {
            let typical = [false, true].map(|wanted| {
                let of_bit = values.iter().filter(|(bit, _)| *bit == wanted);
                median(&mut of_bit.map(|(_, value)| *value).collect::<Vec<_>>())
            });
            let [zero, one] = typical;
            evidence += &format!("    {name}: median {zero:.6} for zeros, {one:.6} for ones\n");
        }
    }
    (told, evidence)
}
