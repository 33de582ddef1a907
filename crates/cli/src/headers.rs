//! `bigbird headers`: `Save-Impression` and `Measure-Conversion`, checked and put into words.

use std::fmt::Write as _;
use std::io::Read as _;

use bigbird::{Profile, Timestamp};
use bigbird_user_agent::{
    ApiError, ApiHeader, Call, Config, ConversionOptions, Gate, HeaderError, ImpressionOptions,
    header_keys, parse_measure_conversion, parse_save_impression,
};
use serde::Serialize;

use crate::explain::wrapped;
use crate::{CommandError, CommandResult, output, stdio};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each HEADER is a name and a value:

  bigbird headers 'Save-Impression: histogram-index=3, conversion-sites=(\"shop.example\")'
  bigbird headers 'Measure-Conversion: histogram-size=5'    says what is missing

Without HEADER, it reads a response from standard input, as curl prints it. Other headers are
skipped, and several of one name count as one, as in HTTP:

  curl -sI https://shop.example/thanks | bigbird headers --site shop.example

Exit status: 0 if a user agent accepts every header, 1 if it ignores one, 2 if there is none.")]
pub(crate) struct HeadersArgs {
    /// Headers, each with its name, or - for standard input
    #[arg(value_name = "HEADER")]
    headers: Vec<String>,
    /// Host of the top-level page
    #[arg(long, value_name = "HOST", default_value = "page.example")]
    site: String,
    /// Host of the frame or response that sends the header, if it is of another site
    #[arg(long, value_name = "HOST")]
    intermediary: Option<String>,
    /// Aggregation service that the user agent knows [default: any]
    #[arg(long, value_name = "URL")]
    aggregation_service: Vec<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &HeadersArgs) -> CommandResult {
    let found = args.found()?;
    if found.is_empty() {
        return Err(CommandError::misused(
            "there is no Save-Impression or Measure-Conversion header; give one as \
             `Save-Impression: histogram-index=1`"
                .to_owned(),
        ));
    }
    let config = Config::new(Profile::default());
    config
        .site(&args.site)
        .map_err(|error| CommandError::misused(format!("--site: {error}")))?;
    if let Some(host) = &args.intermediary {
        config
            .site(host)
            .map_err(|error| CommandError::misused(format!("--intermediary: {error}")))?;
    }
    let accounts: Vec<HeaderAccount> = found.iter().map(|it| args.check(it)).collect();
    let good = accounts.iter().all(|account| account.problem.is_none());
    let text = match args.json {
        true => output::json(&accounts)?,
        false => {
            let texts: Result<Vec<_>, _> = accounts.iter().map(HeaderAccount::tell).collect();
            texts?.join("\n")
        }
    };
    Ok((text, good))
}

/// A header that was found.
struct FoundHeader {
    header: ApiHeader,
    value: String,
    /// The number of lines that it was given on.
    lines: usize,
}

/// A header, checked.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct HeaderAccount {
    header: &'static str,
    value: String,
    /// True if a user agent does what the header asks for.
    accepted: bool,
    /// The reason why it does not.
    problem: Option<HeaderProblem>,
    /// The header in one sentence.
    meaning: Option<String>,
    /// Every key that the header can have, with its value.
    options: Vec<OptionAccount>,
    notes: Vec<String>,
}

/// The reason why a header is ignored.
#[derive(Debug, Serialize)]
struct HeaderProblem {
    message: String,
    /// Its place in the value, in characters.
    at: Option<usize>,
}

/// One option of a header.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OptionAccount {
    key: &'static str,
    value: String,
    given: bool,
    meaning: &'static str,
}

