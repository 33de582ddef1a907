//! The attacker that takes the most from global budgets.

use bigbird::{
    Arithmetic, Capacity, EpochIndex, Epsilon, Filter, GlobalCharging, MicroEpsilon,
    OwnActionEvents, SaveResult, SiteId,
};

use crate::attack::{
    AttackStage, Attacker, Quotas, SiteVisit, Strategy, Strength, SybilImpression, SybilRequest,
};

/// Takes as much from the global budgets of a device as an attacker with these Sybils can. It knows
/// every balance of every epoch that a request can read. In each user action it leads the user to
/// the Sybils that still can pay, as many as the domain cap admits, and takes from each epoch what
/// is left there:
///
/// * It asks for exactly the ε that the tightest filter still covers. By the rules of the draft, it
///   asks for reports that say nothing, for which its queriers pay nothing.
/// * It tags each impression with its epoch, so that a request reaches one epoch alone. Its window
///   is as short as that epoch allows, and admits its page to no other epochs.
/// * It asks about one impression site at a time, so that no depleted quota makes a request fail,
///   and no rule for charging sites takes more from a quota than the epoch pays.
/// * Every Sybil is embedded in the page of every other, so a page can pay what is left of its
///   conversion-site quota from several querier budgets.
/// * If the domain cap has a place left, it saves an impression on the visited site as well.
///
/// No other attacker takes more, device by device, if both hear of the same visits and own the same
/// Sybils. Epochs have separate filters, impressions and admissions. Within one, honest reports can
/// only use what the attacker left, so taking early never loses. Pages take turns: a fresh page has
/// both quotas in full, and can save the impressions of later user actions. Where an honest report
/// is refused by a hair, other attackers may harm honest sites more while they take less, and the
/// attackers that target the quotas of a single site harm in another way.
#[derive(Debug, Clone, Copy, Default)]
pub struct Strongest;

impl Attacker for Strongest {
    fn name(&self) -> &'static str {
        "strongest"
    }

    fn quotas(&self, strength: &Strength) -> Quotas {
        Quotas {
            impression_sites: strength.sybils.saturating_add(strength.impression_sites),
            conversion_sites: strength.sybils,
        }
    }

    fn strategy(&self, _: &Strength) -> Box<dyn Strategy + '_> {
        Box::new(StrongestStrategy::default())
    }
}

/// What it did on the device.
#[derive(Debug, Default)]
struct StrongestStrategy {
    /// The epochs that requests can read, oldest first. Those from `used` on are kept for their
    /// buffers.
    epochs: Vec<EpochPlan>,
    used: usize,
    /// The page whose turn it is.
    turn: u32,
    /// The pages that are not visited yet in this user action, in turn.
    pages: Vec<u32>,
}

impl Strategy for StrongestStrategy {
    fn begin_device(&mut self) {
        self.used = 0;
        self.turn = 0;
    }

    fn act(&mut self, stage: &mut AttackStage<'_>) {
        if stage.policy().capacities().global_budget == Capacity::Unlimited {
            // There is nothing that everyone shares.
            return;
        }
        let Strength { sybils, visits, .. } = stage.strength();
        let cap = stage.policy().domain_cap().map_or(u32::MAX, u32::from);
        self.begin_action(stage);
        let turn = self.turn % sybils;
        self.pages.clear();
        self.pages.extend((turn..sybils).chain(0..turn));
        for _ in 0..visits.min(cap) {
            let Some(page) = self.next_page(stage) else {
                break;
            };
            self.turn = page + 1;
            if let Some(current) = self.epochs[..self.used].last_mut() {
                current.save(stage, SybilImpression::on(stage.site_of(page)));
            }
            for epoch in &mut self.epochs[..self.used] {
                epoch.take(stage, page);
            }
        }
        // The visited site has a quota, too. The domain cap refuses it if no place is left.
        if let SiteVisit::Impression { site, .. } = stage.visit()
            && let Some(current) = self.epochs[..self.used].last_mut()
        {
            current.save(stage, SybilImpression::embedded(0, site));
        }
    }
}

