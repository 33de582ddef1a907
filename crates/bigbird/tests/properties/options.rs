//! The policy options beyond the paper, and what decisions report about them.

use std::num::NonZeroU64;

use bigbird::{
    AttributionQuery, Cause, Decision, DepletedSites, Device, Draws, EpochIndex, Epsilon, EventLog,
    Fate, Filter, FilterKind, Impression, ImpressionStore, MicroEpsilon, Noise, Policy,
    PolicyBuilder, Query, Release, Relevant, ReportAndDecision, ReportRequest, SiteCharging,
    SiteId, Timestamp, UserAction, Window,
};

const SHOP: SiteId = SiteId(9);

/// A device with an ad on site 1 (bucket 1) and a later one on site 2 (bucket 2), both in epoch 0.
fn device(policy: PolicyBuilder) -> Device<ImpressionStore> {
    let mut device = Device::new(policy.no_domain_cap().build().unwrap());
    for site in [1, 2] {
        let time = Timestamp(i64::from(site));
        let ad = Impression::new(SiteId(site), UserAction(u64::from(site)), time, site);
        device.save_impression(EpochIndex(0), &ad);
    }
    device
}

/// A report over two epochs, with value 1, about ads on these sites.
fn ask(
    device: &mut Device<ImpressionStore>,
    querier: u32,
    action: u64,
    sites: &[u32],
    epsilon: f64,
) -> (Vec<u32>, Decision) {
    let request = ReportRequest {
        querier: SiteId(querier),
        conversion_site: SHOP,
        user_action: UserAction(action),
        window: Window::new(EpochIndex(0), EpochIndex(1)).unwrap(),
    };
    let sites: Vec<SiteId> = sites.iter().map(|&site| SiteId(site)).collect();
    let query = AttributionQuery::builder(request, Timestamp(50), 4)
        .impression_sites(sites)
        .epsilon(epsilon)
        .build()
        .unwrap();
    let ReportAndDecision { report, decision } = device.report(&query, &mut || 0.5);
    (report.buckets().to_vec(), decision)
}

fn left(device: &Device<ImpressionStore>, filter: Filter) -> u64 {
    let balance = device.balance(EpochIndex(0), filter);
    balance.remaining().unwrap().get()
}

fn tight() -> PolicyBuilder {
    Policy::builder()
        .querier_budget(1.0)
        .global_budget(8.0)
        .impression_site_quota(1.0)
        .conversion_site_quota(8.0)
}

#[test]
fn a_depleted_site_drops_the_epoch_or_only_itself() {
    for (option, report) in [
        (DepletedSites::DropEpoch, [0, 0, 0, 0]),
        (DepletedSites::DropSite, [0, 1, 0, 0]),
    ] {
        let mut device = device(tight().depleted_sites(option));
        // Another querier empties the quota of site 2, whose ad is the last.
        assert_eq!(ask(&mut device, 20, 10, &[2], 1.0).0, [0, 0, 1, 0]);
        let (histogram, decision) = ask(&mut device, 21, 11, &[], 0.5);
        assert_eq!(histogram, report);
        let epoch = decision.epochs().next().unwrap();
        assert_eq!(epoch.matched, 2);
        if option == DepletedSites::DropSite {
            assert_eq!(epoch.fate, Fate::Passed);
            let dropped: Vec<_> = epoch.dropped_sites.iter().map(|c| c.filter).collect();
            assert_eq!(dropped, [Filter::ImpressionSiteQuota(SiteId(2))]);
            assert_eq!(
                left(&device, Filter::ImpressionSiteQuota(SiteId(1))),
                500_000
            );
            assert_eq!(left(&device, Filter::ImpressionSiteQuota(SiteId(2))), 0);
        } else {
            let cause = Cause::Filter(FilterKind::ImpressionSiteQuota);
            assert_eq!(decision.first_cause(), Some(cause));
            assert_eq!(
                left(&device, Filter::ImpressionSiteQuota(SiteId(1))),
                1_000_000
            );
        }
    }
}

/// If every site of an epoch is depleted, the decision still names every filter that could not pay.
#[test]
fn an_epoch_of_depleted_sites_names_every_filter() {
    let mut device = device(tight().depleted_sites(DepletedSites::DropSite));
    for (querier, site) in [(20, 1), (21, 2)] {
        let (histogram, _) = ask(&mut device, querier, 10, &[site], 1.0);
        assert_eq!(histogram[site as usize], 1);
    }
    // Querier 20 has nothing left of its 1 ε either.
    let (histogram, decision) = ask(&mut device, 20, 11, &[2], 0.5);
    assert_eq!(histogram, [0; 4]);
    let querier = Cause::Filter(FilterKind::QuerierBudget);
    assert_eq!(decision.first_cause(), Some(querier));
    let epoch = decision.epochs().next().unwrap();
    let short: Vec<_> = epoch
        .shortfalls()
        .map(|check| check.filter.kind())
        .collect();
    assert_eq!(
        short,
        [FilterKind::QuerierBudget, FilterKind::ImpressionSiteQuota]
    );
}