impl HeadersArgs {
    /// The headers of the arguments, or of standard input.
    fn found(&self) -> Result<Vec<FoundHeader>, CommandError> {
        if self.headers.is_empty() || self.headers == ["-"] {
            let mut text = String::new();
            let read = stdio::input().read_to_string(&mut text);
            read.map_err(|error| CommandError::unreadable(format!("standard input: {error}")))?;
            return Ok(of_response(&text));
        }
        let mut found = Vec::new();
        for given in &self.headers {
            let lines = given.lines().filter(|line| is_header(line)).count();
            if lines > 1 {
                found.extend(of_response(given));
                continue;
            }
            let (name, value) = given.split_once(':').ok_or_else(|| {
                CommandError::misused(format!(
                    "`{given}` has no name; give the header as `Save-Impression: {given}`"
                ))
            })?;
            let header = ApiHeader::from_name(name.trim()).ok_or_else(|| {
                let names = ApiHeader::ALL.map(ApiHeader::name).join(", ");
                CommandError::misused(format!(
                    "unknown header `{}`; use one of: {names}",
                    name.trim()
                ))
            })?;
            found.push(FoundHeader {
                header,
                value: one_line(value),
                lines: 1,
            });
        }
        Ok(found)
    }

    fn check(&self, found: &FoundHeader) -> HeaderAccount {
        let (header, value) = (found.header, found.value.as_str());
        let mut notes = Vec::new();
        if found.lines > 1 {
            notes.push(format!(
                "the {} headers of this name count as one, joined by commas",
                found.lines
            ));
        }
        let keys = header_keys(value.as_bytes());
        for (number, it) in keys.iter().enumerate() {
            if !header.keys().contains(&it.key.as_str()) {
                notes.push(match nearest(&it.key, header.keys()) {
                    Some(known) => format!("`{}` is ignored; did you mean `{known}`?", it.key),
                    None => format!("`{}` is ignored, because the API has no such key", it.key),
                });
            } else if keys[number + 1..].iter().any(|later| later.key == it.key) {
                notes.push(format!(
                    "`{}` is given several times; the last one counts",
                    it.key
                ));
            }
        }
        notes.dedup();
        let given = |key: &str| keys.iter().any(|it| it.key == key);
        let mut account = HeaderAccount {
            header: header.name(),
            value: value.to_owned(),
            accepted: true,
            problem: None,
            meaning: None,
            options: Vec::new(),
            notes,
        };
        let checked = match header {
            ApiHeader::SaveImpression => self.impression(value, &given, &mut account),
            ApiHeader::MeasureConversion => self.conversion(value, &given, &mut account),
        };
        if let Err(refusal) = checked {
            account.accepted = false;
            account.problem = Some(refusal.at(value));
        }
        account
    }