impl StrongestStrategy {
    /// Makes room for the current epoch, and forgets those that requests cannot read any more.
    fn begin_action(&mut self, stage: &AttackStage<'_>) {
        let now = stage.epoch();
        let earliest = EpochIndex(now.0 - i64::from(stage.lookback_epochs()));
        let epochs = &mut self.epochs[..self.used];
        let old = epochs.iter().take_while(|it| it.epoch < earliest).count();
        epochs.rotate_left(old);
        self.used -= old;
        if self.epochs[..self.used].last().map(|it| it.epoch) != Some(now) {
            if self.used == self.epochs.len() {
                self.epochs.push(EpochPlan::default());
            }
            self.epochs[self.used].begin(stage);
            self.used += 1;
        }
        for epoch in &mut self.epochs[..self.used] {
            epoch.ready = epoch.stock.len();
        }
    }

    /// The page from which most can be taken now. Among equal ones, it prefers those without an
    /// impression, then those with the least left for later, then the one whose turn it is.
    fn next_page(&mut self, stage: &AttackStage<'_>) -> Option<u32> {
        for epoch in &mut self.epochs[..self.used] {
            epoch.limit = epoch.limit(stage);
        }
        let epochs = &self.epochs[..self.used];
        let current = epochs.last()?;
        let rank = |page: u32| {
            let site = stage.site_of(page);
            let (mut gain, mut later) = (0, 0);
            for epoch in epochs {
                let left = epoch.conversion_quotas[page as usize];
                gain += left.min(epoch.limit);
                later += left;
            }
            let fresh = !current.stock.iter().any(|it| it.site == site);
            (gain, fresh, std::cmp::Reverse(later))
        };
        let candidates = self.pages.iter().enumerate();
        let ranked = candidates.map(|(at, &page)| (rank(page), std::cmp::Reverse(at)));
        let useful = ranked.filter(|((gain, fresh, _), _)| *gain > 0 || *fresh);
        let (_, std::cmp::Reverse(at)) = useful.max()?;
        Some(self.pages.remove(at))
    }
}

/// What is left in an epoch, in µε. The filters of Sybils are the attacker's alone.
#[derive(Debug)]
struct EpochPlan {
    epoch: EpochIndex,
    /// The sites on which impressions were saved.
    stock: Vec<Stock>,
    /// The number of those sites that requests can ask about: a user action cannot ask about its
    /// own impressions.
    ready: usize,
    /// What is left in the filters of each Sybil.
    conversion_quotas: Vec<u64>,
    querier_budgets: Vec<u64>,
    /// The most that one page can take now, whatever its quota.
    limit: u64,
}

/// A site with impressions, and what was left of its quota when a request last asked about it.
#[derive(Debug)]
struct Stock {
    site: SiteId,
    left: u64,
}

/// More than any budget, and little enough to add up.
const PLENTY: u64 = 1 << 48;

impl Default for EpochPlan {
    fn default() -> Self {
        Self {
            epoch: EpochIndex(i64::MIN),
            stock: Vec::new(),
            ready: 0,
            conversion_quotas: Vec::new(),
            querier_budgets: Vec::new(),
            limit: 0,
        }
    }
}

impl EpochPlan {
    fn begin(&mut self, stage: &AttackStage<'_>) {
        self.epoch = stage.epoch();
        self.stock.clear();
        let capacities = stage.policy().capacities();
        for (left, capacity) in [
            (
                &mut self.conversion_quotas,
                capacities.conversion_site_quota,
            ),
            (&mut self.querier_budgets, capacities.querier_budget),
        ] {
            let capacity = capacity.amount().map_or(PLENTY, MicroEpsilon::get);
            left.clear();
            left.resize(stage.strength().sybils as usize, capacity.min(PLENTY));
        }
    }

    /// What is left in a filter.
    fn left(&self, stage: &AttackStage<'_>, filter: Filter) -> u64 {
        let left = stage.balance(self.epoch, filter).remaining();
        left.map_or(PLENTY, MicroEpsilon::get).min(PLENTY)
    }

    /// What is left in the filters that pay for every report of this user action.
    fn shared(&self, stage: &AttackStage<'_>) -> u64 {
        let of_action = Filter::UserActionBudget(stage.user_action());
        let global = self.left(stage, Filter::GlobalBudget);
        global.min(self.left(stage, of_action))
    }

    /// The most that one page can take now, whatever its quota.
    fn limit(&self, stage: &AttackStage<'_>) -> u64 {
        let stock: u64 = self.stock[..self.ready].iter().map(|it| it.left).sum();
        let budgets = match self.queriers_pay(stage) {
            true => self.querier_budgets.iter().sum(),
            false => u64::MAX,
        };
        self.shared(stage).min(stock).min(budgets)
    }

