//! Names of sites: as they are written, or the sites of URLs.

use crate::workload::hash::FastMap;

/// The sites that names stand for.
#[derive(Debug, Clone, Copy)]
pub struct SiteNames {
    /// The site of a URL or a host. None if the name is neither. The default gives the host in
    /// lower case, without its port and a point at the end.
    pub reduce: fn(&str) -> Option<String>,
    /// The names that are reduced.
    pub which: ReducedNames,
}

/// The names that are replaced by the site they stand for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReducedNames {
    /// Names that are URLs.
    #[default]
    Urls,
    /// Every name.
    All,
    /// No name.
    None,
}

impl Default for SiteNames {
    fn default() -> Self {
        Self {
            reduce: host,
            which: ReducedNames::default(),
        }
    }
}

/// The host of a URL or of a name of a host, in lower case, without its port and a point at the
/// end.
pub fn host(name: &str) -> Option<String> {
    let rest = match name.split_once("://") {
        Some((scheme, rest)) if is_web(scheme) => rest,
        Some(_) => return None,
        None => name,
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let host = rest[..end].rsplit('@').next()?;
    let host = match host.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => host,
        _ => host,
    };
    let host = host.trim().trim_end_matches('.').to_lowercase();
    (!host.is_empty()).then_some(host)
}

fn is_web(scheme: &str) -> bool {
    scheme.eq_ignore_ascii_case("https") || scheme.eq_ignore_ascii_case("http")
}

/// True if a name is a URL of the web.
pub(crate) fn is_url(name: &str) -> bool {
    // Nearly all other names are told by their first letter.
    name.starts_with(['h', 'H'])
        && name
            .split_once("://")
            .is_some_and(|(scheme, _)| is_web(scheme))
}

/// The sites of the names in a column.
#[derive(Debug)]
pub(crate) struct SiteCache {
    sites: SiteNames,
    known: FastMap<String, String>,
    /// True if a name was replaced.
    pub(crate) replaced: bool,
}

/// The most names that are remembered.
const REMEMBERED: usize = 1 << 20;

impl SiteCache {
    pub(crate) fn new(sites: SiteNames) -> Self {
        Self {
            sites,
            known: FastMap::default(),
            replaced: false,
        }
    }

    pub(crate) fn site<'s>(&'s mut self, name: &'s str) -> &'s str {
        let stays = match self.sites.which {
            // Each name decides for itself, so the order of rows does not matter.
            ReducedNames::Urls => !is_url(name),
            ReducedNames::All => false,
            ReducedNames::None => true,
        };
        if stays {
            return name;
        }
        if !self.known.contains_key(name) {
            if self.known.len() >= REMEMBERED {
                self.known.clear();
            }
            let site = (self.sites.reduce)(name).unwrap_or_else(|| name.to_owned());
            self.replaced |= site != name;
            self.known.insert(name.to_owned(), site);
        }
        self.known.get(name).map_or(name, String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_names() {
        for (name, expected) in [
            (
                "https://www.Shop.example:8443/a?b#c",
                Some("www.shop.example"),
            ),
            ("http://shop.example.", Some("shop.example")),
            ("SHOP.example", Some("shop.example")),
            ("https://user:word@shop.example?x", Some("shop.example")),
            ("android-app://com.example.app", None),
            ("https://", None),
            ("", None),
        ] {
            assert_eq!(host(name).as_deref(), expected, "{name}");
        }
    }
}
