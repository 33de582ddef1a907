//! `bigbird example`: the paper's worked example (section Big Bird Design, "Example execution",
//! with the second intermediary of appendix "Cross-report Privacy Loss Optimization").

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bigbird::{
    AttributionQuery, Device, EpochIndex, Filter, Histogram, Impression, ImpressionStore, Policy,
    Request, SiteId, Timestamp, UserAction, Window,
};
use serde::Serialize;

use crate::{Failed, Finished, output};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print what remains, in microepsilons, as JSON
    #[arg(long)]
    json: bool,
}

const NEWS: SiteId = SiteId(0);
const BLOG: SiteId = SiteId(1);
const SHOES: SiteId = SiteId(2);
const ADTECH: SiteId = SiteId(3);
const ADTECH2: SiteId = SiteId(4);

fn name(site: SiteId) -> &'static str {
    match site {
        NEWS => "news.ex",
        BLOG => "blog.ex",
        SHOES => "shoes.ex",
        ADTECH => "adtech.ex",
        ADTECH2 => "adtech2.ex",
        _ => "another site",
    }
}

const EPOCHS: [(EpochIndex, &str); 3] = [
    (EpochIndex(1), "e1"),
    (EpochIndex(2), "e2"),
    (EpochIndex(3), "e3"),
];

/// The columns of the paper's table, by kind of filter.
const QUERIERS: [SiteId; 3] = [SHOES, ADTECH, ADTECH2];
const IMPRESSION_SITES: [SiteId; 2] = [NEWS, BLOG];
const CONVERSION_SITES: [SiteId; 1] = [SHOES];

pub(crate) fn run(args: &Args) -> Finished {
    let replay = Replay::run()?;
    let text = if args.json {
        output::json(&replay.remaining())?
    } else {
        replay.tell()?
    };
    Ok((text, true))
}

/// The example after its last report.
struct Replay {
    device: Device<ImpressionStore>,
    reports: [(SiteId, Histogram); 3],
}

impl Replay {
    fn run() -> Result<Self, Failed> {
        let policy = Policy::builder()
            .querier(0.5)
            .global(4.0)
            .impression_site(2.0)
            .conversion_site(0.75)
            .domain_cap(2)
            .build()?;
        let mut device = Device::<ImpressionStore>::new(policy);

        // Steps 1 and 2: an ad on news.ex in e1, an ad on blog.ex in e2.
        let ads = [(1, NEWS, ADTECH), (2, BLOG, ADTECH2)];
        for (bucket, (epoch, site, placed_by)) in (0..).zip(ads) {
            let action = UserAction(u64::from(bucket) + 1);
            let impression = Impression {
                intermediary: Some(placed_by),
                conversion_sites: &[SHOES],
                ..Impression::new(site, action, Timestamp(epoch), bucket)
            };
            device.save_impression(EpochIndex(epoch), &impression);
        }

        // Step 3: a purchase at shoes.ex in e3, which is measured three times: (i) by shoes.ex, and
        // in one attribution (j) by adtech.ex and (k) by adtech2.ex, each for its own ads.
        let mut draw = || 0.5;
        let measure = |querier: SiteId, callers: &[SiteId]| {
            let request = Request {
                querier,
                conversion_site: SHOES,
                user_action: UserAction(3),
                window: Window::new(EpochIndex(1), EpochIndex(3))?,
            };
            let query = AttributionQuery::builder(request, Timestamp(3), 2)
                .callers(callers)
                .credit([0.5, 0.5])
                .value(75, 150)
                .epsilon(0.2);
            Ok::<_, Failed>(query)
        };
        let report_i = device.report(&measure(SHOES, &[SHOES])?.build()?, &mut draw);
        let both = measure(SHOES, &[ADTECH, ADTECH2])?.build()?;
        let (mut object, _) = device.attribute(&both, &mut draw);
        let mut share = |adtech: SiteId| {
            let own_ads = measure(adtech, &[adtech])?.impression_callers([adtech]);
            let outcome = device.share(&mut object, &own_ads.build()?);
            Ok::<_, Failed>((adtech, outcome.report))
        };
        let reports = [(SHOES, report_i.report), share(ADTECH)?, share(ADTECH2)?];
        Ok(Self { device, reports })
    }

    /// What remains of a filter, in µε.
    fn left(&self, epoch: EpochIndex, filter: Filter) -> Option<bigbird::MicroEpsilon> {
        self.device.balance(epoch, filter).remaining()
    }

