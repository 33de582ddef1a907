//! Requests about the activation of a tab. The extension stores the tab, because its background
//! page does not live long.

use bigbird::Timestamp;
use bigbird_user_agent::protocol::AgentAnswer;
use bigbird_user_agent::{Activation, ApiError, Config};
use serde::Deserialize;
use serde_json::json;

/// Tells what happened in a tab, or asks whether its page may call the API. Moments and the
/// duration are in milliseconds. Fractions are cut off.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ActivationRequest {
    tab: TabForm,
    duration: f64,
    now: f64,
    act: TabAct,
    initiator: Option<String>,
    response: Option<String>,
}

/// A tab, as the extension stores it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TabForm {
    enabled: bool,
    activated: Option<f64>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
enum TabAct {
    /// The user interacts with the tab.
    Activate,
    /// The tab is navigated from a page of `initiator` to one of `response`.
    Navigate,
    /// A page of the tab calls the API.
    Check,
}

impl ActivationRequest {
    pub(crate) fn answer(self, config: &Config) -> AgentAnswer {
        let activated = self.tab.activated.map(|at| Timestamp(whole(at)));
        let mut tab = Activation::restore(whole(self.duration), self.tab.enabled, activated);
        let now = Timestamp(whole(self.now));
        match self.act {
            TabAct::Activate => tab.activate(now),
            TabAct::Navigate => {
                // A host without a site, such as an address, is not same-site with any other.
                let site = |host: &Option<String>| config.site(host.as_deref()?).ok();
                tab.navigate(
                    site(&self.initiator).as_ref(),
                    site(&self.response).as_ref(),
                );
            }
            TabAct::Check => {
                if let Err(error) = tab.check(now) {
                    return AgentAnswer::rejected(&ApiError::from(error));
                }
            }
        }
        let activated = tab.activated().map(|at| at.0);
        let stored = json!({"enabled": tab.is_enabled(), "activated": activated});
        AgentAnswer::done().with("tab", stored)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "larger numbers are clamped"
)]
fn whole(milliseconds: f64) -> i64 {
    milliseconds as i64
}
