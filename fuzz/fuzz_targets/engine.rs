//! Property: on any history, under any policy, the device does what the paper's algorithm does when
//! it is read literally.
//!
//! The input becomes a policy and a history of impressions, requests and clean-ups. The device and
//! `bigbird-reference` live through it side by side. After each request the report, the fate of
//! each epoch and all charges must be equal, and no filter may hold more than its capacity. At the
//! end the filters, the admitted sites and the stored impressions must be equal too.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use arbitrary::{Result, Unstructured};
use bigbird::{
    Arithmetic, AttributionQuery, DepletedSites, Device, EpochIndex, Filter, FilterKind,
    GlobalCharging, ImpressionStore, Policy, Profile, ReadLimits, SiteCharging, SiteId,
    StoreLimits, UserAction, Workspace,
};
use bigbird_fuzz::{one_in, some_of, stretch};
use bigbird_reference::{Ad, Ask, Reference};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // Input that ends early is a shorter history.
    let _ = live(&mut Unstructured::new(bytes));
});

/// The reference looks at every impression for every request, and so it is slow with many.
const MOST_IMPRESSIONS: u32 = 600;
const MOST_REQUESTS: u32 = 100;

fn live(source: &mut Unstructured<'_>) -> Result<()> {
    let policy = policy(source)?;
    let units: u32 = *source.choose(&[1000, 5, 1, 40, 200])?;
    let mut pair = Pair::new(&policy, units);
    let (mut saved, mut asked) = (0, 0);
    while !source.is_empty() && saved < MOST_IMPRESSIONS && asked < MOST_REQUESTS {
        match source.int_in_range(0..=31)? {
            0..=14 => {
                pair.save(source)?;
                saved += 1;
            }
            // An epoch with many impressions has indexes.
            15 => {
                let count = source.int_in_range(20..=120)?;
                let noise = stretch(source.arbitrary()?, 32 * count as usize);
                let mut noise = Unstructured::new(&noise);
                for _ in 0..count {
                    pair.save(&mut noise)?;
                }
                saved += count;
            }
            16..=27 => {
                pair.ask(source)?;
                asked += 1;
            }
            28 => pair.remove_site(source.int_in_range(0..=SITES)?),
            29 => pair.end_actions_before(source.int_in_range(0..=4 * EPOCHS.unsigned_abs())?),
            30 => pair.prune_before(source.int_in_range(-1..=EPOCHS)?),
            _ => {
                pair.agree();
                if source.arbitrary()? {
                    pair.reset();
                }
            }
        }
    }
    pair.agree();
    Ok(())
}

/// Histories have epochs from -1 up to here. Each has four user actions.
const EPOCHS: i64 = 3;

/// Sites have numbers up to this; the last two are also intermediaries.
const SITES: u32 = 6;

/// The device, and the algorithm it must agree with.
struct Pair {
    device: Device<ImpressionStore>,
    workspace: Workspace<AttributionQuery>,
    reference: Reference,
}

impl Pair {
    fn new(policy: &Policy, units: u32) -> Self {
        let limits = StoreLimits {
            units_per_epoch: NonZeroU32::new(units).expect("not zero"),
        };
        Self {
            device: Device::with_events(policy.clone(), ImpressionStore::new(limits)),
            workspace: Workspace::default(),
            reference: Reference::new(policy.clone(), units as usize, None),
        }
    }

    fn save(&mut self, source: &mut Unstructured<'_>) -> Result<()> {
        let (epoch, ad) = impression(source)?;
        ad.save_on(&mut self.device, epoch);
        self.reference.save(epoch, &ad);
        Ok(())
    }

    fn ask(&mut self, source: &mut Unstructured<'_>) -> Result<()> {
        let ask = request(source)?;
        let answer = ask.ask_device(&mut self.device, &mut self.workspace);
        let answer = answer.expect("every request is valid");
        assert_eq!(answer, self.reference.ask(&ask), "{ask:?}");
        let total: u64 = answer.histogram.iter().copied().map(u64::from).sum();
        assert!(total <= u64::from(ask.value), "{answer:?}");
        self.within_capacities();
        Ok(())
    }

    fn prune_before(&mut self, epoch: i64) {
        self.device.prune_before(EpochIndex(epoch));
        self.reference.prune_before(epoch);
    }

    fn remove_site(&mut self, site: u32) {
        let events = self.device.events_mut();
        events.retain(|impression| impression.site != SiteId(site));
        self.reference.remove_site(site);
    }

    fn end_actions_before(&mut self, action: u64) {
        self.device.end_user_actions_before(UserAction(action));
        self.reference.end_user_actions_before(action);
    }

    fn reset(&mut self) {
        self.device.reset();
        self.reference.reset();
    }

    fn within_capacities(&self) {
        for view in self.device.ledger().epochs() {
            for (filter, consumed) in view.filters() {
                let capacity = self.device.policy().capacities().of(filter.kind());
                assert!(
                    capacity.amount().is_none_or(|most| consumed <= most),
                    "epoch {:?}: {filter:?} holds {consumed:?} of {capacity:?}",
                    view.epoch()
                );
            }
        }
    }