    fn remaining(&self) -> Remaining {
        let epochs = EPOCHS.map(|(epoch, label)| {
            let left = |filter| self.left(epoch, filter).map(bigbird::MicroEpsilon::get);
            let of_sites = |sites: &[SiteId], filter: fn(SiteId) -> Filter| {
                let sites = sites.iter();
                sites
                    .map(|&site| (name(site), left(filter(site))))
                    .collect()
            };
            EpochRemaining {
                epoch: label,
                querier: of_sites(&QUERIERS, Filter::Querier),
                global: left(Filter::Global),
                impression_site: of_sites(&IMPRESSION_SITES, Filter::ImpressionSite),
                conversion_site: of_sites(&CONVERSION_SITES, Filter::ConversionSite),
            }
        });
        Remaining { epochs }
    }

    fn tell(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::from(
            "The paper's worked example\n\
             \n\
             In epoch\n\
             e1  an ad on news.ex, placed by adtech.ex   (bucket 0)\n\
             e2  an ad on blog.ex, placed by adtech2.ex  (bucket 1)\n\
             e3  a purchase at shoes.ex of value 75, measured three times with\n\
             \x20   maxValue 150 and epsilon 0.2: each costs 75/150 · 0.2 = 0.1 in e1 and in e2\n",
        );
        let what = [
            "(i) for shoes.ex, all ads",
            "(j) for adtech.ex, its own ads",
            "(k) for adtech2.ex, its own ads",
        ];
        for (what, (_, report)) in what.iter().zip(&self.reports) {
            writeln!(text, "      {what:<33} histogram {:?}", report.buckets())?;
        }
        text.push_str(
            "    (j) and (k) share one attribution: each pays from its own querier budget, and the\n\
             \x20   other filters pay 0.1 for (i) and 0.1 for (j) and (k) together\n\
             \n\
             What remains, in ε\n",
        );
        let queriers = QUERIERS.map(Filter::Querier);
        let impression_sites = IMPRESSION_SITES.map(Filter::ImpressionSite);
        let conversion_sites = CONVERSION_SITES.map(Filter::ConversionSite);
        let columns = || {
            let before = queriers.into_iter().chain([Filter::Global]);
            before.chain(impression_sites).chain(conversion_sites)
        };
        let capacities = self.device.policy().capacities();
        let heading = |filter: Filter| {
            let site = match filter {
                Filter::Querier(site)
                | Filter::ImpressionSite(site)
                | Filter::ConversionSite(site) => name(site),
                Filter::Global | Filter::UserAction(_) => "",
            };
            let kind = filter.kind();
            let label = match filter {
                Filter::Querier(_) | Filter::Global => kind.to_string().replace(' ', "\n"),
                _ => kind.to_string().replace('-', "-\n"),
            };
            format!("{label}\nof {}\n{site}", capacities.of(kind))
        };
        let header = [String::from("epoch")].into_iter();
        let header = header.chain(columns().map(heading)).collect();
        let rows = EPOCHS.map(|(epoch, label)| {
            let left = |filter| self.left(epoch, filter).unwrap_or_default().to_string();
            let label = [label.to_owned()].into_iter();
            label.chain(columns().map(left)).collect()
        });
        let table = output::table(header, rows);
        writeln!(text, "{}", table.trim_fmt())?;
        Ok(text)
    }
}

/// What remains of each filter, in µε; null for unlimited.
#[derive(Debug, Serialize)]
struct Remaining {
    epochs: [EpochRemaining; 3],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct EpochRemaining {
    epoch: &'static str,
    querier: BTreeMap<&'static str, Option<u64>>,
    global: Option<u64>,
    impression_site: BTreeMap<&'static str, Option<u64>>,
    conversion_site: BTreeMap<&'static str, Option<u64>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Every number of the paper's table "Quota and budget states after example execution".
    #[test]
    fn the_papers_table_comes_out() {
        let epoch = |label, querier, global, news, blog, conversion| {
            json!({
                "epoch": label,
                "querier": {"shoes.ex": querier, "adtech.ex": querier, "adtech2.ex": querier},
                "global": global,
                "impressionSite": {"news.ex": news, "blog.ex": blog},
                "conversionSite": {"shoes.ex": conversion},
            })
        };
        let expected = json!({"epochs": [
            epoch("e1", 400_000, 3_800_000, 1_800_000, 2_000_000, 550_000),
            epoch("e2", 400_000, 3_800_000, 2_000_000, 1_800_000, 550_000),
            epoch("e3", 500_000, 4_000_000, 2_000_000, 2_000_000, 750_000),
        ]});
        let remaining = Replay::run().unwrap().remaining();
        assert_eq!(serde_json::to_value(remaining).unwrap(), expected);
    }

    #[test]
    fn the_intermediaries_get_the_credit_of_their_own_ads() {
        let replay = Replay::run().unwrap();
        let [whole, first, second] = replay.reports.map(|(_, report)| report);
        assert_eq!(whole.total(), 75);
        assert_eq!(first.buckets()[1] + second.buckets()[0], 0);
        assert_eq!(first.buckets()[0], whole.buckets()[0]);
        assert_eq!(second.buckets()[1], whole.buckets()[1]);
    }
}
