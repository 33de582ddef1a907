//! What `big-bird` has beyond the draft: shared conversions, user actions, explanations.
#![allow(missing_docs, clippy::unwrap_used)]

use bigbird::{Cause, Fate, Filter, FilterKind, MicroEpsilon, Profile, SiteId, Timestamp};
use bigbird_attribution::{
    AgentError, Call, Config, ConversionOptions, Explanation, ImpressionOptions, Memory,
    Randomness, SharedConversion, Storage, Transaction, UserAgent,
};

const SERVICE: &str = "https://agg.example";

struct Half;

impl Randomness for Half {
    fn epoch_start(&mut self) -> f64 {
        0.5
    }

    fn credit(&mut self) -> f64 {
        0.5
    }
}

type Agent = UserAgent<Memory, Half>;

fn agent(profile: Profile) -> Agent {
    let config = Config::new(profile).with_service(SERVICE);
    UserAgent::in_memory(config, Half)
}

fn at(seconds: i64) -> Timestamp {
    Timestamp(seconds * 1000)
}

fn save(agent: &mut Agent, site: &str, by: Option<&str>, index: u32, seconds: i64) {
    let call = Call {
        intermediary: by,
        ..Call::new(site, at(seconds))
    };
    let options = ImpressionOptions::new(index);
    agent.save_impression(&call, &options).unwrap();
}

/// A conversion of value 4 of 8 over a month, divided evenly over the last two impressions.
fn options(epsilon: f64) -> ConversionOptions {
    ConversionOptions {
        epsilon,
        value: 4,
        max_value: 8,
        credit: vec![1.0, 1.0],
        ..ConversionOptions::new(SERVICE, 3)
    }
}

fn own_ads(adtech: &str, epsilon: f64) -> ConversionOptions {
    ConversionOptions {
        impression_callers: vec![adtech.to_owned()],
        ..options(epsilon)
    }
}

fn take(agent: &mut Agent, conversion: SharedConversion, adtech: &str, seconds: i64) -> Vec<u32> {
    let call = Call {
        intermediary: Some(adtech),
        ..Call::new("shop.example", at(seconds))
    };
    let answer = agent
        .share(conversion, &call, &own_ads(adtech, 0.5))
        .unwrap();
    let report = answer.report.release(Timestamp(i64::MAX)).unwrap();
    report.buckets().to_vec()
}

fn consumed(agent: &mut Agent, filter: impl Fn(SiteId) -> Filter, site: &str) -> u64 {
    let Ok(tx) = agent.storage_mut().begin();
    let site = bigbird_attribution::Site::from_stored(site);
    let Ok(id) = tx.find_site(&site);
    let filter = filter(id.unwrap());
    drop(tx);
    let views = agent.storage().ledger().epochs();
    let filters = views.flat_map(|view| view.filters());
    let of = filters.filter(|(other, _)| *other == filter);
    of.map(|(_, balance)| balance.consumed.get()).sum()
}

/// The paper's example of two intermediaries: each gets the credit of its own ads, each pays from
/// its own budget, and the shared filters pay once.
#[test]
fn intermediaries_share_one_attribution() {
    let mut agent = agent(Profile::BigBird);
    save(&mut agent, "news.example", Some("adtech.example"), 0, 1);
    save(&mut agent, "blog.example", Some("adtech2.example"), 1, 2);
    let call = Call::new("shop.example", at(3));
    let both = ["adtech.example", "adtech2.example"];
    let conversion = agent.attribute_shared(&call, &options(0.5), &both).unwrap();
    assert_eq!(take(&mut agent, conversion, "adtech.example", 4), [2, 0, 0]);
    assert_eq!(
        take(&mut agent, conversion, "adtech2.example", 5),
        [0, 2, 0]
    );
    assert_eq!(
        take(&mut agent, conversion, "adtech.example", 6),
        [0, 0, 0],
        "taken"
    );
    let loss = 250_000;
    for adtech in both {
        assert_eq!(consumed(&mut agent, Filter::Querier, adtech), loss);
    }
    assert_eq!(
        consumed(&mut agent, |_| Filter::Global, "shop.example"),
        loss
    );
    let of_shop = consumed(&mut agent, Filter::ConversionSite, "shop.example");
    assert_eq!(of_shop, loss);
    assert_eq!(consumed(&mut agent, Filter::Querier, "shop.example"), 0);
}

