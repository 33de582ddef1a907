//! Sites: registrable domains over https (the draft's section Site Names).

use std::fmt;

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use url::Host;

/// A site: the registrable domain of a host. The scheme is always https.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Site(Box<str>);

/// The treatment of `localhost` and the names below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Localhost {
    /// They are not sites, because different sites on localhost cannot be told apart.
    #[default]
    Refused,
    /// They are sites, for development.
    Allowed,
}

/// Finds the registrable domain of a host. A browser has its own list, which it keeps up to date.
pub trait RegistrableDomains: fmt::Debug + Send + Sync {
    /// The registrable domain of a host, or `None` if the host is a public suffix. The host is in
    /// ASCII and lower case, and does not end in a dot.
    fn registrable_domain<'h>(&self, host: &'h str) -> Option<&'h str>;
}

/// The Public Suffix List that is compiled in, including its private section.
#[cfg(feature = "psl")]
#[derive(Debug, Clone, Copy, Default)]
pub struct PublicSuffixList;

#[cfg(feature = "psl")]
impl RegistrableDomains for PublicSuffixList {
    fn registrable_domain<'h>(&self, host: &'h str) -> Option<&'h str> {
        psl::domain_str(host)
    }
}

impl Site {
    /// The maximum length of a host, in bytes: 253 for a name in the DNS, and one for a final dot.
    /// There is a limit because the names that pages pass are stored.
    pub const MAX_LENGTH: usize = 254;

    /// The site of a host according to the [`PublicSuffixList`]: see
    /// [`parse_with`](Self::parse_with).
    ///
    /// # Errors
    /// If the host has no site.
    #[cfg(feature = "psl")]
    pub fn parse(input: &str, localhost: Localhost) -> Result<Self, SiteError> {
        Self::parse_with(input, localhost, &PublicSuffixList)
    }

    /// The site of a host (the draft's "parse a site").
    ///
    /// The host goes through the WHATWG host parser, which decodes percent-encoding, maps
    /// international names to ASCII, and recognises numbers as addresses. The site is the
    /// registrable domain of the result.
    ///
    /// # Errors
    /// If the input is not a host, is an address or a public suffix, or is longer than
    /// [`Site::MAX_LENGTH`]. Also if it is localhost and that is refused.
    pub fn parse_with(
        input: &str,
        localhost: Localhost,
        domains: &dyn RegistrableDomains,
    ) -> Result<Self, SiteError> {
        let refused = |why| SiteError {
            input: input.chars().take(80).collect(),
            why,
        };
        // The length is checked before parsing, which takes time, and again afterwards, because
        // parsing can lengthen the host.
        if input.len() > 8 * Self::MAX_LENGTH {
            return Err(refused(SiteProblem::TooLong));
        }
        let host = match Host::parse(input) {
            Ok(Host::Domain(host)) => host,
            Ok(Host::Ipv4(_) | Host::Ipv6(_)) => return Err(refused(SiteProblem::Address)),
            Err(_) => ascii_host(input).ok_or_else(|| refused(SiteProblem::NoHost))?,
        };
        if host.len() > Self::MAX_LENGTH {
            return Err(refused(SiteProblem::TooLong));
        }
        // A trailing dot makes a different site, but is not part of the suffix.
        let (name, dot) = match host.strip_suffix('.') {
            Some(name) => (name, "."),
            None => (host.as_str(), ""),
        };
        if name.split('.').any(str::is_empty) {
            return Err(refused(SiteProblem::NoHost));
        }
        if host == "localhost" || host.ends_with(".localhost") {
            return match localhost {
                Localhost::Refused => Err(refused(SiteProblem::Localhost)),
                Localhost::Allowed => Ok(Self(host.into())),
            };
        }
        match domains.registrable_domain(name) {
            Some(domain) => Ok(Self(format!("{domain}{dot}").into())),
            None => Err(refused(SiteProblem::PublicSuffix)),
        }
    }

    /// A site that was stored after it had been parsed.
    pub fn from_stored(site: impl Into<Box<str>>) -> Self {
        Self(site.into())
    }

