//! What the tests of the user agent have in common.
#![allow(dead_code, reason = "not every test uses all of it")]

use bigbird::{Profile, Timestamp};
use bigbird_user_agent::{Answer, Call, Config, ConversionOptions, Memory, Storage, UserAgent};

pub(crate) const SERVICE: &str = "https://agg.example";

pub(crate) use bigbird_testing::Half;

pub(crate) type Agent = UserAgent<Memory, Half>;

pub(crate) fn agent(profile: Profile) -> Agent {
    let config = Config::new(profile).with_service(SERVICE).for_testing();
    UserAgent::in_memory(config, Half)
}

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp(seconds * 1000)
}

/// What an answer holds.
pub(crate) fn released(answer: Answer) -> Vec<u32> {
    let histogram = answer.report.histogram;
    histogram.expect("it is for testing").buckets().to_vec()
}

/// A conversion by a new user action.
pub(crate) fn measure<S>(
    agent: &mut UserAgent<S, Half>,
    call: &Call<'_>,
    options: &ConversionOptions,
) -> Vec<u32>
where
    S: Storage<Error = std::convert::Infallible>,
{
    let Ok(action) = agent.begin_user_action(call.now);
    let answer = agent.measure_conversion(&call.by(action), options);
    released(answer.expect("a valid call"))
}
