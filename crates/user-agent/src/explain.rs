//! Explanations: why a report was null, and what would have fitted.

use std::fmt;

use bigbird::{
    AttributionQuery, Cause, Check, Decision, Epsilon, Fate, Filter, Histogram, MicroEpsilon,
    Query as _, UserAction,
};

use crate::site::Site;

/// What a conversion would give, and why. For developers on the device: it tells what is stored and
/// spent, so nothing here turns it into something to send.
///
/// ```compile_fail
/// fn send(report: impl bigbird::Release) {}
/// fn leak(explanation: bigbird_user_agent::Explanation) {
///     send(explanation)
/// }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// Whether the API is enabled.
    pub enabled: bool,
    /// The report it would give; none for a shared conversion, of which shares are taken later.
    pub report: Option<Histogram>,
    /// The first epoch of the lookback that may be read, if the user cleared some of it.
    pub readable_from: Option<i64>,
    /// The site of the call whose data the user cleared, if that hides an epoch of the lookback (in
    /// `w3c-draft`: if that spent its budget there).
    pub closed: Option<Site>,
    /// Why a share is refused as a whole, if it is.
    pub share_refusal: Option<ShareRefusal>,
    /// The one cause to name, if an epoch was dropped.
    pub cause: Option<Cause>,
    /// What happened in each epoch, oldest first.
    pub epochs: Vec<EpochExplanation>,
}

/// Why a share is refused as a whole: it is null, and costs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareRefusal {
    /// There is no shared conversion of this handle, or not any more.
    Unknown,
    /// It does not fit the shared conversion.
    Unfit,
}

impl fmt::Display for ShareRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unknown => "there is no shared conversion of this handle, or not any more",
            Self::Unfit => {
                "the share does not fit: the caller is not a participant, or value, maxValue, \
                 credit or epsilon differ, or its impressions were taken already"
            }
        })
    }
}

/// What happened in one epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct EpochExplanation {
    /// Which epoch, counted from the start of the device's epochs.
    pub epoch: i64,
    /// How many impressions matched.
    pub matched: usize,
    /// How it ended.
    pub fate: Fate,
    /// Every filter that was asked to pay.
    pub filters: Vec<FilterExplanation>,
    /// If the epoch was dropped: the largest epsilon with which it would have passed, if any.
    pub largest_epsilon: Option<MicroEpsilon>,
}

/// What one filter held and what was asked of it.
#[derive(Debug, Clone, PartialEq)]
pub struct FilterExplanation {
    /// Its site, if it is a site's.
    pub site: Option<Site>,
    /// What it held, and what was asked.
    pub check: Check,
}

impl fmt::Display for FilterExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Check { balance, asked, .. } = &self.check;
        let name = FilterName(self.check.filter, self.site.as_ref());
        write!(
            f,
            "{name}: {} of {} consumed, asked {asked}",
            balance.consumed, balance.capacity
        )?;
        let short_by = self.check.short_by();
        if !short_by.is_zero() {
            write!(f, ", short by {short_by}")?;
        }
        Ok(())
    }
}

/// The name of a filter, such as `querier budget of shop.example`.
pub(crate) struct FilterName<'a>(pub(crate) Filter, pub(crate) Option<&'a Site>);

impl fmt::Display for FilterName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(filter, site) = self;
        write!(f, "{}", filter.kind())?;
        match (site, filter, filter.site()) {
            (Some(site), ..) => write!(f, " of {site}"),
            (None, Filter::UserAction(UserAction(id)), _) => write!(f, " of action {id}"),
            (None, _, Some(id)) => write!(f, " of site {}", id.0),
            (None, _, None) => Ok(()),
        }
    }
}

/// What a dry run gives: the report, if there is one, and why.
pub(crate) type DryRun = (Option<Histogram>, Decision);

impl Explanation {
    /// Whether the user cleared every epoch that it would read.
    pub fn nothing_readable(&self) -> bool {
        self.readable_from.is_some() && self.epochs.is_empty()
    }

    /// The explanation of a request while the API is disabled.
    pub(crate) fn disabled(report: Option<Histogram>) -> Self {
        Self {
            enabled: false,
            readable_from: None,
            closed: None,
            share_refusal: None,
            report,
            cause: None,
            epochs: Vec::new(),
        }
    }

    /// Explains what `run` says of a query. `name` gives the site of a filter.
    ///
    /// With `search`, it is tried which smaller epsilon would have passed.
    pub(crate) fn of<E>(
        query: &AttributionQuery,
        search: bool,
        name: &dyn Fn(Filter) -> Result<Option<Site>, E>,
        mut run: impl FnMut(&AttributionQuery) -> Result<DryRun, E>,
    ) -> Result<Self, E> {
        let (report, decision) = run(query)?;
        let mut epochs = Vec::new();
        for (at, epoch) in decision.epochs().enumerate() {
            let filters = epoch.checks.iter().chain(epoch.dropped_sites);
            let filters: Result<Vec<_>, E> = filters
                .map(|check| {
                    Ok(FilterExplanation {
                        site: name(check.filter)?,
                        check: *check,
                    })
                })
                .collect();
            let refused = matches!(epoch.fate, Fate::Dropped(Cause::Filter(_)));
            epochs.push(EpochExplanation {
                epoch: epoch.epoch.0,
                matched: epoch.matched,
                fate: epoch.fate,
                filters: filters?,
                largest_epsilon: match search && refused {
                    true => largest_epsilon(query, at, &mut run)?,
                    false => None,
                },
            });
        }
        Ok(Self {
            enabled: true,
            readable_from: query.request().window.first_readable().map(|epoch| epoch.0),
            closed: None,
            share_refusal: None,
            cause: decision.first_cause(),
            report,
            epochs,
        })
    }
}

/// The largest epsilon, in µε, with which the epoch at a place in the window passes. Losses grow
/// with epsilon, so it is found by halving.
fn largest_epsilon<E>(
    query: &AttributionQuery,
    at: usize,
    run: &mut dyn FnMut(&AttributionQuery) -> Result<DryRun, E>,
) -> Result<Option<MicroEpsilon>, E> {
    let (mut fits, mut too_large) = (0, query.epsilon().micro().get());
    while too_large - fits > 1 {
        let middle = MicroEpsilon::new(fits + (too_large - fits) / 2);
        let Ok(epsilon) = Epsilon::new(middle.to_epsilon()) else {
            break;
        };
        let (_, decision) = run(&query.with_epsilon(epsilon))?;
        let passed = decision.epochs().nth(at).map(|epoch| epoch.fate) == Some(Fate::Passed);
        if passed {
            fits = middle.get();
        } else {
            too_large = middle.get();
        }
    }
    Ok((fits > 0).then_some(MicroEpsilon::new(fits)))
}