    /// The states are the same.
    fn agree(&self) {
        let mut consumed: BTreeMap<(i64, Filter), u64> = BTreeMap::new();
        let mut admitted: BTreeMap<(u64, i64), BTreeSet<u32>> = BTreeMap::new();
        for view in self.device.ledger().epochs() {
            let epoch = view.epoch().0;
            for (filter, amount) in view.filters() {
                consumed.insert((epoch, filter), amount.get());
            }
            for action in view.user_actions() {
                let sites = view.admitted(action).map(|site| site.0);
                admitted.insert((action.0, epoch), sites.collect());
            }
        }
        assert_eq!(consumed, self.reference.consumed, "consumed");
        let mut expected = self.reference.accessed.clone();
        expected.retain(|_, sites| !sites.is_empty());
        assert_eq!(admitted, expected, "admitted");
        for epoch in -1..=EPOCHS {
            let stored = self.device.events().impressions(EpochIndex(epoch));
            let ads = self.reference.ads.iter().filter(|(of, _)| *of == epoch);
            let stored = stored.map(|it| (it.site.0, it.timestamp.0, it.user_action.0));
            let ads = ads.map(|(_, ad)| (ad.site, ad.timestamp, ad.action));
            let (stored, ads): (Vec<_>, Vec<_>) = (stored.collect(), ads.collect());
            assert_eq!(stored, ads, "impressions of epoch {epoch}");
        }
    }
}

fn policy(source: &mut Unstructured<'_>) -> Result<Policy> {
    let mut builder = source.choose(&Profile::ALL)?.policy().to_builder();
    for kind in FilterKind::ALL {
        builder = match source.int_in_range(0..=7)? {
            // As in the profile.
            0 => builder,
            1 => builder.unlimited(kind),
            2 => builder.capacity(kind, 0.0),
            _ => builder.capacity(kind, f64::from(source.arbitrary::<u16>()?) / 1e4),
        };
    }
    builder = match source.int_in_range(0..=4)? {
        0 => builder,
        1 => builder.no_domain_cap(),
        cap => builder.domain_cap(cap - 1),
    };
    let policy = builder
        .arithmetic(*source.choose(&[Arithmetic::Exact, Arithmetic::Double])?)
        .global_charging(*source.choose(&[GlobalCharging::Individual, GlobalCharging::WorstCase])?)
        .site_charging(*source.choose(&SiteCharging::ALL)?)
        .depleted_sites(*source.choose(&[DepletedSites::DropEpoch, DepletedSites::DropSite])?)
        .build();
    Ok(policy.expect("every such policy is valid"))
}

/// An epoch, and a user action of it.
fn moment(source: &mut Unstructured<'_>) -> Result<(i64, u64)> {
    let epoch = source.int_in_range(-1..=EPOCHS)?;
    let action = source.int_in_range(0..=3)?;
    Ok((epoch, (epoch + 1).unsigned_abs() * 4 + action))
}

fn impression(source: &mut Unstructured<'_>) -> Result<(i64, Ad)> {
    let (epoch, action) = moment(source)?;
    let timestamp = epoch * 100 + source.int_in_range(0..=99)?;
    let site = source.int_in_range(0..=SITES)?;
    let ad = Ad {
        site,
        intermediary: match one_in(source, 4)? {
            true => Some(source.int_in_range(SITES - 1..=SITES)?).filter(|it| *it != site),
            false => None,
        },
        action,
        timestamp,
        expires: match one_in(source, 4)? {
            true => timestamp + source.int_in_range(0..=400)?,
            false => i64::MAX,
        },
        match_value: source.int_in_range(0..=2)?,
        index: match one_in(source, 16)? {
            true => u32::MAX,
            false => source.int_in_range(0..=5)?,
        },
        priority: *source.choose(&[0, 1, -1, i32::MAX, i32::MIN])?,
        conversion_sites: some_of(source, &[1, 2, 3, 4])?,
        conversion_callers: some_of(source, &[1, 2, SITES - 1, SITES])?,
    };
    Ok((epoch, ad))
}

fn request(source: &mut Unstructured<'_>) -> Result<Ask> {
    let (current, action) = moment(source)?;
    let now = current * 100 + source.int_in_range(0..=99)?;
    let conversion_site = source.int_in_range(1..=4)?;
    let intermediary = match one_in(source, 3)? {
        true => Some(source.int_in_range(SITES - 1..=SITES)?),
        false => None,
    };
    let caller = intermediary.unwrap_or(conversion_site);
    let mut callers = some_of(source, &[SITES - 1, SITES])?;
    callers.push(caller);
    let max_value = match one_in(source, 8)? {
        true => source.int_in_range(1..=u32::MAX)?,
        false => source.int_in_range(1..=10)?,
    };
    let mut credit = Vec::new();
    let mut draws = Vec::new();
    for _ in 0..source.int_in_range(1..=3)? {
        credit.push(f64::from(source.int_in_range(1..=200_u8)?) / 100.0);
        draws.push(f64::from(source.arbitrary::<u8>()?) / 256.0);
    }
    Ok(Ask {
        querier: match source.arbitrary()? {
            true => caller,
            false => conversion_site,
        },
        conversion_site,
        callers,
        action,
        earliest: current - source.int_in_range(0..=3)?,
        current,
        readable_from: match one_in(source, 6)? {
            true => source.int_in_range(-2..=EPOCHS + 1)?,
            false => i64::MIN,
        },
        now,
        not_before: match one_in(source, 3)? {
            true => now - source.int_in_range(0..=400)?,
            false => i64::MIN,
        },
        impression_sites: some_of(source, &[0, 1, 2, 3, 4])?,
        impression_callers: some_of(source, &[0, 1, 2, SITES - 1, SITES])?,
        match_values: some_of(source, &[0, 1, 2])?,
        credit,
        value: source.int_in_range(1..=max_value)?,
        max_value,
        epsilon_micro: match source.int_in_range(0..=3)? {
            0 => 1,
            1 => source.int_in_range(1..=4_294_000_000)?,
            _ => source.int_in_range(1..=1_000)? * 1_000,
        },
        size: source.int_in_range(1..=6)?,
        read_limits: match one_in(source, 3)? {
            true => ReadLimits {
                relevant: source.int_in_range(1..=5)?,
                examined: source.int_in_range(1..=80)?,
            },
            false => ReadLimits::default(),
        },
        draws,
    })
}
