//! Activation: a page may begin to use the API only shortly after the user acted (the draft's
//! section Attribution API Activation). This module does not depend on a browser.

use bigbird::Timestamp;

use crate::error::NotAllowed;
use crate::site::Site;

/// The activation state of one tab (top-level traversable). Moments are those of a monotonic clock,
/// in milliseconds.
///
/// ```
/// use bigbird::Timestamp;
/// use bigbird_user_agent::Activation;
///
/// let mut tab = Activation::new(5_000);
/// assert!(tab.check(Timestamp(9_000)).is_err());
/// tab.activate(Timestamp(10_000)); // a click
/// assert!(tab.check(Timestamp(12_000)).is_ok()); // the first call enables the page
/// assert!(tab.check(Timestamp(99_000)).is_ok()); // for as long as it stays
/// tab.navigate(None, None); // to another site
/// assert!(tab.check(Timestamp(99_001)).is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Activation {
    /// The attribution enabled flag.
    enabled: bool,
    /// The attribution activation timestamp, if there was an activation.
    activated: Option<Timestamp>,
    /// The attribution activation duration.
    duration_ms: i64,
}

impl Activation {
    /// A tab in which nothing has happened yet. The duration should not be shorter than that of
    /// transient activation (5 s in browsers today).
    pub const fn new(duration_ms: i64) -> Self {
        Self {
            enabled: false,
            activated: None,
            duration_ms,
        }
    }

    /// A tab that was stored: whether the API [is enabled](Self::is_enabled) in it, and when it was
    /// last [activated](Self::activated).
    pub const fn restore(duration_ms: i64, enabled: bool, activated: Option<Timestamp>) -> Self {
        Self {
            enabled,
            activated,
            duration_ms,
        }
    }

    /// True if a page of the tab has called the API, and the tab stayed on its site since.
    pub const fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// The moment of the last activation, if there was one.
    pub const fn activated(&self) -> Option<Timestamp> {
        self.activated
    }

    /// Notes that the user interacted with a page of the tab, or started a navigation in the
    /// browser's own interface.
    pub fn activate(&mut self, now: Timestamp) {
        self.activated = Some(now);
    }

    /// Notes that the tab was navigated to a page of `response`. `initiator` is the site of the
    /// page that started the navigation, if a page did. Staying on the site keeps the API enabled.
    /// A document without a site is not same-site with any other.
    pub fn navigate(&mut self, initiator: Option<&Site>, response: Option<&Site>) {
        if initiator.is_none() || initiator != response {
            self.enabled = false;
        }
    }

    /// Checks that a page of the tab may call the API now. The first call after an activation
    /// enables the API for as long as the tab stays on the site.
    ///
    /// # Errors
    /// If there was no activation, or the last one was too long ago.
    pub fn check(&mut self, now: Timestamp) -> Result<(), NotAllowed> {
        if self.enabled {
            return Ok(());
        }
        // The draft begins with an activation in 1970 (notes on the draft, row 22).
        let activated = self.activated.unwrap_or(Timestamp(0));
        if activated.0.saturating_add(self.duration_ms) < now.0 {
            let ago = |at: Timestamp| now.0.saturating_sub(at.0);
            return Err(NotAllowed {
                ago_ms: self.activated.map(ago),
                allowed_ms: self.duration_ms,
            });
        }
        self.enabled = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::Localhost;

    fn site(name: &str) -> Site {
        Site::parse(name, Localhost::Refused).unwrap()
    }

    #[test]
    fn an_activation_lasts_its_duration_and_survives_navigation() {
        let mut tab = Activation::new(5_000);
        tab.activate(Timestamp(10_000));
        tab.navigate(Some(&site("news.example")), Some(&site("shop.example")));
        assert!(tab.check(Timestamp(15_000)).is_ok());
        tab.navigate(Some(&site("shop.example")), Some(&site("www.shop.example")));
        assert!(tab.check(Timestamp(60_000)).is_ok(), "same site");
        tab.navigate(Some(&site("shop.example")), Some(&site("other.example")));
        let error = tab.check(Timestamp(60_000)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the last user activation was 50000 ms ago, but at most 5000 ms are allowed"
        );
    }

    /// The draft says that each activation serves at most one site, but its algorithm never
    /// consumes the timestamp: within the duration, an activation survives a redirect. We follow
    /// the algorithm.
    #[test]
    fn within_the_duration_a_redirect_carries_the_activation_on() {
        let mut tab = Activation::new(5_000);
        tab.activate(Timestamp(10_000));
        assert!(tab.check(Timestamp(10_001)).is_ok());
        tab.navigate(Some(&site("a.example")), Some(&site("b.example")));
        assert!(tab.check(Timestamp(10_002)).is_ok());
    }

    #[test]
    fn a_tab_without_activation_is_told_so() {
        let error = Activation::new(5_000).check(Timestamp(10_000)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "there was no user activation, but one within the last 5000 ms is needed"
        );
    }

    #[test]
    fn a_tab_can_be_stored() {
        let mut tab = Activation::new(5_000);
        tab.activate(Timestamp(10_000));
        assert!(tab.check(Timestamp(10_001)).is_ok());
        assert_eq!(
            Activation::restore(5_000, tab.is_enabled(), tab.activated()),
            tab
        );
    }
}
