//! `bigbird example`: the paper's worked example (section Big Bird Design, "Example execution",
//! with the second intermediary of appendix "Cross-report Privacy Loss Optimization").

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bigbird::{
    AttributionQuery, Device, EpochIndex, Filter, Histogram, Impression, ImpressionStore, Policy,
    ReportRequest, SiteId, Timestamp, UserAction, Window,
};
use serde::Serialize;

use crate::output::{Document, FormatArgs, ResultCell, ResultColumn, ResultFormat, ResultTable};
use crate::{CommandError, CommandResult, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The example is in the paper's section \"Big Bird Design\". JSON has the remaining amounts in
microepsilons.")]
pub(crate) struct ExampleArgs {
    #[command(flatten)]
    format: FormatArgs,
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

pub(crate) fn run(args: &ExampleArgs) -> CommandResult {
    let replay = WorkedExample::run()?;
    let text = match args.format.format() {
        ResultFormat::Json => output::json(&replay.remaining())?,
        format => replay.tell()?.render(format),
    };
    Ok((text, true))
}

/// The state of the example after its last report.
struct WorkedExample {
    device: Device<ImpressionStore>,
    reports: [(SiteId, Histogram); 3],
}

impl WorkedExample {
    fn run() -> Result<Self, CommandError> {
        let policy = Policy::builder()
            .querier_budget(0.5)
            .global_budget(4.0)
            .impression_site_quota(2.0)
            .conversion_site_quota(0.75)
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
            let request = ReportRequest {
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
            Ok::<_, CommandError>(query)
        };
        let report_i = device.report(&measure(SHOES, &[SHOES])?.build()?, &mut draw);
        let both = measure(SHOES, &[ADTECH, ADTECH2])?.build()?;
        let (mut object, _) = device.attribute(&both, &mut draw);
        let mut share = |adtech: SiteId| {
            let own_ads = measure(adtech, &[adtech])?.impression_callers([adtech]);
            let outcome = device.share(&mut object, &own_ads.build()?);
            Ok::<_, CommandError>((adtech, outcome.report))
        };
        let reports = [(SHOES, report_i.report), share(ADTECH)?, share(ADTECH2)?];
        Ok(Self { device, reports })
    }

    /// The amount that remains of a filter, in µε, or none if it is unlimited.
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
                querier_budget: of_sites(&QUERIERS, Filter::QuerierBudget),
                global_budget: left(Filter::GlobalBudget),
                impression_site_quota: of_sites(&IMPRESSION_SITES, Filter::ImpressionSiteQuota),
                conversion_site_quota: of_sites(&CONVERSION_SITES, Filter::ConversionSiteQuota),
            }
        });
        Remaining { epochs }
    }

    fn tell(&self) -> Result<Document, std::fmt::Error> {
        let mut document = Document::new();
        document.paragraph("The paper's worked example");
        let mut text = String::from(
            "Epoch\n\
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
            "    (j) and (k) share one attribution. Each pays from its own querier budget. The\n\
             \x20   other filters pay 0.1 for (i), and 0.1 for (j) and (k) together.\n",
        );
        document.lines(text);
        document.paragraph("What remains, in ε");
        let queriers = QUERIERS.map(Filter::QuerierBudget);
        let impression_sites = IMPRESSION_SITES.map(Filter::ImpressionSiteQuota);
        let conversion_sites = CONVERSION_SITES.map(Filter::ConversionSiteQuota);
        let columns = || {
            let before = queriers.into_iter().chain([Filter::GlobalBudget]);
            before.chain(impression_sites).chain(conversion_sites)
        };
        let capacities = self.device.policy().capacities();
        let heading = |filter: Filter| {
            let site = match filter {
                Filter::QuerierBudget(site)
                | Filter::ImpressionSiteQuota(site)
                | Filter::ConversionSiteQuota(site) => name(site),
                Filter::GlobalBudget | Filter::UserActionBudget(_) => "",
            };
            let kind = filter.kind();
            let label = match filter {
                Filter::QuerierBudget(_) | Filter::GlobalBudget => {
                    kind.to_string().replace(' ', "\n")
                }
                _ => kind.to_string().replace('-', "-\n"),
            };
            let title = format!("{label}\nof {}\n{site}", capacities.of(kind));
            let key = match site {
                "" => kind.limit().key().to_owned(),
                site => format!("{}:{site}", kind.limit().key()),
            };
            ResultColumn::new(title, key)
        };
        let epochs = [ResultColumn::named("epoch")].into_iter();
        let mut table = ResultTable::new(epochs.chain(columns().map(heading)).collect());
        for (epoch, label) in EPOCHS {
            let left = |filter| {
                let left = self.left(epoch, filter).unwrap_or_default();
                ResultCell::Number(left.to_epsilon())
            };
            let label = [ResultCell::text(label)].into_iter();
            table.row(label.chain(columns().map(left)).collect());
        }
        document.table(table);
        Ok(document)
    }
}

/// The amount that remains of each filter, in µε. Null means unlimited.
#[derive(Debug, Serialize)]
struct Remaining {
    epochs: [EpochRemaining; 3],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct EpochRemaining {
    epoch: &'static str,
    querier_budget: BTreeMap<&'static str, Option<u64>>,
    global_budget: Option<u64>,
    impression_site_quota: BTreeMap<&'static str, Option<u64>>,
    conversion_site_quota: BTreeMap<&'static str, Option<u64>>,
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
                "querierBudget": {"shoes.ex": querier, "adtech.ex": querier, "adtech2.ex": querier},
                "globalBudget": global,
                "impressionSiteQuota": {"news.ex": news, "blog.ex": blog},
                "conversionSiteQuota": {"shoes.ex": conversion},
            })
        };
        let expected = json!({"epochs": [
            epoch("e1", 400_000, 3_800_000, 1_800_000, 2_000_000, 550_000),
            epoch("e2", 400_000, 3_800_000, 2_000_000, 1_800_000, 550_000),
            epoch("e3", 500_000, 4_000_000, 2_000_000, 2_000_000, 750_000),
        ]});
        let remaining = WorkedExample::run().unwrap().remaining();
        assert_eq!(serde_json::to_value(remaining).unwrap(), expected);
    }

    #[test]
    fn the_intermediaries_get_the_credit_of_their_own_ads() {
        let replay = WorkedExample::run().unwrap();
        let [whole, first, second] = replay.reports.map(|(_, report)| report);
        assert_eq!(whole.total(), 75);
        assert_eq!(first.buckets()[1] + second.buckets()[0], 0);
        assert_eq!(first.buckets()[0], whole.buckets()[0]);
        assert_eq!(second.buckets()[1], whole.buckets()[1]);
    }
}