    fn call(&self) -> Call<'_> {
        Call {
            intermediary: self.intermediary.as_deref(),
            ..Call::new(&self.site, Timestamp(0))
        }
    }

    fn impression(
        &self,
        value: &str,
        given: &dyn Fn(&str) -> bool,
        account: &mut HeaderAccount,
    ) -> Result<(), HeaderRefusal> {
        let options = parse_save_impression(value.as_bytes())?;
        let gate = Gate::new(Config::new(Profile::default()));
        let call = gate.impression(&self.call(), &options)?;
        let ImpressionOptions {
            histogram_index,
            match_value,
            conversion_sites,
            conversion_callers,
            lifetime_days,
            priority,
        } = &options;
        let lasts = call.lifetime_days();
        let mut option = |key: &'static str, value: String, meaning: &'static str| {
            account.options.push(OptionAccount {
                key,
                value,
                given: given(key),
                meaning,
            });
        };
        option(
            "histogram-index",
            histogram_index.to_string(),
            "the bucket that gets the credit",
        );
        option(
            "match-value",
            match_value.to_string(),
            "conversions can choose ads by this number",
        );
        option(
            "conversion-sites",
            sites(conversion_sites, "every site"),
            "who may measure the ad",
        );
        option(
            "conversion-callers",
            sites(conversion_callers, "every caller"),
            "who may make the call that measures it",
        );
        option(
            "lifetime-days",
            days(*lifetime_days, lasts),
            "how long the ad can get credit",
        );
        option(
            "priority",
            priority.to_string(),
            "ads of higher priority get credit first",
        );
        account.meaning = Some(format!(
            "An ad on {} is saved for {}. If {} measures a conversion, its credit goes to bucket \
             {histogram_index}.",
            call.site(),
            output::count(lasts.into(), "day"),
            match conversion_sites.as_slice() {
                [] => "any site".to_owned(),
                sites => sites.join(" or "),
            },
        ));
        self.limits(lasts, *lifetime_days, "lifetime-days", account);
        Ok(())
    }

    fn conversion(
        &self,
        value: &str,
        given: &dyn Fn(&str) -> bool,
        account: &mut HeaderAccount,
    ) -> Result<(), HeaderRefusal> {
        let base = match &self.intermediary {
            Some(host) => format!("https://{host}/"),
            None => format!("https://{}/", self.site),
        };
        let base = base.parse().map_err(|_| {
            HeaderRefusal::Header(HeaderError::Value {
                key: "report-url",
                expected: "a URL on this site",
            })
        })?;
        let (options, report_url) = parse_measure_conversion(value.as_bytes(), &base)?;
        let mut config = Config::new(Profile::default());
        let known = match self.aggregation_service.as_slice() {
            [] => std::slice::from_ref(&options.aggregation_service),
            known => known,
        };
        for service in known {
            config = config.with_service(service.clone());
        }
        let call = Gate::new(config).conversion(&self.call(), &options)?;
        let ConversionOptions {
            aggregation_service,
            epsilon,
            histogram_size,
            lookback_days,
            match_values,
            impression_sites,
            impression_callers,
            credit,
            value: worth,
            max_value,
        } = &options;
        let back = call.lookback_days();
        let asked = lookback_days.unwrap_or_else(|| back.into());
        let list = |list: Vec<String>, none: &str| match list.is_empty() {
            true => none.to_owned(),
            false => list.join(" "),
        };
        let mut option = |key: &'static str, value: String, meaning: &'static str| {
            account.options.push(OptionAccount {
                key,
                value,
                given: given(key),
                meaning,
            });
        };
        option(
            "aggregation-service",
            aggregation_service.clone(),
            "who sums the reports: exactly as the browser lists it",
        );
        option(
            "histogram-size",
            histogram_size.to_string(),
            "the number of buckets of the report",
        );
        option(
            "report-url",
            report_url.to_string(),
            "where the browser posts the report",
        );
        option(
            "epsilon",
            epsilon.to_string(),
            "the privacy budget it asks for; less is less accurate",
        );
        option("lookback-days", days(asked, back), "how old the ads may be");
        let values = match_values.iter().map(u32::to_string).collect();
        option(
            "match-values",
            list(values, "all"),
            "only ads with these numbers",
        );
        option(
            "impression-sites",
            sites(impression_sites, "every site"),
            "only ads on these sites",
        );
        option(
            "impression-callers",
            sites(impression_callers, "every caller"),
            "only ads that these sites saved",
        );
        let shares: Vec<String> = credit.iter().map(f64::to_string).collect();
        option(
            "credit",
            shares.join(" "),
            "how the last ads share the value, the newest first",
        );
        option("value", worth.to_string(), "what the conversion is worth");
        option(
            "max-value",
            max_value.to_string(),
            "the most that any conversion can be worth",
        );
        let cost = epsilon * f64::from(*worth) / f64::from(*max_value);
        account.meaning = Some(format!(
            "A conversion on {} worth {worth} of at most {max_value} goes to {} of the last {}. It \
             costs up to {} epsilon in each epoch with an ad that matches.",
            call.site(),
            match credit.len() {
                1 => "the last ad".to_owned(),
                count => format!("the last {count} ads"),
            },
            output::count(back.into(), "day"),
            (cost * 1e6).ceil() / 1e6,
        ));
        if worth == max_value && *max_value == 1 && given("credit") && credit.len() > 1 {
            account.notes.push(
                "a value of 1 cannot be divided, so one of the ads gets all of it, by chance"
                    .to_owned(),
            );
        }
        if self.aggregation_service.is_empty() {
            account.notes.push(format!(
                "a browser that does not list {aggregation_service} refuses this with a \
                 ReferenceError"
            ));
        }
        self.limits(back, asked, "lookback-days", account);
        Ok(())
    }

    /// Notes a number of days that the user agent makes smaller.
    fn limits(&self, most: u32, asked: u64, key: &str, account: &mut HeaderAccount) {
        if u64::from(most) < asked {
            account.notes.push(format!(
                "`{key}` is {asked}, but a browser uses at most {most}"
            ));
        }
    }
}