/// Dropping a site computes the report again, with the numbers that were drawn the first time. So
/// the charge and the released report come from the same draws (notes on the draft, row 2).
#[test]
fn a_report_that_is_computed_again_draws_no_new_numbers() {
    let policy = tight().depleted_sites(DepletedSites::DropSite);
    let mut device = device(policy);
    // A second and a third ad on site 1, so that its credit has to be rounded.
    for (number, bucket) in [(3, 0), (4, 3)] {
        let action = UserAction(number);
        let time = Timestamp(i64::try_from(number).unwrap());
        let ad = Impression::new(SiteId(1), action, time, bucket);
        device.save_impression(EpochIndex(0), &ad);
    }
    assert_eq!(ask(&mut device, 20, 10, &[2], 1.0).0, [0, 0, 1, 0]);
    let request = ReportRequest {
        querier: SiteId(21),
        conversion_site: SHOP,
        user_action: UserAction(11),
        window: Window::single(EpochIndex(0)),
    };
    let query = AttributionQuery::builder(request, Timestamp(50), 4)
        .credit([1.0, 1.0, 1.0])
        .value(2, 2)
        .epsilon(0.5)
        .build()
        .unwrap();
    let mut drawn = 0;
    let mut draw = || {
        drawn += 1;
        if drawn <= 2 { 0.9 } else { 0.1 }
    };
    let ReportAndDecision { report, decision } = device.report(&query, &mut draw);
    let epoch = decision.epochs().next().unwrap();
    assert_eq!((epoch.fate, epoch.dropped_sites.len()), (Fate::Passed, 1));
    assert_eq!(
        drawn, 2,
        "rounding three parts takes two numbers, however often it is done"
    );
    assert_eq!(report.total(), 2);
}

#[test]
fn sites_pay_in_full_or_in_equal_parts() {
    for (option, paid) in [
        (SiteCharging::Full, 700_000),
        (SiteCharging::Uniform, 350_000),
    ] {
        let mut device = device(tight().site_charging(option));
        let _ = ask(&mut device, 20, 10, &[], 0.7);
        for site in [1, 2] {
            let left = left(&device, Filter::ImpressionSiteQuota(SiteId(site)));
            assert_eq!(left, 1_000_000 - paid, "{option:?}");
        }
        assert_eq!(left(&device, Filter::GlobalBudget), 7_300_000);
    }
}

/// A stranger asks about every publisher, with a histogram that contains none of their buckets. The
/// report is null and costs the stranger nothing. Under the paper's literal rule, two such requests
/// empty both publishers' quotas. Under ours they take nothing.
#[test]
fn a_null_report_empties_no_quota_for_free() {
    for (option, taken) in [(SiteCharging::Full, 0), (SiteCharging::Paper, 1_000_000)] {
        let mut device = device(tight().site_charging(option));
        for action in [10, 11] {
            let request = ReportRequest {
                querier: SiteId(66),
                conversion_site: SiteId(66),
                user_action: UserAction(action),
                window: Window::single(EpochIndex(0)),
            };
            let query = AttributionQuery::builder(request, Timestamp(50), 1).epsilon(0.5);
            let ReportAndDecision { report, .. } =
                device.report(&query.build().unwrap(), &mut || 0.5);
            assert!(report.is_null());
        }
        assert_eq!(left(&device, Filter::QuerierBudget(SiteId(66))), 1_000_000);
        for site in [1, 2] {
            let left = left(&device, Filter::ImpressionSiteQuota(SiteId(site)));
            assert_eq!(1_000_000 - left, taken, "{option}");
        }
    }
}

/// The corrected per-action budget of the appendix: an epoch that would exceed it is dropped and
/// costs nothing.
#[test]
fn a_user_action_has_a_budget_of_its_own() {
    let mut device = device(tight().user_action_budget(0.8));
    let null = vec![0; 4];
    assert_ne!(ask(&mut device, 20, 10, &[1], 0.5).0, null);
    let (histogram, decision) = ask(&mut device, 21, 10, &[2], 0.5);
    assert_eq!(histogram, null);
    let cause = Cause::Filter(FilterKind::UserActionBudget);
    assert_eq!(decision.first_cause(), Some(cause));
    assert_eq!(left(&device, Filter::GlobalBudget), 7_500_000);
    assert_ne!(ask(&mut device, 21, 10, &[2], 0.3).0, null, "0.8 in total");
    assert_ne!(
        ask(&mut device, 22, 11, &[2], 0.5).0,
        null,
        "another action"
    );
}

