//! Activation: the API answers for a short time after a user acted (the draft's section
//! Attribution API Activation), without a browser in it.

use bigbird::Timestamp;

use crate::error::NotAllowed;
use crate::site::Site;

/// The activation state of one tab (top-level traversable). Moments are of a monotonic clock, in
/// milliseconds.
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
    /// The attribution activation timestamp.
    activated: Timestamp,
    /// The attribution activation duration.
    duration_ms: i64,
}

impl Activation {
    /// A tab in which nothing happened yet. The duration should be no less than that of transient
    /// activation (5 s in browsers today).
    pub const fn new(duration_ms: i64) -> Self {
        Self {
            enabled: false,
            activated: Timestamp(0),
            duration_ms,
        }
    }

    /// A user interacted with a page of the tab, or started a navigation in the browser's own
    /// interface.
    pub fn activate(&mut self, now: Timestamp) {
        self.activated = now;
    }

    /// The tab was navigated, by a page of `initiator` or by none, to a page of `response`; a
    /// document without a site is same site with nothing. Staying on the site keeps the API
    /// enabled.
    pub fn navigate(&mut self, initiator: Option<&Site>, response: Option<&Site>) {
        if initiator.is_none() || initiator != response {
            self.enabled = false;
        }
    }

    /// Whether a page of the tab may call the API now. The first call after an activation enables
    /// it for as long as the tab stays on the site.
    ///
    /// # Errors
    /// If there was no activation, or too long ago.
    pub fn check(&mut self, now: Timestamp) -> Result<(), NotAllowed> {
        if self.enabled {
            return Ok(());
        }
        if self.activated.0.saturating_add(self.duration_ms) < now.0 {
            return Err(NotAllowed {
                ago_ms: now.0.saturating_sub(self.activated.0),
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
            "the last user activation was 50000 ms ago, at most 5000 ms are allowed"
        );
    }

    /// The draft says that each activation serves at most one site, but its algorithm never uses
    /// the timestamp up: within the duration, a redirect carries it on. We follow the algorithm.
    #[test]
    fn within_the_duration_a_redirect_carries_the_activation_on() {
        let mut tab = Activation::new(5_000);
        tab.activate(Timestamp(10_000));
        assert!(tab.check(Timestamp(10_001)).is_ok());
        tab.navigate(Some(&site("a.example")), Some(&site("b.example")));
        assert!(tab.check(Timestamp(10_002)).is_ok());
    }
}
