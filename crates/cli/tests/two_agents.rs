//! Two processes use one store: nothing is lost or charged twice, and neither waits forever.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::io::BufRead as _;
use std::io::Write as _;
use std::thread;

use bigbird_testing::Dice;
use common::{AgentProcess, arguments, folder};
use serde_json::{Value, json};

const REQUESTS: u64 = 10_000;

/// The amount that each filter should have consumed, in µε.
type Sums = BTreeMap<(String, String), u64>;

/// The filters that pay for a conversion.
type Costs = Vec<(String, String)>;

/// The requests of one agent, with the filters that each conversion charges unless its report is
/// null. Each conversion asks for one impression that this agent saved before. So its cost is
/// known, whatever the other agent does.
fn requests(who: u64) -> Vec<(Value, Option<Costs>)> {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15 + who);
    let mut saved: Vec<(u64, String)> = Vec::new();
    (0..REQUESTS)
        .map(|number| {
            let seconds = 1_000_000 + i64::try_from(number).unwrap();
            let unique = 2 * number + who;
            match dice.below(20) {
                0 => (json!({"event": "budgets"}), None),
                1 => {
                    let request = json!({
                        "event": "clearImpressionsForSite",
                        "site": format!("news-{}.example", dice.below(50)),
                    });
                    (request, None)
                }
                2..9 => {
                    let site = format!("news-{}.example", dice.below(50));
                    saved.push((unique, site.clone()));
                    (common::save(seconds, unique, &site, unique), None)
                }
                _ => {
                    let shop = format!("shop-{}.example", dice.below(20));
                    let newest = usize::try_from(dice.below(200)).unwrap();
                    let wanted = saved.iter().rev().nth(newest);
                    let (match_value, news) = wanted.cloned().unwrap_or_default();
                    let mut request = common::convert(seconds, unique, &shop, 0.01);
                    request["options"]["matchValues"] = json!([match_value]);
                    let costs = vec![
                        ("querierBudget".to_owned(), shop.clone()),
                        ("conversionSiteQuota".to_owned(), shop),
                        ("impressionSiteQuota".to_owned(), news),
                        ("globalBudget".to_owned(), String::new()),
                    ];
                    (request, Some(costs))
                }
            }
        })
        .collect()
}

/// Runs an agent. Returns what its conversions cost according to its answers, and the number of
/// conversions that were charged.
fn run(mut agent: AgentProcess, who: u64) -> (Sums, u64) {
    let requests = requests(who);
    let lines: Vec<String> = requests
        .iter()
        .map(|(request, _)| request.to_string())
        .collect();
    let mut input = agent.input.take().unwrap();
    let writer = thread::spawn(move || {
        for line in lines {
            writeln!(input, "{line}").unwrap();
        }
    });
    let mut sums = Sums::new();
    let mut charged = 0;
    for (request, costs) in requests {
        let mut line = String::new();
        agent.output.read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(answer["ok"], true, "{request}: {answer}");
        let Some(costs) = costs else {
            continue;
        };
        let buckets = answer["histogram"].as_array().unwrap();
        if buckets.iter().any(|bucket| bucket != 0) {
            charged += 1;
            for filter in costs {
                *sums.entry(filter).or_default() += 10_000;
            }
        }
    }
    writer.join().unwrap();
    assert!(agent.end());
    (sums, charged)
}

#[test]
fn what_two_agents_charge_is_what_the_filters_say() {
    let folder = folder();
    let store = folder.file("store");
    let mut arguments = arguments(&store);
    // The capacities are so large that most conversions pass, and so small that some do not.
    let policy = folder.file("policy.json");
    let capacities = json!({
        "querierBudget": 1_000_000, "globalBudget": 80_000_000, "impressionSiteQuota": 2_000_000,
        "conversionSiteQuota": 1_000_000, "domainCap": 2,
    });
    std::fs::write(&policy, capacities.to_string()).unwrap();
    arguments.extend(["--policy".to_owned(), policy.display().to_string()]);

    let agents = [0, 1].map(|who| {
        let agent = AgentProcess::start(&arguments);
        thread::spawn(move || run(agent, who))
    });
    let mut expected = Sums::new();
    let mut charged_in_all = 0;
    for agent in agents {
        let (sums, charged) = agent.join().unwrap();
        charged_in_all += charged;
        for (filter, sum) in sums {
            *expected.entry(filter).or_default() += sum;
        }
    }
    // The querier budgets of the shops allow 2,000 conversions. The share of each agent depends on
    // its speed.
    assert!(
        charged_in_all > 1400,
        "{charged_in_all} conversions were charged"
    );
    bigbird_store::check(&store).unwrap();

    let mut agent = AgentProcess::start(&arguments);
    let answer = agent.ask(&json!({"event": "budgets"}));
    assert!(agent.end());
    let mut found = Sums::new();
    for budget in answer["budgets"].as_array().unwrap() {
        let name = budget["filter"].as_str().unwrap().to_owned();
        let site = budget["site"].as_str().unwrap_or_default().to_owned();
        let consumed = budget["consumed"].as_u64().unwrap();
        assert!(consumed <= budget["capacity"].as_u64().unwrap());
        *found.entry((name, site)).or_default() += consumed;
    }
    assert_eq!(found, expected);
}
