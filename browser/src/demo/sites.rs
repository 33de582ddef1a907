//! The sites of the demonstration: which page is where, and which headers it has.

use std::sync::{Mutex, PoisonError};

use serde_json::json;

use super::aggregates::{Aggregates, EPSILON};
use super::http::{HttpAnswer, HttpRequest};
use super::population::{ADS, SHOP};

/// The address of the first page.
pub const GUIDE: &str = "https://guide.example/";

/// The URL of the aggregation service.
pub const SERVICE: &str = "https://agg.example";

/// The number of domains that the attacker has besides its own.
pub(super) const SYBILS: u32 = 12;

const SITES: [&str; 7] = [
    "guide.example",
    "news.example",
    "blog.example",
    SHOP,
    "adtech.example",
    "agg.example",
    "tracker.example",
];

/// The hosts of all sites.
pub(super) fn hosts() -> Vec<String> {
    let sybils = (1..=SYBILS).map(|number| format!("sybil{number}.example"));
    SITES.map(str::to_owned).into_iter().chain(sybils).collect()
}

macro_rules! page {
    ($name:literal) => {
        include_str!(concat!("../../demo/", $name))
    };
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The scripts and styles, which every site has.
const ASSETS: &[(&str, &str, &str)] = &[
    ("/style.css", "text/css; charset=utf-8", page!("style.css")),
    ("/frame.js", SCRIPT, page!("frame.js")),
    ("/ad.js", SCRIPT, page!("ad.js")),
    ("/guide.js", SCRIPT, page!("guide.js")),
    ("/shop.js", SCRIPT, page!("shop.js")),
    ("/results.js", SCRIPT, page!("results.js")),
    ("/sybil.js", SCRIPT, page!("sybil.js")),
    ("/tracker.js", SCRIPT, page!("tracker.js")),
];

/// A picture of one pixel, for responses that matter only for their headers.
const PIXEL: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1\" height=\"1\"/>";

/// The sites, with what they know.
#[derive(Debug)]
pub(super) struct DemoSites {
    pub(super) aggregates: Mutex<Aggregates>,
    /// The name of the rules, which the guide explains.
    pub(super) rules: String,
}

impl DemoSites {
    /// Answers a request to a host, which is one of [`hosts`].
    pub(super) fn answer(&self, host: &str, request: &HttpRequest) -> HttpAnswer {
        let asset = ASSETS.iter().find(|(path, ..)| *path == request.path);
        let answer = match asset {
            Some((_, kind, content)) => HttpAnswer::new(kind, *content),
            None => self.page(host, request),
        };
        // Pages load nothing from anywhere but the sites of the demonstration.
        answer.with_header(
            "Content-Security-Policy",
            "default-src 'self'; frame-src https://adtech.example; \
             img-src 'self' https://adtech.example data:; base-uri 'none'; form-action 'none'",
        )
    }

    fn page(&self, host: &str, request: &HttpRequest) -> HttpAnswer {
        let html = |content: &str| HttpAnswer::new(HTML, content);
        let pixel = || HttpAnswer::new("image/svg+xml", PIXEL);
        match (host, request.path.as_str()) {
            ("guide.example", "/") => html(&page!("guide.html").replace("{{rules}}", &self.rules)),
            ("guide.example", "/facts.json") | (SHOP, "/results.json") => self.facts(),
            ("news.example", "/") => html(page!("news.html")),
            ("blog.example", "/") => html(page!("blog.html")),
            ("adtech.example", "/ad") => html(page!("ad.html")),
            ("adtech.example", "/") => html(page!("adtech.html")),
            // An ad that is saved without any script: the response itself asks for it.
            ("adtech.example", "/pixel.svg") => {
                let index = ADS.iter().position(|ad| *ad == "newsletter").unwrap_or(0);
                let value = format!("histogram-index={index}, conversion-sites=(\"{SHOP}\")");
                pixel().with_header("Save-Impression", value)
            }
            (SHOP, "/") => html(page!("shop.html")),
            (SHOP, "/results") => html(page!("results.html")),
            (SHOP, "/subscribed.svg") => pixel().with_header(
                "Measure-Conversion",
                format!(
                    "aggregation-service=\"{SERVICE}\", histogram-size={}, epsilon={EPSILON:?}, \
                     impression-sites=(\"news.example\" \"blog.example\"), \
                     report-url=\"https://{SHOP}/reports\"",
                    ADS.len()
                ),
            ),
            (SHOP, "/reports") if request.method == "POST" => {
                self.lock().add_own(&request.body);
                HttpAnswer::new("text/plain", "").with_status("201 Created")
            }
            ("agg.example", "/") => html(page!("agg.html")),
            ("tracker.example", "/") => html(page!("tracker.html")),
            (sybil, "/") if sybil.starts_with("sybil") => html(page!("sybil.html")),
            _ => html("<!doctype html><title>Not found</title><p>There is no such page.")
                .with_status("404 Not Found"),
        }
    }

    /// What the guide and the shop's page show, as it is now.
    fn facts(&self) -> HttpAnswer {
        let mut facts = self.lock().facts();
        facts["rules"] = json!(self.rules);
        HttpAnswer::new("application/json", facts.to_string())
    }

    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, Aggregates> {
        self.aggregates
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