    /// True if querier budgets pay for reports of this epoch. By the draft's rule, they pay for
    /// what a report over one epoch says, while the global budget pays for what it could say. Then
    /// the attacker's reports say nothing.
    fn queriers_pay(&self, stage: &AttackStage<'_>) -> bool {
        let single = self.epoch == stage.epoch();
        !(single && stage.policy().global_charging() == GlobalCharging::WorstCase)
    }

    /// Saves an impression on a site that has none in this epoch.
    fn save(&mut self, stage: &mut AttackStage<'_>, impression: SybilImpression) {
        let site = impression.site;
        if self.stock.iter().any(|it| it.site == site) {
            return;
        }
        let says_nothing = stage.policy().global_charging() == GlobalCharging::WorstCase;
        let impression = SybilImpression {
            // Reports of attackers have one bucket, number 0.
            bucket: u32::from(says_nothing),
            match_value: self.tag(),
            ..impression
        };
        if stage.save_impression(&impression) == SaveResult::Kept {
            let left = self.left(stage, Filter::ImpressionSiteQuota(site));
            self.stock.push(Stock { site, left });
            if stage.policy().own_action_events() == OwnActionEvents::Included {
                self.ready = self.stock.len();
            }
        }
    }

    /// The match value of impressions of this epoch.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a window has far fewer epochs than there are tags"
    )]
    fn tag(&self) -> u32 {
        self.epoch.0 as u32
    }

    /// Takes what a page can take.
    fn take(&mut self, stage: &mut AttackStage<'_>, page: u32) {
        loop {
            let ready = &mut self.stock[..self.ready];
            let Some(stock) = ready.iter().position(|it| it.left > 0) else {
                return;
            };
            let pay = self.queriers_pay(stage);
            let payer = |&left: &u64| left > 0 || !pay;
            let Some(payer) = self.querier_budgets.iter().position(payer) else {
                return;
            };
            let budget = if pay {
                self.querier_budgets[payer]
            } else {
                u64::MAX
            };
            let amount = self
                .shared(stage)
                .min(self.conversion_quotas[page as usize])
                .min(self.stock[stock].left)
                .min(budget);
            // Doubles can round a loss up beyond what is left.
            let slack = match stage.policy().arithmetic() {
                Arithmetic::Exact => 0,
                Arithmetic::Double => 2,
            };
            #[expect(clippy::cast_possible_truncation, reason = "there are few Sybils")]
            let payer = payer as u32;
            let thought = self.stock[stock].left;
            let taken = amount > 0
                && (self.ask(stage, page, stock, payer, amount)
                    || self.ask(stage, page, stock, payer, amount.saturating_sub(slack)));
            // Honest reports may have used the quota of a site that is not a Sybil's.
            if !taken && self.stock[stock].left == thought {
                return;
            }
        }
    }

    /// Takes an amount on a page. The quota of `stock` and the budget of `payer` pay it too.
    /// Returns false if nothing was taken.
    fn ask(
        &mut self,
        stage: &mut AttackStage<'_>,
        page: u32,
        stock: usize,
        payer: u32,
        amount: u64,
    ) -> bool {
        let before = self.left(stage, Filter::GlobalBudget);
        let lookback = u16::try_from(stage.epoch().0 - self.epoch.0).unwrap_or(u16::MAX);
        // Over one epoch, a report costs half of what it could cost at worst.
        let individual = stage.policy().global_charging() == GlobalCharging::Individual;
        let factor = if lookback == 0 && individual { 2 } else { 1 };
        let asked = MicroEpsilon::new(amount * factor).to_epsilon();
        let Ok(epsilon) = Epsilon::new(asked.min(Epsilon::MAX)) else {
            return false;
        };
        let [page_site, payer_site] = [page, payer].map(|sybil| stage.site_of(sybil));
        let stock_site = self.stock[stock].site;
        stage.request_report(&SybilRequest {
            conversion_site: page_site,
            impression_sites: &[stock_site],
            match_values: &[self.tag()],
            epsilon,
            lookback_epochs: lookback,
            ..stage.asking(payer)
        });
        let quota = Filter::ImpressionSiteQuota(stock_site);
        self.stock[stock].left = self.left(stage, quota);
        let quota = Filter::ConversionSiteQuota(page_site);
        self.conversion_quotas[page as usize] = self.left(stage, quota);
        let budget = Filter::QuerierBudget(payer_site);
        self.querier_budgets[payer as usize] = self.left(stage, budget);
        self.left(stage, Filter::GlobalBudget) < before
    }
}
