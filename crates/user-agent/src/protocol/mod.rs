//! The JSON protocol: requests, answers, and serving a stream of them.
//!
//! A browser, a native-messaging host, a binding or a test drives a user agent by lines of JSON;
//! `docs/agent.md` describes them. [`Request`] is a call, [`Player`] makes it, [`Line`] and [`Answer`]
//! are what goes over the wire, [`Scheduler`] says when calls are taken and answered, and [`serve`] answers
//! lines until the input ends.

mod answer;
mod line;
mod live;
mod player;
mod request;
mod schedule;
mod serve;

pub use answer::{Answer, ErrorName, Reason, budget_json, filter_name, rules_json};
pub use line::{Asked, Line};
pub use player::{Outcome, Player};
pub use request::{CallerInput, Numbered, QuerierInput, Request};
pub use schedule::{Arrivals, Moment, Pace, Scheduler, Ticket};
pub use serve::{Serving, StreamClock, serve};
