//! Attribution objects, written down literally (the appendix "Cross-report Privacy Loss
//! Optimization", with one attribution for all queriers).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bigbird::attribution::allocate_credit;
use bigbird::{AttributionObject, Filter, SiteId};

use crate::{Ad, Ask, EpochAnswer, Flaw, PayingFilters, Reference, ReferenceAnswer};

/// One attribution that several queriers share.
#[derive(Debug, Clone, PartialEq)]
pub struct ReferenceObject {
    /// The request that created it. Its callers are the participants.
    pub ask: Ask,
    /// The epochs that were paid for.
    pub epochs: Vec<i64>,
    /// Every matching ad of those epochs, with its credit, best first.
    snapshot: Vec<(i64, Ad, u32)>,
    /// The impression sites, impression callers and match values of the shares that were taken.
    pub taken: Vec<(Vec<u32>, Vec<u32>, Vec<u32>)>,
    /// The number of shares that can be taken.
    pub max_shares: usize,
}

impl Reference {
    /// Creates an attribution object, and pays for it from the shared filters.
    pub fn create(&mut self, ask: &Ask) -> ReferenceObject {
        let (mut kept, epochs) = self.decide(ask, PayingFilters::Shared);
        kept.sort_by_key(|&at| Reverse(self.rank(at)));
        let credits: BTreeMap<usize, u32> = self.credits(ask, &kept).into_iter().collect();
        let snapshot = kept.into_iter().map(|at| {
            let (epoch, ad) = self.ads[at].clone();
            (epoch, ad, credits.get(&at).copied().unwrap_or(0))
        });
        let passed = epochs.iter().filter(|epoch| epoch.passed);
        ReferenceObject {
            epochs: passed.map(|epoch| epoch.epoch).collect(),
            snapshot: snapshot.collect(),
            ask: ask.clone(),
            taken: Vec::new(),
            max_shares: AttributionObject::MAX_SHARES,
        }
    }

    /// Gives a querier its share of an attribution object, and pays for it from its budget. If the
    /// request does not fit the object, the report is null and costs nothing.
    pub fn share(&mut self, object: &mut ReferenceObject, ask: &Ask) -> ReferenceAnswer {
        let mut histogram = vec![0; ask.size as usize];
        let mut epochs = Vec::new();
        if !object.fits(ask) {
            return ReferenceAnswer { histogram, epochs };
        }
        let caller = ask.callers[0];
        let own = |ad: &Ad| {
            any_or(&ad.conversion_callers, caller)
                && any_or(&ask.impression_sites, ad.site)
                && any_or(&ask.impression_callers, ad.intermediary.unwrap_or(ad.site))
                && any_or(&ask.match_values, ad.match_value)
        };
        let filter = Filter::QuerierBudget(SiteId(ask.querier));
        let single = object.ask.earliest == object.ask.current;
        let mut credits = object.snapshot.clone();
        for &epoch in &object.epochs {
            let in_epoch = |it: &&(i64, Ad, u32)| it.0 == epoch && own(&it.1);
            let credited: Vec<_> = object.snapshot.iter().filter(in_epoch).collect();
            let mut answer = EpochAnswer {
                epoch,
                matched: credited.len(),
                passed: false,
                charges: BTreeMap::new(),
            };
            if epoch >= self.first_epoch && epoch >= ask.readable_from {
                let inside = credited.iter().filter(|(_, ad, _)| ad.index < ask.size);
                let norm: u64 = inside.map(|(.., value)| u64::from(*value)).sum();
                let worst_case = 2 * u64::from(ask.value);
                let mut asked = self.loss(ask, if single { norm } else { worst_case });
                if self.flaw == Some(Flaw::PaysForOwnCredit)
                    && credited.iter().all(|(.., value)| *value == 0)
                {
                    asked = 0;
                }
                if asked > 0 && self.capacity(filter).is_some() {
                    answer.charges.insert(filter, asked);
                }
                answer.passed = self.pay(epoch, &answer.charges);
            }
            if !answer.passed {
                credits.retain(|(other, ..)| *other != epoch);
            }
            epochs.push(answer);
        }
        if self.flaw == Some(Flaw::AttributesAgain) {
            let mut draws = object.ask.draws.iter().copied().cycle();
            let draw = || draws.next().unwrap_or(0.5);
            let count = credits.len().min(object.ask.credit.len());
            let parts = match count {
                0 => Vec::new(),
                _ => allocate_credit(&object.ask.credit[..count], object.ask.value, draw),
            };
            let parts = parts.into_iter().chain(std::iter::repeat(0));
            for ((.., value), part) in credits.iter_mut().zip(parts) {
                *value = part;
            }
        }
        for (_, ad, value) in credits.iter().filter(|(_, ad, _)| own(ad)) {
            if let Some(bucket) = histogram.get_mut(ad.index as usize) {
                *bucket += value;
            }
        }
        object.taken.push((
            ask.impression_sites.clone(),
            ask.impression_callers.clone(),
            ask.match_values.clone(),
        ));
        ReferenceAnswer { histogram, epochs }
    }
}

impl ReferenceObject {
    /// True if a share fits: it comes from a participant, agrees on the terms, and asks for nothing
    /// that was taken.
    fn fits(&self, ask: &Ask) -> bool {
        let [caller] = ask.callers.as_slice() else {
            return false;
        };
        let overlaps = |(sites, callers, values): &(Vec<u32>, Vec<u32>, Vec<u32>)| {
            common(sites, &ask.impression_sites)
                && common(callers, &ask.impression_callers)
                && common(values, &ask.match_values)
        };
        self.ask.callers.contains(caller)
            && self.ask.conversion_site == ask.conversion_site
            && self.ask.value == ask.value
            && self.ask.max_value == ask.max_value
            && self.ask.epsilon_micro == ask.epsilon_micro
            && self.ask.credit == ask.credit
            && self.taken.len() < self.max_shares
            && !self.taken.iter().any(overlaps)
    }

    /// Forgets a site at its request.
    pub fn forget_site(&mut self, site: u32) {
        if site == self.ask.conversion_site {
            self.snapshot.clear();
        }
        let participates = self.ask.callers.contains(&site);
        self.snapshot.retain_mut(|(_, ad, _)| {
            let named = !ad.conversion_callers.is_empty();
            if participates && named {
                ad.conversion_callers.retain(|caller| *caller != site);
            }
            let nobody = named && ad.conversion_callers.is_empty();
            ad.intermediary.unwrap_or(ad.site) != site && !nobody
        });
    }
}

fn any_or(list: &[u32], item: u32) -> bool {
    list.is_empty() || list.contains(&item)
}

fn common(a: &[u32], b: &[u32]) -> bool {
    a.is_empty() || b.is_empty() || a.iter().any(|item| b.contains(item))
}
