//! The balances of a device's filters.

use std::fmt;

use bigbird::{Balance, Capacity, EpochIndex, Filter, Policies as _};

use super::UserAgent;
use crate::explanation::FilterName;
use crate::randomness::Randomness;
use crate::site::Site;
use crate::storage::{RowPlace, RowSet, Storage, View, ViewRow};

/// One filter of one epoch, with its balance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterBalance {
    /// The index of the epoch, counted from the start of the device's epochs.
    pub epoch: i64,
    /// The filter, which knows its site by number.
    pub filter: Filter,
    /// The site of the filter, if the filter belongs to a site.
    pub site: Option<Site>,
    /// The capacity of the filter, and what it has consumed.
    pub balance: Balance,
}

impl FilterBalance {
    /// A page of the filters that were charged, by epoch and in the order of [`Filter`]: at most
    /// `most` of those after the place `behind`. Also returns the place after which there are more,
    /// if there are more.
    ///
    /// # Errors
    /// If the store failed.
    pub fn page<E>(
        view: &impl View<E>,
        behind: Option<RowPlace>,
        most: usize,
    ) -> Result<(Vec<Self>, Option<RowPlace>), E> {
        let state = view.state()?;
        // Some rows of pruned epochs may not have been removed yet.
        let first = [state.first_epoch.0, i64::MIN, i64::MIN];
        let mut filters = Vec::new();
        let mut visit = |row: ViewRow<'_>| {
            if let ViewRow::Filter(epoch, filter, consumed) = row {
                filters.push((row.place(), epoch, filter, consumed));
            }
        };
        let mut more =
            view.visit_some(RowSet::Filters, behind.max(Some(first)), most, &mut visit)?;
        filters.sort_unstable();
        more |= filters.len() > most;
        filters.truncate(most);
        let last = filters.last().map(|(place, ..)| *place);
        let budget = |(_, epoch, filter, consumed): (RowPlace, EpochIndex, Filter, _)| {
            let policy = state.policy(epoch);
            let capacity = policy.map(|policy| policy.capacities().of(filter.kind()));
            let capacity = capacity.unwrap_or(Capacity::Finite(consumed));
            Ok(Self {
                epoch: epoch.0,
                filter,
                site: match filter.site() {
                    Some(id) => view.site(id)?,
                    None => None,
                },
                balance: Balance { capacity, consumed },
            })
        };
        let budgets: Result<_, _> = filters.into_iter().map(budget).collect();
        Ok((budgets?, last.filter(|_| more)))
    }

    /// Every filter that was charged.
    ///
    /// # Errors
    /// If the store failed.
    pub fn all<E>(view: &impl View<E>) -> Result<Vec<Self>, E> {
        let (budgets, _) = Self::page(view, None, usize::MAX)?;
        Ok(budgets)
    }
}

impl fmt::Display for FilterBalance {
    /// Its name, such as `querier budget of shop.example`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        FilterName(self.filter, self.site.as_ref()).fmt(f)
    }
}

impl<S: Storage, R: Randomness> UserAgent<S, R> {
    /// Every filter that was charged in the epochs that are kept, by epoch and in the order of
    /// [`Filter`], to show to the user.
    ///
    /// # Errors
    /// If the store failed.
    pub fn filter_balances(&mut self) -> Result<Vec<FilterBalance>, S::Error> {
        FilterBalance::all(&self.storage.begin()?)
    }

    /// A page of [`filter_balances`](Self::filter_balances): see [`FilterBalance::page`].
    ///
    /// # Errors
    /// If the store failed.
    pub fn filter_balances_page(
        &mut self,
        behind: Option<RowPlace>,
        most: usize,
    ) -> Result<(Vec<FilterBalance>, Option<RowPlace>), S::Error> {
        FilterBalance::page(&self.storage.begin()?, behind, most)
    }
}