#[test]
fn shares_are_for_participants_of_an_existing_conversion() {
    let mut agent = agent(Profile::BigBird);
    save(&mut agent, "news.example", Some("adtech.example"), 0, 1);
    let call = Call::new("shop.example", at(3));
    let only = ["adtech.example"];
    let conversion = agent.attribute_shared(&call, &options(0.5), &only).unwrap();
    assert_eq!(take(&mut agent, conversion, "other.example", 4), [0, 0, 0]);
    let Ok(()) = agent.clear_impressions_for_site("cdn.adtech.example");
    assert_eq!(
        take(&mut agent, conversion, "adtech.example", 5),
        [0, 0, 0],
        "forgotten"
    );

    // While disabled there is a conversion to share, of which nothing comes; it looks the same.
    let Ok(()) = agent.set_enabled(false);
    let none = agent.attribute_shared(&call, &options(0.5), &only).unwrap();
    assert_ne!(none, conversion);
    assert_eq!(take(&mut agent, none, "adtech.example", 6), [0, 0, 0]);
}

#[test]
fn the_draft_has_no_intermediary_queriers() {
    let mut agent = agent(Profile::W3cDraft);
    let call = Call::new("shop.example", at(3));
    let refused = agent.attribute_shared(&call, &options(0.5), &["adtech.example"]);
    let Err(AgentError::Api(error)) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(
        error.to_string(),
        "RangeError: querier must be the conversion site in this profile, got the intermediary"
    );
}

/// A user action of the browser is one of ours in each epoch, and ours are never used again.
#[test]
fn user_actions_are_numbered_anew_after_a_restart() {
    let mut agent = agent(Profile::BigBird);
    let next = |agent: &mut Agent| {
        let Ok(tx) = agent.storage_mut().begin();
        let Ok(state) = tx.state();
        state.next_user_action
    };
    let before = next(&mut agent);
    for seconds in 1..4 {
        let call = Call {
            user_action: Some(7),
            ..Call::new("news.example", at(seconds))
        };
        let options = ImpressionOptions::new(0);
        agent.save_impression(&call, &options).unwrap();
    }
    assert_eq!(next(&mut agent), before + 1, "one action, one number");
    let config = agent.config().clone();
    let mut restarted = UserAgent::new(config, agent.into_storage(), Half);
    let call = Call {
        user_action: Some(7),
        ..Call::new("news.example", at(5))
    };
    restarted
        .save_impression(&call, &ImpressionOptions::new(0))
        .unwrap();
    assert_eq!(
        next(&mut restarted),
        before + 2,
        "another action of the same name"
    );
}

fn explain(agent: &mut Agent, site: &str, seconds: i64, epsilon: f64) -> Explanation {
    let call = Call::new(site, at(seconds));
    agent.explain(&call, &options(epsilon)).unwrap()
}

#[test]
fn an_explanation_says_what_was_short_and_what_would_have_fitted() {
    let mut agent = agent(Profile::BigBird);
    save(&mut agent, "news.example", None, 1, 1);
    let call = Call::new("shop.example", at(2));
    // Half of the value: 0.7 of 1 is spent.
    let _ = agent.measure_conversion(&call, &options(1.4)).unwrap();
    let before = consumed(&mut agent, |_| Filter::Global, "shop.example");
    let explanation = explain(&mut agent, "shop.example", 3, 1.0);
    assert_eq!(
        consumed(&mut agent, |_| Filter::Global, "shop.example"),
        before
    );
    assert!(explanation.report.is_null());
    assert_eq!(explanation.cause, Some(Cause::Filter(FilterKind::Querier)));
    let epoch = explanation
        .epochs
        .iter()
        .find(|epoch| epoch.matched > 0)
        .unwrap();
    assert!(matches!(epoch.fate, Fate::Dropped(_)));
    let short: Vec<String> = epoch
        .filters
        .iter()
        .filter(|filter| !filter.check.fits())
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        short,
        [
            "querier budget of shop.example: 0.7 of 1 consumed, asked 0.5, short by 0.2",
            "conversion-site quota of shop.example: 0.7 of 1 consumed, asked 0.5, short by 0.2",
        ]
    );
    let largest = epoch.largest_epsilon.unwrap();
    assert_eq!(largest, MicroEpsilon::new(600_000));
    // That one fits, to the last microepsilon; the next one does not.
    let fits = explain(&mut agent, "shop.example", 3, largest.to_epsilon());
    assert_eq!(fits.report.buckets(), [0, 4, 0]);
    let next = MicroEpsilon::new(largest.get() + 2).to_epsilon();
    assert!(
        explain(&mut agent, "shop.example", 3, next)
            .report
            .is_null()
    );
}

#[test]
fn an_explanation_while_disabled_says_so() {
    let mut agent = agent(Profile::BigBird);
    let Ok(()) = agent.set_enabled(false);
    let explanation = explain(&mut agent, "shop.example", 3, 1.0);
    assert!(!explanation.enabled && explanation.report.is_null());
}
