//! The JSON protocol: requests, answers, and serving a stream of them.
//!
//! A browser, a native-messaging host, a binding or a test drives a user agent with lines of JSON,
//! which `docs/agent.md` describes. An [`AgentRequest`] is a call, and a [`Player`] makes the call.
//! [`Line`] and [`AgentAnswer`] are what goes over the wire. A [`Scheduler`] decides when calls are
//! taken and answered. [`serve`] answers lines until the input ends. A [`StorelessAgent`] answers
//! pages where there is no store.

mod answer;
mod line;
mod live;
mod player;
mod request;
mod schedule;
mod serve;
mod storeless;

pub use answer::{
    AgentAnswer, ErrorName, Reason, StatusCounts, budget_json, history_json, impression_json,
    rules_json,
};
pub use line::{Line, LineRequest};
pub use player::{PlayResult, Player};
pub use request::{AgentRequest, CallerInput, NumberedCall, QuerierInput};
pub use schedule::{Arrivals, ConversionArrival, Moment, Pace, Scheduler, Ticket};
pub use serve::{ServeOptions, StreamClock, serve};
pub use storeless::StorelessAgent;
