//! The grammar of scripts: steps refer to earlier ones, and limits are small enough to be reached.

use std::num::NonZeroU32;

use bigbird::{DepletedSites, FilterKind, Profile, SiteCharging};

use super::dice::SearchDice;
use super::{Ingredients, Tactics};
use crate::script::{
    AskTerms, ClearHistory, Create, Credit, DAY, HOUR, Measure, Save, Scope, Script, ScriptCall,
    ScriptSetup, Share, SiteNumber, Step,
};

/// The impression sites, conversion sites and intermediaries of a script. There are few, so that
/// steps meet.
const IMPRESSION_SITES: [SiteNumber; 3] = [0, 1, 2];
const CONVERSION_SITES: [SiteNumber; 3] = [3, 4, 5];
const INTERMEDIARIES: [SiteNumber; 2] = [6, 7];
/// The user actions. The user agent numbers those from 4 on.
const ACTIONS: u16 = 7;

/// Writes scripts.
pub(crate) struct Grammar<'d> {
    pub(crate) dice: &'d mut SearchDice,
    pub(crate) ingredients: Ingredients,
    pub(crate) tactics: Tactics,
}

impl Grammar<'_> {
    /// A new script.
    pub(crate) fn script(&mut self) -> Script {
        let mut script = Script {
            setup: self.setup(),
            x: self.dice.below(3),
            clock_steps_back: self.ingredients.clock_steps_back,
            tape: self.dice.any() >> 40,
            steps: Vec::new(),
        };
        let shares = script.setup.profile != Profile::W3cDraft && self.dice.chance(35);
        let steps = match shares {
            true => self.dice.below(3),
            false => 3 + self.dice.below(10),
        };
        if shares {
            self.shared_conversions(&mut script);
        } else if self.dice.chance(60) {
            // Impressions in a few consecutive epochs, which a lookback can span.
            for epoch in 0..1 + self.dice.below(3) {
                let epoch = i64::try_from(epoch).unwrap_or(0);
                let hours = self.dice.pick(&[1, 5]);
                let at = epoch * script.setup.epoch_ms() + hours * HOUR;
                script.steps.push(Step::Clock(at));
                let save = self.save(&script);
                script.steps.push(Step::Call(ScriptCall::Save(save)));
            }
            if self.dice.chance(40) {
                // Late in the epoch, so that a lookback of a day stays within it, and early enough
                // that it reaches what was saved before.
                let now = last_moment(&script);
                let begin = script.setup.epoch(now) * script.setup.epoch_ms();
                script.steps.push(Step::Clock(begin + 25 * HOUR));
            }
        }
        for _ in 0..steps {
            let step = self.step(&script);
            script.steps.push(step);
        }
        script
    }

    /// Impressions of intermediaries in consecutive epochs, shared conversions in between, and
    /// shares of them at the end.
    fn shared_conversions(&mut self, script: &mut Script) {
        let queriers = INTERMEDIARIES;
        if self.dice.chance(60) {
            // The querier budgets and the global budget alone, so that more requests get through.
            script.setup.impression_site_quota = None;
            script.setup.conversion_site_quota = None;
            script.setup.user_action_budget = None;
            script.setup.domain_cap = None;
        }
        if self.dice.chance(50) {
            script.setup.max_objects = 1 + self.dice.below(2);
        }
        let epochs = self.dice.pick(&[1_u8, 2, 2, 3, 3, 3]);
        if self.dice.chance(50) {
            script.x = usize::from(epochs - 1);
        }
        let in_turn = self.dice.chance(50);
        for epoch in 0..epochs {
            let hours = self.dice.pick(&[1, 5, 25]);
            let begin = i64::from(epoch) * script.setup.epoch_ms();
            script.steps.push(Step::Clock(begin + hours * HOUR));
            let mut save = self.save(script);
            if in_turn {
                save.intermediary = Some(queriers[usize::from(epoch) % queriers.len()]);
            } else if self.dice.chance(80) {
                save.intermediary = Some(self.dice.pick(&queriers));
            }
            if self.dice.chance(80) {
                save.lifetime_days = 30;
                save.conversion_sites.clear();
                save.conversion_callers.clear();
            }
            let site = save.site;
            script.steps.push(Step::Call(ScriptCall::Save(save)));
            if self.dice.chance(40) {
                // A querier uses up what it has here, or some of it.
                let mut measure = self.measure(script);
                measure.intermediary = Some(self.dice.pick(&queriers));
                if self.dice.chance(70) {
                    measure.scope = Scope {
                        impression_sites: vec![site],
                        ..Scope::default()
                    };
                }
                let capacity = script.setup.capacity(FilterKind::QuerierBudget);
                if let Some(capacity) = capacity.filter(|_| self.tactics.boundary_values)
                    && self.dice.chance(70)
                {
                    measure.terms.epsilon = capacity;
                    measure.lookback_days = script.setup.max_lookback_days;
                }
                script.steps.push(Step::Call(ScriptCall::Measure(measure)));
            }
            if self.dice.chance(if epoch + 1 == epochs { 60 } else { 25 }) {
                let create = self.create(script);
                script.steps.push(Step::Call(ScriptCall::Create(create)));
            }
        }
        if self.dice.chance(25) {
            script.steps.push(Step::Clock(self.moment(script)));
        }
        if script.shared_terms().is_empty() || self.dice.chance(50) {
            let mut create = self.create(script);
            if self.dice.chance(70) {
                create.measure.scope = Scope::default();
                create.measure.lookback_days = script.setup.max_lookback_days;
            }
            script.steps.push(Step::Call(ScriptCall::Create(create)));
        }
        if self.dice.chance(35) {
            let moment = match self.tactics.boundary_values && self.dice.chance(40) {
                true => self.left_lookback(script),
                false => self.moment(script),
            };
            script.steps.push(Step::Clock(moment));
        }
        if self.dice.chance(15) {
            script.steps.push(Step::Maintain);
        }
        if self.dice.chance(50) {
            // Every participant takes what it saved.
            let object = script.shared_terms().len() - 1;
            for querier in queriers {
                let action = self.action();
                script.steps.push(Step::Call(ScriptCall::Share(Share {
                    object,
                    querier,
                    action,
                    buckets: 3,
                    scope: Scope {
                        impression_callers: vec![querier],
                        ..Scope::default()
                    },
                })));
            }
            return;
        }
        for _ in 0..1 + self.dice.below(3) {
            let share = self.share(script);
            script.steps.push(Step::Call(share));
        }
    }

    /// Something that may make a manager forget: clearing, upkeep, a restart, a crash, other rules
    /// to and fro.
    pub(crate) fn disturbance(&mut self, script: &Script) -> Vec<Step> {
        let now = last_moment(script);
        let far = now + 20 * script.setup.epoch_ms();
        let mut kinds = 2;
        if self.ingredients.user_agent {
            kinds += 3;
        }
        match self.dice.below(kinds) {
            0 => vec![Step::ClearHistory(ClearHistory {
                sites: Vec::new(),
                forget_visits: true,
            })],
            1 if script.clock_steps_back => {
                vec![Step::Clock(far), Step::Maintain, Step::Clock(now)]
            }
            1 => vec![Step::Maintain],
            2 => vec![Step::Restart],
            3 => vec![Step::Crash],
            _ => [true, false]
                .map(|others| Step::ChangeRules { others })
                .to_vec(),
        }
    }

    /// Capacities worth one to four requests, and limits that a few steps reach.
    fn setup(&mut self) -> ScriptSetup {
        // With capacities of a few µε, many requests hit a boundary by chance.
        let unit = match self.tactics.boundary_values {
            true => self.dice.pick(&[1_u64, 3, 1000, 400_000, 1_000_000]),
            false => self.dice.pick(&[1000, 400_000, 1_000_000]),
        };
        let mut capacity = || Some(unit * (1 + self.dice.below(4) as u64));
        let mut setup = ScriptSetup {
            profile: self.ingredients.profile,
            querier_budget: capacity(),
            global_budget: capacity(),
            impression_site_quota: capacity(),
            conversion_site_quota: capacity(),
            ..ScriptSetup::default()
        };
        let dice = &mut *self.dice;
        for quota in [
            &mut setup.querier_budget,
            &mut setup.impression_site_quota,
            &mut setup.conversion_site_quota,
        ] {
            if dice.chance(40) {
                *quota = None;
            }
        }
        if setup.profile == Profile::BigBird {
            if dice.chance(20) {
                setup.user_action_budget = Some(unit * (1 + dice.below(3) as u64));
            }
            setup.site_charging = dice.pick(&[
                SiteCharging::Full,
                SiteCharging::Full,
                SiteCharging::Paper,
                SiteCharging::Uniform,
            ]);
            if dice.chance(30) {
                setup.depleted_sites = DepletedSites::DropSite;
            }
            let caps = [None, None, NonZeroU32::new(1), NonZeroU32::new(2)];
            setup.domain_cap = dice.pick(&caps);
        }
        if dice.chance(25) {
            let limits = [1, 2, 3].map(|limit| NonZeroU32::new(limit).unwrap_or(NonZeroU32::MIN));
            setup.units_per_epoch = dice.pick(&limits);
        }
        if dice.chance(25) {
            setup.relevant_per_epoch = dice.pick(&[1, 2]);
        }
        if dice.chance(40) {
            setup.max_objects = 1 + dice.below(3);
        }
        if dice.chance(10) {
            setup.max_shares = 1 + dice.below(2);
        }
        if dice.chance(30) {
            setup.names_before_upkeep = dice.below(4);
        }
        if dice.chance(15) {
            setup.conversions_at_once = dice.pick(&[1, 2]);
        }
        setup
    }

    /// A step after the steps of a script.
    pub(crate) fn step(&mut self, script: &Script) -> Step {
        let agent = self.ingredients.user_agent;
        // A script that has shared conversions gets more steps that use them, and some scripts have
        // none.
        let created = script.shared_terms().len();
        let sharing = match created {
            0 => usize::from(self.dice.chance(35)) * 8,
            _ => 16,
        };
        let together = usize::from(agent) * 5;
        let rare = if agent { 10 } else { 6 };
        let kind = self.weighted(&[10, 14, 9, sharing, together, rare]);
        match kind {
            0 => Step::Call(ScriptCall::Save(self.save(script))),
            1 => Step::Call(ScriptCall::Measure(self.measure(script))),
            2 => Step::Clock(self.moment(script)),
            3 => match self.dice.chance(65) {
                true => Step::Call(self.share(script)),
                false => Step::Call(ScriptCall::Create(self.create(script))),
            },
            4 => {
                let calls = 2 + self.dice.below(2);
                let mut calls: Vec<ScriptCall> = (0..calls).map(|_| self.call(script)).collect();
                // The handle of a shared conversion comes with its answer, so no share of it can
                // arrive at the same moment.
                calls.retain(|call| !matches!(call, ScriptCall::Create(_)));
                Step::Together(calls)
            }
            _ => self.rare_step(),
        }
    }

    /// A step that pages do not make.
    fn rare_step(&mut self) -> Step {
        match self
            .dice
            .below(if self.ingredients.user_agent { 10 } else { 6 })
        {
            0 => Step::ClearSite(self.any_site()),
            1 | 2 => Step::ClearHistory(ClearHistory {
                sites: match self.dice.chance(60) {
                    true => Vec::new(),
                    false => vec![self.any_site()],
                },
                forget_visits: self.dice.chance(70),
            }),
            3 => Step::Enable(self.dice.chance(60)),
            4 | 5 => Step::Maintain,
            6 => Step::Idle,
            7 => Step::Restart,
            8 => Step::Crash,
            _ => Step::ChangeRules {
                others: self.dice.chance(60),
            },
        }
    }

    /// An index, with a probability in proportion to its weight.
    fn weighted(&mut self, weights: &[usize]) -> usize {
        let mut left = self.dice.below(weights.iter().sum());
        for (at, weight) in weights.iter().enumerate() {
            if left < *weight {
                return at;
            }
            left -= weight;
        }
        0
    }

    pub(crate) fn call(&mut self, script: &Script) -> ScriptCall {
        if self.dice.chance(20) {
            return ScriptCall::Save(self.save(script));
        }
        let sharing = if script.shared_terms().is_empty() {
            10
        } else {
            50
        };
        match self.dice.chance(sharing) {
            true => self.share(script),
            false => ScriptCall::Measure(self.measure(script)),
        }
    }

    fn any_site(&mut self) -> SiteNumber {
        let number = self.dice.below(8);
        SiteNumber::try_from(number).unwrap_or(0)
    }

    fn action(&mut self) -> u16 {
        let number = self.dice.below(ACTIONS.into());
        u16::try_from(number).unwrap_or(0)
    }

    fn save(&mut self, script: &Script) -> Save {
        // Half of the saves repeat an earlier one, by the same or another user action.
        let earlier: Vec<&Save> = script
            .calls()
            .filter_map(|call| match call {
                ScriptCall::Save(save) => Some(save),
                _ => None,
            })
            .collect();
        if !earlier.is_empty() && self.dice.chance(40) {
            let mut save = self.dice.pick(&earlier).clone();
            if self.dice.chance(70) {
                save.action = self.action();
            }
            if self.dice.chance(30) {
                save.bucket = u32::try_from(self.dice.below(3)).unwrap_or(0);
            }
            return save;
        }
        let dice = &mut *self.dice;
        let mut some = |sites: &[SiteNumber], percent| match dice.chance(percent) {
            true => vec![dice.pick(sites)],
            false => Vec::new(),
        };
        let conversion_sites = some(&CONVERSION_SITES, 10);
        let conversion_callers = some(&[3, 4, 5, 6, 7], 10);
        let intermediary = some(&INTERMEDIARIES, 50).pop();
        Save {
            site: dice.pick(&IMPRESSION_SITES),
            intermediary,
            action: self.action(),
            bucket: u32::try_from(self.dice.below(3)).unwrap_or(0),
            match_value: u32::from(self.dice.chance(20)),
            priority: i32::from(self.dice.chance(10)),
            lifetime_days: self.dice.pick(&[30, 30, 30, 1, 2]),
            conversion_sites,
            conversion_callers,
        }
    }

    fn scope(&mut self) -> Scope {
        let dice = &mut *self.dice;
        match dice.below(10) {
            0 | 1 => Scope {
                impression_sites: vec![dice.pick(&IMPRESSION_SITES)],
                ..Scope::default()
            },
            2 => Scope {
                impression_callers: vec![dice.pick(&INTERMEDIARIES)],
                ..Scope::default()
            },
            3 => Scope {
                match_values: vec![u32::from(dice.chance(50))],
                ..Scope::default()
            },
            _ => Scope::default(),
        }
    }

    /// An amount to ask for. With boundary values, it is often what a capacity can just pay, in a
    /// window of one epoch or of several.
    fn epsilon(&mut self, setup: &ScriptSetup) -> u64 {
        let dice = &mut *self.dice;
        let capacities: Vec<u64> = FilterKind::ALL
            .into_iter()
            .filter_map(|kind| setup.capacity(kind))
            .collect();
        let largest = capacities.iter().copied().max().unwrap_or(1_000_000);
        if self.tactics.boundary_values && dice.chance(75) {
            let capacity = match capacities.is_empty() {
                true => largest,
                false => dice.pick(&capacities),
            };
            let amounts = [
                capacity,
                2 * capacity,
                1,
                2,
                capacity.div_ceil(2),
                capacity + 1,
            ];
            return dice.pick(&amounts).max(1);
        }
        let limit = usize::try_from(2 * largest).unwrap_or(usize::MAX);
        1 + dice.below(limit) as u64
    }

    fn terms(&mut self, setup: &ScriptSetup) -> AskTerms {
        let epsilon = self.epsilon(setup);
        let dice = &mut *self.dice;
        let (value, max_value) = dice.pick(&[(1, 1), (1, 1), (1, 1), (1, 2), (2, 3), (3, 3)]);
        let credit = dice.pick(&[Credit::Last, Credit::Last, Credit::Even, Credit::Rising]);
        AskTerms {
            epsilon,
            value,
            max_value,
            credit,
            buckets: dice.pick(&[1, 2, 2, 3]),
        }
    }

    pub(crate) fn measure(&mut self, script: &Script) -> Measure {
        let earlier: Vec<&Measure> = script
            .calls()
            .filter_map(|call| match call {
                ScriptCall::Measure(measure) => Some(measure),
                ScriptCall::Create(create) => Some(&create.measure),
                _ => None,
            })
            .collect();
        if !earlier.is_empty() && self.dice.chance(40) {
            let mut measure = self.dice.pick(&earlier).clone();
            match self.dice.below(5) {
                0 => measure.site = self.dice.pick(&CONVERSION_SITES),
                1 => measure.terms.epsilon = self.epsilon(&script.setup),
                2 => measure.scope = self.scope(),
                3 => measure.lookback_days = self.dice.pick(&[1, 2, 5]),
                _ => {}
            }
            if self.dice.chance(50) {
                measure.action = self.action();
            }
            return measure;
        }
        Measure {
            site: self.dice.pick(&CONVERSION_SITES),
            intermediary: match self.dice.chance(30) {
                true => Some(self.dice.pick(&INTERMEDIARIES)),
                false => None,
            },
            action: self.action(),
            terms: self.terms(&script.setup),
            lookback_days: self.dice.pick(&[1, 1, 2, 5, 5, 5]),
            scope: self.scope(),
        }
    }

    fn create(&mut self, script: &Script) -> Create {
        let mut terms = self.terms(&script.setup);
        if self.dice.chance(50) {
            terms.credit = Credit::Last;
        }
        if self.dice.chance(40) {
            terms.epsilon = self.dice.pick(&[1, 2]);
        }
        Create {
            measure: Measure {
                terms,
                lookback_days: self.dice.pick(&[1, 2, 5, 5, 5]),
                scope: match self.dice.chance(30) {
                    true => self.scope(),
                    false => Scope::default(),
                },
                intermediary: None,
                ..self.measure(script)
            },
            participants: INTERMEDIARIES.to_vec(),
        }
    }

    fn share(&mut self, script: &Script) -> ScriptCall {
        let created = script.shared_terms().len();
        if created == 0 {
            return ScriptCall::Create(self.create(script));
        }
        let querier = self.dice.pick(&INTERMEDIARIES);
        let scope = match self.dice.below(8) {
            0..5 => Scope {
                impression_callers: vec![querier],
                ..Scope::default()
            },
            5 => Scope::default(),
            _ => self.scope(),
        };
        ScriptCall::Share(Share {
            object: match self.dice.chance(70) {
                true => created - 1,
                false => self.dice.below(created),
            },
            querier,
            action: self.action(),
            buckets: self.dice.pick(&[1, 2, 3, 3]),
            scope,
        })
    }

    /// A moment: a little later, another epoch, or an edge.
    pub(crate) fn moment(&mut self, script: &Script) -> i64 {
        let now = last_moment(script);
        let setup = &script.setup;
        let (epoch, length) = (setup.epoch(now), setup.epoch_ms());
        let begin = epoch * length;
        let lookback = i64::from(setup.max_lookback_days) * DAY;
        let dice = &mut *self.dice;
        let later = match dice.below(if self.tactics.boundary_values { 14 } else { 8 }) {
            0 => now + HOUR,
            // Late in the epoch, so that a lookback of a day stays within it.
            1 | 2 => begin + 25 * HOUR,
            3 | 4 => begin + length + HOUR,
            5 => begin + 2 * length + HOUR,
            6 => begin + length + 25 * HOUR,
            7 => begin + lookback + 2 * length,
            // Edges: of the epoch, of the lookback, of an expiry.
            8 => begin + length - dice.pick(&[0, 1]),
            9 => edge(script, dice) + lookback + dice.pick(&[0, 1]),
            10 => edge(script, dice) + DAY + dice.pick(&[0, 1]),
            11 => edge(script, dice) + lookback - length,
            _ => self.left_lookback(script),
        };
        let dice = &mut *self.dice;
        if !script.clock_steps_back || dice.chance(60) {
            return later;
        }
        match dice.below(4) {
            0 => now - length,
            1 => begin - lookback - 2 * length,
            2 => edge(script, dice),
            // Far ahead, as a wrong clock is.
            _ => now + 10 * lookback,
        }
    }
}

impl Grammar<'_> {
    /// A moment at which the epoch of an earlier step has just left the longest lookback.
    fn left_lookback(&mut self, script: &Script) -> i64 {
        let setup = &script.setup;
        let lookback = i64::from(setup.max_lookback_days) * DAY;
        let epoch = setup.epoch(edge(script, self.dice));
        (epoch + 1) * setup.epoch_ms() + lookback + self.dice.pick(&[0, HOUR])
    }
}

/// The moment of an earlier step.
fn edge(script: &Script, dice: &mut SearchDice) -> i64 {
    let moments: Vec<i64> = script
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::Clock(to) => Some(*to),
            _ => None,
        })
        .collect();
    match moments.is_empty() {
        true => 0,
        false => dice.pick(&moments),
    }
}

/// The moment on the clock after the steps of a script.
pub(crate) fn last_moment(script: &Script) -> i64 {
    let mut now = 0;
    for step in &script.steps {
        if let Step::Clock(to) = step
            && (script.clock_steps_back || *to > now)
        {
            now = *to;
        }
    }
    now
}