    /// The registrable domain.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Accepts an ASCII host that is not valid Punycode. The `url` crate refuses such a host, but the
/// URL standard now takes it as it is, and so do browsers.
fn ascii_host(input: &str) -> Option<String> {
    let host = percent_decode_str(input).decode_utf8().ok()?;
    let forbidden = |byte: u8| byte <= b' ' || b"#/:<>?@[\\]^|%\x7f".contains(&byte);
    if !host.is_ascii() || host.bytes().any(forbidden) {
        return None;
    }
    let host = host.to_ascii_lowercase();
    // A host whose last label is a number is an address, or is invalid.
    let last = host.trim_end_matches('.').rsplit('.').next()?;
    let digits = last.strip_prefix("0x").unwrap_or(last);
    let number = match digits.len() == last.len() {
        true => !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()),
        false => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
    };
    (!number).then_some(host)
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A string that is not a site.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{}` is not a site: {why}", input.escape_debug())]
pub struct SiteError {
    input: String,
    why: SiteProblem,
}

impl SiteError {
    /// The beginning of the input that has no site.
    pub fn input(&self) -> &str {
        &self.input
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
enum SiteProblem {
    #[error("it is not a host; use a name such as news.example, without scheme, port or path")]
    NoHost,
    #[error("it is an IP address")]
    Address,
    #[error("it is longer than {} bytes", Site::MAX_LENGTH)]
    TooLong,
    #[error("it is a public suffix")]
    PublicSuffix,
    #[error("localhost is refused unless the configuration allows it")]
    Localhost,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(input: &str) -> Option<String> {
        let site = Site::parse(input, Localhost::Refused).ok()?;
        Some(site.as_str().to_owned())
    }

    #[test]
    fn hosts_are_reduced_to_their_registrable_domain() {
        let cases = [
            ("example.com", "example.com"),
            ("a.b.example.com", "example.com"),
            ("EXAMPLE.com", "example.com"),
            ("www.brand.co.jp", "brand.co.jp"),
            ("x.city.kawasaki.jp", "city.kawasaki.jp"),
            ("a.b.kawasaki.jp", "a.b.kawasaki.jp"),
            ("user.github.io", "user.github.io"),
            ("www.user.github.io", "user.github.io"),
            ("ex%61mple.com", "example.com"),
            ("www.münchen.de", "xn--mnchen-3ya.de"),
            ("pub.example.", "pub.example."),
            ("xn--a.xn--b.EXAMPLE.com", "example.com"),
            ("xn--a%2Eexample.com", "example.com"),
            ("www.pub.example.", "pub.example."),
            ("my-localhost.com", "my-localhost.com"),
        ];
        for (input, expected) in cases {
            assert_eq!(parsed(input).as_deref(), Some(expected), "{input}");
        }
    }

    const NO_HOST: &str =
        "it is not a host; use a name such as news.example, without scheme, port or path";

    #[test]
    fn what_is_no_site_is_refused_with_the_reason() {
        let cases = [
            ("", NO_HOST),
            ("https://example.com", NO_HOST),
            ("example.com:443", NO_HOST),
            (" example.com", NO_HOST),
            ("a..example.com", NO_HOST),
            (".example.com", NO_HOST),
            ("1.2.3.4", "it is an IP address"),
            ("0x7f.1", "it is an IP address"),
            ("xn--a.1", NO_HOST),
            ("xn--a.0x", NO_HOST),
            ("xn--a b.com", NO_HOST),
            ("[::1]", "it is an IP address"),
            ("com", "it is a public suffix"),
            ("co.uk", "it is a public suffix"),
            ("github.io", "it is a public suffix"),
            (
                "localhost",
                "localhost is refused unless the configuration allows it",
            ),
            (
                "foo.localhost",
                "localhost is refused unless the configuration allows it",
            ),
        ];
        for (input, why) in cases {
            let error = Site::parse(input, Localhost::Refused).unwrap_err();
            assert_eq!(error.to_string(), format!("`{input}` is not a site: {why}"));
        }
    }

    #[test]
    fn hosts_have_an_end() {
        let host = |length: usize| format!("{}.com", "a".repeat(length - 4));
        assert!(parsed(&host(254)).is_some());
        let error = Site::parse(&host(2_000_000), Localhost::Refused).unwrap_err();
        let shown = error.to_string();
        assert!(
            shown.len() < 200 && shown.ends_with("it is longer than 254 bytes"),
            "{shown}"
        );
        assert!(parsed(&host(255)).is_none());
    }

    #[test]
    fn localhost_is_allowed_for_development() {
        for host in ["localhost", "a.localhost", "b.a.localhost"] {
            let site = Site::parse(host, Localhost::Allowed).unwrap();
            assert_eq!(site.as_str(), host);
        }
    }
}
