//! Helpers that the tests of the user agent share.
#![allow(dead_code, reason = "each test uses only some of the helpers")]

use bigbird::{Profile, Timestamp};
use bigbird_user_agent::{
    Call, Config, ConversionAnswer, ConversionOptions, MemoryStore, Storage, UserAgent,
};

pub(crate) const SERVICE: &str = "https://agg.example";

pub(crate) use bigbird_testing::FixedRandomness;

pub(crate) type MemoryAgent = UserAgent<MemoryStore, FixedRandomness>;

pub(crate) fn agent(profile: Profile) -> MemoryAgent {
    let config = Config::new(profile).with_service(SERVICE).for_testing();
    UserAgent::in_memory(config, FixedRandomness)
}

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp(seconds * 1000)
}

/// The buckets of an answer's histogram.
pub(crate) fn released(answer: ConversionAnswer) -> Vec<u32> {
    let histogram = answer.report.histogram;
    histogram
        .expect("a histogram, because the config is for testing")
        .buckets()
        .to_vec()
}

/// Measures a conversion that a new user action causes.
pub(crate) fn measure<S>(
    agent: &mut UserAgent<S, FixedRandomness>,
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
