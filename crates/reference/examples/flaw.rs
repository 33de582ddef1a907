//! A flaw and its effect: a request that costs its sender nothing empties a publisher's quota.
//!
//! ```sh
//! cargo run -p bigbird-reference --example flaw
//! ```

use bigbird::{Filter, Profile, SiteId};
use bigbird_reference::{Ad, Ask, Flaw, Reference};

fn main() {
    for flaw in [None, Some(Flaw::FreeDenial)] {
        let mut device = Reference::new(Profile::BigBird.policy(), 1000, flaw);
        for (action, site) in [(1, 10), (2, 20)] {
            // This bucket is outside the histogram that the stranger asks for.
            let ad = Ad {
                site,
                action,
                index: 9,
                ..Ad::default()
            };
            device.save(0, &ad);
        }
        for action in 3..5 {
            let ask = Ask {
                querier: 66,
                conversion_site: 66,
                callers: vec![66],
                action,
                now: 1,
                ..Ask::default()
            };
            device.ask(&ask);
        }
        let consumed = |filter| device.consumed.get(&(0, filter)).copied().unwrap_or(0);
        let which = flaw.map_or_else(|| "no flaw".to_owned(), |flaw| format!("flaw {flaw:?}"));
        println!(
            "{which}: the stranger paid {} µε, the first publisher paid {} of 2000000 µε",
            consumed(Filter::QuerierBudget(SiteId(66))),
            consumed(Filter::ImpressionSiteQuota(SiteId(10))),
        );
    }
}