/// The reason why a header is ignored.
enum HeaderRefusal {
    /// It does not parse.
    Header(HeaderError),
    /// The call that it makes is invalid.
    Call(ApiError),
}

impl From<HeaderError> for HeaderRefusal {
    fn from(error: HeaderError) -> Self {
        Self::Header(error)
    }
}

impl From<ApiError> for HeaderRefusal {
    fn from(error: ApiError) -> Self {
        Self::Call(error)
    }
}

impl HeaderRefusal {
    /// The problem, with its place in the value.
    fn at(&self, value: &str) -> HeaderProblem {
        let keys = header_keys(value.as_bytes());
        let place = |key: &str| {
            let found = keys.iter().rev().find(|it| it.key == key);
            found.map(|it| it.at)
        };
        let (message, at) = match self {
            Self::Header(error) => {
                let at = match error {
                    HeaderError::Syntax { at, .. } => *at,
                    HeaderError::Value { key, .. } => {
                        place(key).map(|at| value_after(value, at, key))
                    }
                    _ => None,
                };
                let message = match error {
                    // The caret shows the place.
                    HeaderError::Syntax { why, at: Some(at) } => {
                        let told = why.trim_end_matches(&format!(" at index {at}"));
                        format!("the value is not a structured-field dictionary: {told}")
                    }
                    other => other.to_string(),
                };
                (message, at)
            }
            Self::Call(error) => {
                let at = match error {
                    ApiError::RangeError(error) => {
                        // The name of an option, or words that end with it.
                        let option = error.option().rsplit(' ').next().unwrap_or_default();
                        let key = kebab(option);
                        place(&key).map(|at| value_after(value, at, &key))
                    }
                    ApiError::ReferenceError { service } => value.find(service.as_str()),
                    ApiError::SyntaxError(error) => value.find(error.input()),
                    _ => None,
                };
                (error.to_string(), at)
            }
        };
        HeaderProblem {
            message,
            at: at.map(|at| characters(value, at)),
        }
    }
}

/// The number of characters before a byte.
fn characters(value: &str, at: usize) -> usize {
    value
        .char_indices()
        .take_while(|(before, _)| *before < at)
        .count()
}

/// The place of the value of a key.
fn value_after(value: &str, at: usize, key: &str) -> usize {
    let after = at + key.len();
    match value.as_bytes().get(after) {
        Some(b'=') => after + 1,
        _ => at,
    }
}

/// The name of an option as a key, such as `histogram-index`.
fn kebab(option: &str) -> String {
    let mut key = String::new();
    for letter in option.chars() {
        if letter.is_ascii_uppercase() {
            key.push('-');
        }
        key.push(letter.to_ascii_lowercase());
    }
    key
}

/// The known key that a key was probably meant to be.
fn nearest(key: &str, known: &'static [&'static str]) -> Option<&'static str> {
    let letters = |key: &str| key.replace(['-', '_'], "").to_lowercase();
    let distance = |other: &&&'static str| edits(&letters(key), &letters(other));
    let nearest = known.iter().min_by_key(distance)?;
    (distance(&nearest) <= 2).then_some(*nearest)
}

/// The number of letters to insert, delete or replace to make one word the other.
fn edits(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, a) in from.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (to_at, b) in to.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[to_at + 1];
            row[to_at + 1] = replaced.min(diagonal + 1).min(row[to_at] + 1);
        }
    }
    row[to.len()]
}

/// The names of sites, or words for none.
fn sites(sites: &[String], none: &str) -> String {
    match sites {
        [] => none.to_owned(),
        sites => sites.join(" "),
    }
}