#[test]
fn the_first_cause_follows_the_order_and_not_the_epochs() {
    use FilterKind::{ConversionSiteQuota, GlobalBudget, ImpressionSiteQuota, QuerierBudget};
    let order = [
        Cause::DomainCap,
        Cause::Filter(QuerierBudget),
        Cause::Filter(GlobalBudget),
        Cause::Filter(ImpressionSiteQuota),
        Cause::Filter(ConversionSiteQuota),
        Cause::Filter(FilterKind::UserActionBudget),
        Cause::Pruned,
    ];
    assert!(order.is_sorted());
    // In epoch 0 the conversion-site quota refuses, in epoch 1 the querier budget.
    let policy = tight()
        .querier_budget(0.5)
        .conversion_site_quota(0.5)
        .no_domain_cap();
    let mut device: Device<ImpressionStore> = Device::new(policy.build().unwrap());
    let ad = |epoch: i64| Impression::new(SiteId(1), UserAction(1), Timestamp(epoch), 0);
    device.save_impression(EpochIndex(0), &ad(0));
    assert_eq!(ask(&mut device, 20, 10, &[], 0.5).0, [1, 0, 0, 0]);
    device.save_impression(EpochIndex(1), &ad(1));
    let elsewhere = ReportRequest {
        querier: SiteId(21),
        conversion_site: SiteId(8),
        user_action: UserAction(11),
        window: Window::single(EpochIndex(1)),
    };
    let drain = AttributionQuery::builder(elsewhere, Timestamp(50), 4)
        .build()
        .unwrap();
    let ReportAndDecision { report, .. } = device.report(&drain, &mut || 0.5);
    assert!(!report.is_null());
    let (_, decision) = ask(&mut device, 21, 12, &[], 0.5);
    let fates: Vec<_> = decision.epochs().map(|epoch| epoch.fate).collect();
    let dropped = |kind| Fate::Dropped(Cause::Filter(kind));
    assert_eq!(
        fates,
        [dropped(ConversionSiteQuota), dropped(QuerierBudget)]
    );
    assert_eq!(decision.first_cause(), Some(Cause::Filter(QuerierBudget)));
}

/// An epoch whose filters are forgotten is not read, and the decision reports that.
#[test]
fn a_pruned_epoch_is_named_as_the_cause() {
    let mut device = device(tight());
    device.prune_before(EpochIndex(1));
    let (histogram, decision) = ask(&mut device, 20, 10, &[], 0.5);
    assert_eq!(histogram, [0; 4]);
    let fates: Vec<_> = decision.epochs().map(|epoch| epoch.fate).collect();
    assert_eq!(fates, [Fate::Dropped(Cause::Pruned), Fate::NothingRelevant]);
}

/// A query that reports site sensitivities of 0.
struct Careless(ReportRequest);

#[derive(Default)]
struct Count(u32);

impl Release for Count {}

impl Query for Careless {
    type Event<'e> = &'e ();
    type Detail = ();
    type Report = Count;

    fn request(&self) -> ReportRequest {
        self.0
    }

    fn noise(&self) -> Noise {
        Noise::new(Epsilon::new(1.0).unwrap(), NonZeroU64::MIN)
    }

    fn relevant(&self, (): &()) -> Option<()> {
        Some(())
    }

    fn report(&self, events: &mut [Relevant<()>], _: &mut Draws<'_>, report: &mut Count) {
        report.0 = u32::from(!events.is_empty());
    }

    fn individual_sensitivity(&self, report: &Count) -> u64 {
        u64::from(report.0)
    }

    fn epoch_sensitivity(&self, _: &[Relevant<()>]) -> u64 {
        1
    }

    fn site_sensitivity(&self, _: &[Relevant<()>]) -> u64 {
        0
    }
}

/// Whatever sensitivities an application reports, its impression sites together pay for the epoch.
/// Resilience does not depend on a promise of the application.
#[test]
fn careless_sensitivities_do_not_make_sites_free() {
    let mut device: Device<EventLog<()>> = Device::new(tight().no_domain_cap().build().unwrap());
    for site in 1..=3 {
        device.save(EpochIndex(0), SiteId(site), UserAction(1), ());
    }
    let request = ReportRequest {
        querier: SHOP,
        conversion_site: SHOP,
        user_action: UserAction(2),
        window: Window::new(EpochIndex(0), EpochIndex(1)).unwrap(),
    };
    let _ = device.report(&Careless(request), &mut || 0.5);
    for site in 1..=3 {
        let filter = Filter::ImpressionSiteQuota(SiteId(site));
        let balance = device.balance(EpochIndex(0), filter);
        assert_eq!(balance.consumed, MicroEpsilon::new(333_334));
    }
}
