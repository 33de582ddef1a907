//! Explanations: why a report was null, and what would have fitted.

use std::fmt;

use bigbird::{
    AttributionQuery, Cause, Check, Draws, Epsilon, EventStore, Fate, Filter, Histogram,
    LedgerStore, MicroEpsilon, Policy, Query as _, UserAction, Workspace, generate_report,
};

use crate::site::Site;
use crate::storage::Transaction;

/// What a conversion would give, and why. For developers on the device: it tells what is stored and
/// spent, so nothing here turns it into something to send.
///
/// ```compile_fail
/// fn send(report: impl bigbird::Release) {}
/// fn leak(explanation: bigbird_attribution::Explanation) {
///     send(explanation)
/// }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// Whether the API is enabled.
    pub enabled: bool,
    /// The report it would give.
    pub report: Histogram,
    /// The first epoch of the lookback that may be read, if the user cleared some of it.
    pub readable_from: Option<i64>,
    /// The site of the call whose data the user cleared, if that is why.
    pub closed: Option<Site>,
    /// The one cause to name, if an epoch was dropped.
    pub cause: Option<Cause>,
    /// What happened in each epoch, oldest first.
    pub epochs: Vec<EpochExplanation>,
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

impl Explanation {
    /// The explanation of a request while the API is disabled.
    pub(crate) fn disabled(histogram_size: u32) -> Self {
        Self {
            enabled: false,
            readable_from: None,
            closed: None,
            report: Histogram::null(histogram_size),
            cause: None,
            epochs: Vec::new(),
        }
    }

    /// Runs a query without committing anything.
    pub(crate) fn of<T: Transaction<E>, E>(
        policy: &Policy,
        tx: &T,
        query: &AttributionQuery,
        draw: &mut dyn FnMut() -> f64,
    ) -> Result<Self, E> {
        // Every run sees the same random numbers, or they would not be comparable.
        let mut tape = Vec::new();
        let mut workspace = Workspace::default();
        run(policy, tx, query, draw, &mut tape, &mut workspace)?;
        let decision = workspace.decision();
        let mut epochs = Vec::new();
        for epoch in decision.epochs() {
            let filters = epoch.checks.iter().chain(epoch.dropped_sites);
            let filters: Result<Vec<_>, _> = filters
                .map(|check| {
                    Ok(FilterExplanation {
                        site: match check.filter.site() {
                            Some(id) => tx.site(id)?,
                            None => None,
                        },
                        check: *check,
                    })
                })
                .collect();
            epochs.push(EpochExplanation {
                epoch: epoch.epoch.0,
                matched: epoch.matched,
                fate: epoch.fate,
                filters: filters?,
                largest_epsilon: None,
            });
        }
        for (at, explained) in epochs.iter_mut().enumerate() {
            if matches!(explained.fate, Fate::Dropped(Cause::Filter(_))) {
                explained.largest_epsilon =
                    largest_epsilon(policy, tx, query, draw, &mut tape, at)?;
            }
        }
        Ok(Self {
            enabled: true,
            readable_from: query.request().window.first_readable().map(|epoch| epoch.0),
            closed: None,
            cause: decision.first_cause(),
            report: workspace.report().clone(),
            epochs,
        })
    }
}

/// The largest epsilon, in µε, with which the epoch at a place in the window passes. Losses grow
/// with epsilon, so it is found by halving.
fn largest_epsilon<L>(
    policy: &Policy,
    store: &L,
    query: &AttributionQuery,
    draw: &mut dyn FnMut() -> f64,
    tape: &mut Vec<f64>,
    at: usize,
) -> Result<Option<MicroEpsilon>, <L as LedgerStore>::Error>
where
    L: LedgerStore + EventStore<AttributionQuery, Error = <L as LedgerStore>::Error>,
{
    let mut workspace = Workspace::default();
    let (mut fits, mut too_large) = (0, query.epsilon().micro().get());
    while too_large - fits > 1 {
        let middle = MicroEpsilon::new(fits + (too_large - fits) / 2);
        let Ok(epsilon) = Epsilon::new(middle.to_epsilon()) else {
            break;
        };
        let smaller = query.with_epsilon(epsilon);
        run(policy, store, &smaller, draw, tape, &mut workspace)?;
        let epoch = workspace.decision().epochs().nth(at);
        if epoch.is_some_and(|epoch| epoch.fate == Fate::Passed) {
            fits = middle.get();
        } else {
            too_large = middle.get();
        }
    }
    Ok((fits > 0).then_some(MicroEpsilon::new(fits)))
}

/// Runs a query with the random numbers of a tape, which grows as more are needed.
fn run<L>(
    policy: &Policy,
    store: &L,
    query: &AttributionQuery,
    draw: &mut dyn FnMut() -> f64,
    tape: &mut Vec<f64>,
    workspace: &mut Workspace<AttributionQuery>,
) -> Result<(), <L as LedgerStore>::Error>
where
    L: LedgerStore + EventStore<AttributionQuery, Error = <L as LedgerStore>::Error>,
{
    let mut draws = Draws::new(draw, tape);
    generate_report(policy, store, store, query, &mut || draws.draw(), workspace)
}