/// A number of days, and the one that is used instead if that is smaller.
fn days(asked: u64, used: u32) -> String {
    match asked > u64::from(used) {
        true => format!("{used} (asked: {asked})"),
        false => asked.to_string(),
    }
}

/// A value on one line, as HTTP transports it.
fn one_line(value: &str) -> String {
    let lines: Vec<&str> = value.lines().map(str::trim).collect();
    lines.join(" ").trim().to_owned()
}

/// True if a line of a response begins a header of the API.
fn is_header(line: &str) -> bool {
    header_line(line).is_some()
}

/// A header of the API on a line of a response. `curl -v` puts `< ` before each line.
fn header_line(line: &str) -> Option<(ApiHeader, &str)> {
    let line = line.strip_prefix("< ").unwrap_or(line);
    let (name, value) = line.split_once(':')?;
    Some((ApiHeader::from_name(name.trim())?, value.trim()))
}

/// The headers of the API in a response. Those of one name count as one.
fn of_response(text: &str) -> Vec<FoundHeader> {
    let mut found: Vec<FoundHeader> = Vec::new();
    let mut last: Option<usize> = None;
    for line in text.lines() {
        if line.starts_with([' ', '\t']) {
            // A header may go on in the next line.
            if let Some(at) = last {
                found[at].value.push(' ');
                found[at].value.push_str(line.trim());
            }
            continue;
        }
        last = header_line(line).map(|(header, value)| {
            match found.iter().position(|it| it.header == header) {
                Some(at) => {
                    found[at].value.push_str(", ");
                    found[at].value.push_str(value);
                    found[at].lines += 1;
                    at
                }
                None => {
                    found.push(FoundHeader {
                        header,
                        value: value.to_owned(),
                        lines: 1,
                    });
                    found.len() - 1
                }
            }
        });
    }
    found
}

impl HeaderAccount {
    fn tell(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        writeln!(text, "{}: {}", self.header, self.value)?;
        if let Some(problem) = &self.problem {
            if let Some(at) = problem.at {
                let column = self.header.len() + 2 + at;
                // A width in a format string must fit into 16 bits, and a header need not.
                writeln!(text, "{}^", " ".repeat(column))?;
            }
            writeln!(text, "ignored by user agents: {}", problem.message)?;
        }
        if let Some(meaning) = &self.meaning {
            writeln!(text, "{}", wrapped(&format!("accepted: {meaning}"), ""))?;
        }
        let width = |of: fn(&OptionAccount) -> &str| {
            let widths = self.options.iter().map(|it| of(it).chars().count());
            widths.max().unwrap_or(0).min(40)
        };
        let (keys, values) = (width(|it| it.key), width(|it| &it.value));
        for option in &self.options {
            let given = if option.given { "       " } else { "default" };
            writeln!(
                text,
                "  {:<keys$}  {:<values$}  {given}  {}",
                option.key, option.value, option.meaning
            )?;
        }
        for note in &self.notes {
            text.push_str(&wrapped(&format!("note: {note}"), ""));
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_read_as_they_are_pasted() {
        let found = of_response(
            "HTTP/2 200\r\nserver: x\r\n< save-impression: histogram-index=1,\r\n  priority=2\r\n\
             Measure-Conversion: value=1\r\nSave-Impression: match-value=3\r\n\r\n",
        );
        let told: Vec<_> = found
            .iter()
            .map(|it| (it.header, it.value.as_str(), it.lines))
            .collect();
        assert_eq!(
            told,
            [
                (
                    ApiHeader::SaveImpression,
                    "histogram-index=1, priority=2, match-value=3",
                    2
                ),
                (ApiHeader::MeasureConversion, "value=1", 1),
            ]
        );
    }

    #[test]
    fn typing_mistakes_find_their_key() {
        let keys = ApiHeader::SaveImpression.keys();
        for (key, expected) in [
            ("histogram_index", Some("histogram-index")),
            ("histogramindex", Some("histogram-index")),
            ("conversion-site", Some("conversion-sites")),
            ("lifetime", None),
            ("x", None),
        ] {
            assert_eq!(nearest(key, keys), expected, "{key}");
        }
    }
}
