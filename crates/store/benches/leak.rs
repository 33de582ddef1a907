//! Bits that one site can tell another through the user agent:
//! `cargo bench -p bigbird-store --bench leak`.
//!
//! A sender knows who the user is, and writes that down as a 16-bit number: in what is stored, spent,
//! cleared or disabled. A receiver on another site, whose budgets are exhausted, reads it bit by bit:
//! from when its conversion is answered, from when other tabs' calls are, from the order and the size of
//! answers, and from what a third site measures at the same time. A threshold is learned on half of the
//! calls and tried on the other half; a channel whose errors could be luck (1 in 1,000) reads as 0 bits.
//! `-- --rounds 12` reads every bit more often, `--slot 200` leaves more time between calls, in ms
//! (70 by default); `--variant 1` measures ours alone.
#![allow(missing_docs, clippy::unwrap_used)]
#![allow(clippy::cast_precision_loss, reason = "small numbers")]

mod process;

use std::time::{Duration, Instant};

use bigbird::Timestamp;
use bigbird_testing::{Dice, Folder};
use bigbird_user_agent::{ConversionOptions, ImpressionOptions};
use process::agent::{SERVICE, Setup, Step, Template, moments, serve, wall_clock};
use process::numbers::{bits, median};
use process::{Noted, Process, UNNOTED, argument, own, page};
use serde_json::{Value, json};

const BITS: u32 = 16;

/// How the sender writes a bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    /// Many impressions match in every epoch, or none does.
    Stores,
    /// The quota of an impression site is exhausted, or nothing of it is spent.
    Spends,
    /// A site with many impressions is cleared just before, or one that has none.
    Clears,
    /// The API is disabled while the receiver measures, or enabled.
    Disables,
    /// As [`Stores`](Self::Stores); but all receivers read the same bit at once, each as often as its
    /// limit allows, so that the difference adds up.
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
    /// How much time a call of the receiver has.
    fn slot(self) -> Duration {
        Duration::from_millis(match self {
            Self::Crowds => 2200,
            _ => argument("--slot", 70),
        })
    }
}

/// What the receiver looks at.
const CHANNELS: [&str; 7] = [
    "own time",
    "save time",
    "tab time",
    "own order",
    "tab order",
    "size",
    "third's sum",
];

/// The number that is sent, half of its bits ones, so that guessing is right half of the time.
const SECRET: u32 = 0b1011_0010_0110_1001;

/// How many impressions an epoch has of each bit that is one, and in all of sites to be cleared.
const STORED: u32 = 6000;
const TO_CLEAR: u32 = 40_000;
const SITES: u32 = 1500;

/// Sites of each part that take turns, so that none is above its limit.
const TURNS: usize = 16;

/// How often each of them calls in a crowd: as often as the limit allows. Without limits, often enough
/// in memory for the difference to exceed the delay; on disk the limit is enough.
fn crowd(setup: &Setup) -> usize {
    match (setup.pace.conversions.of_site, &setup.store) {
        (u32::MAX, None) => 250,
        (u32::MAX, Some(_)) => 4,
        (limit, _) => limit as usize,
    }
}

/// One call of the receiver.
#[derive(Debug, Clone, Copy)]
struct Slot {
    sender: Sender,
    /// Which bit of the number is read.
    index: u32,
    bit: bool,
}

/// The calls of the receiver, in a random order that is the same in parent and child.
fn plan() -> Vec<Slot> {
    let mut dice = Dice(0x0b16_b12d);
    let mut slots = Vec::new();
    let rounds = argument("--rounds", 4);
    let mut round = |senders: &[Sender]| {
        let begin = slots.len();
        for sender in senders {
            slots.extend((0..BITS).map(|index| Slot {
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
    // They take longer.
    for _ in 0..rounds.div_ceil(8) {
        round(&[Sender::Crowds]);
    }
    slots
}

/// A site that is cleared for a bit. Names do not tell.
fn cleared(slot: usize) -> String {
    format!("cleared-{slot:05}.example")
}

/// Everything that happened before.
fn contents(now: i64) -> impl Iterator<Item = Step> {
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
            Step::Save(site, options, moment)
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

/// Conversions at an impression site until nothing is left of a querier's budget.
fn spend(site: String, impression_site: String, now: i64) -> impl Iterator<Item = Step> {
    (0..40).map(move |time| {
        let options = ConversionOptions {
            // 0.5, 0.25, …, each twice, down to a millionth.
            epsilon: 0.5_f64.powi(1 + time / 2),
            impression_sites: vec![impression_site.clone()],
            ..ConversionOptions::new(SERVICE, 8)
        };
        Step::Measure(site.clone(), options, Timestamp(now))
    })
}

/// What somebody measures; an object of more options.
fn measured(more: &Value) -> Value {
    let mut options = json!({
        "aggregationService": SERVICE, "histogramSize": 8, "epsilon": 1e-5, "value": 5, "maxValue": 5,
    });
    for (name, value) in more.as_object().unwrap() {
        options[name] = value.clone();
    }
    options
}

/// What is sent to the child, at a moment after the beginning.
struct Event {
    at: Duration,
    lines: String,
    /// The id of the call whose time counts.
    id: u64,
}

/// The ids of a slot. All are of one length, so that they do not show in the size of answers.
fn id(slot: usize, of: u64) -> u64 {
    1_000_000 + 10 * slot as u64 + of
}

const OWN: u64 = 1;
const THIRD: u64 = 2;
const SAVE: u64 = 3;
const TAB: u64 = 4;

fn events(slots: &[Slot], setup: &Setup, busy: bool) -> Vec<Event> {
    let micros = Duration::from_micros;
    let mut events = Vec::new();
    // Another tab's answer is due while the receiver's conversion is worked on.
    let mut begin = setup.pace.delay;
    for (number, slot) in slots.iter().enumerate() {
        begin += slot.sender.slot();
        let turn = number % TURNS;
        let mut event = |at, of, lines| {
            let id = id(number, of);
            events.push(Event { at, lines, id });
        };
        let query = match slot.sender {
            Sender::Stores | Sender::Crowds => json!({"matchValues": [100 + slot.index]}),
            Sender::Spends => json!({"impressionSites": [quota(slot.index)]}),
            Sender::Clears => json!({"matchValues": [999]}),
            // Ones that are stored.
            Sender::Disables => json!({"matchValues": [100 + SECRET.trailing_zeros()]}),
        };
        let measure =
            |id, receiver: &str| page(id, "measureConversion", receiver, &measured(&query));
        let call = measure(id(number, OWN), &receiver(turn));
        let enable = own(UNNOTED, "enableAPI");
        let lines = match slot.sender {
            Sender::Clears => {
                // Of a slot whose bit is one, something is stored.
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

/// Others' calls, within the limits: 40 conversions and 200 impressions a second, at random.
fn load(events: &mut Vec<Event>) {
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
        events.push(Event { at, lines, id });
    }
}

/// What the receiver sees of each call, in the order of [`CHANNELS`].
fn observe(setup: &Setup, slots: &[Slot], busy: bool) -> (Vec<[f64; 7]>, String) {
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
        ("everything is read", ours.clone().without_read_limits()),
        ("every call is taken", ours.clone().without_arrival_limits()),
        ("a delay of 1 ms", late),
    ];
    let slots = plan();
    println!(
        "Bits that a call of the receiver reads, on {} calls",
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

/// The bits of each channel, and of those that tell some, what was typical for zeros and for ones.
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
            evidence +=
                &format!("    {name}: in the middle {zero:.6} for zeros, {one:.6} for ones\n");
        }
    }
    (told, evidence)
}
