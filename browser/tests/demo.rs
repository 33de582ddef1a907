//! The demonstration's server, over TLS and through its proxy, as a browser uses it.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bigbird::{Profile, Timestamp};
use bigbird_browser::demo::{DemoOptions, DemoServer, EPSILON, GUIDE, SERVICE, SHOP};
use bigbird_dap::{
    AggregationService, AggregatorKeys, ConfiguredServices, DapSealer, DapVersion, TaskSettings,
};
use bigbird_user_agent::{
    Call, Config, ConversionOptions, ImpressionOptions, SystemRandomness, UserAgent,
};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};

const NOW: Timestamp = Timestamp(1_790_000_000_000);

/// A demonstration, and what its visitor's browser knows.
struct Demo {
    server: DemoServer,
    tls: Arc<ClientConfig>,
    services: ConfiguredServices,
}

/// An answer: status line, headers and body.
struct Answer {
    status: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(it, _)| it == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl Demo {
    fn start() -> Self {
        let keys = AggregatorKeys::generate(1).unwrap();
        let [leader, helper] = keys.each_ref().map(|keys| keys.hpke.recipient().clone());
        let service = AggregationService::new(
            SERVICE,
            TaskSettings::new(DapVersion::default()),
            ("https://leader.example/", leader),
            ("https://helper.example/", helper),
        )
        .unwrap();
        let mut services = ConfiguredServices::new();
        services.insert(service.clone());
        let server = DemoServer::start(DemoOptions {
            port: 0,
            service,
            keys,
            rules: "big-bird".to_owned(),
            people: 30,
            now: NOW,
        })
        .unwrap();
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from(server.certificate().to_vec());
        roots.add(certificate).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self {
            server,
            tls: Arc::new(tls),
            services,
        }
    }

    /// The answer of the proxy to a request for a tunnel, and the connection.
    fn tunnel(&self, to: &str) -> (String, TcpStream) {
        let port = self.server.proxy().port;
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        write!(stream, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").unwrap();
        let mut status = String::new();
        let mut byte = [0];
        while !status.ends_with("\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
            status.push(char::from(byte[0]));
        }
        (status.lines().next().unwrap_or_default().to_owned(), stream)
    }

    /// Sends a request to a site through the proxy. `asked` is its `Host` header.
    fn request(&self, site: &str, asked: &str, method: &str, path: &str, body: &[u8]) -> Answer {
        let (status, stream) = self.tunnel(&format!("{site}:443"));
        assert!(status.contains(" 200 "), "{status}");
        let name = site.to_owned().try_into().unwrap();
        let connection = ClientConnection::new(Arc::clone(&self.tls), name).unwrap();
        let mut stream = StreamOwned::new(connection, stream);
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {asked}\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n"
        )
        .unwrap();
        stream.write_all(body).unwrap();
        let mut stream = BufReader::new(stream);
        let mut line = || {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        };
        let status = line();
        let mut headers = Vec::new();
        while let Some((name, value)) = line().split_once(": ") {
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let mut body = vec![0; length.unwrap().1.parse().unwrap()];
        stream.read_exact(&mut body).unwrap();
        Answer {
            status,
            headers,
            body: String::from_utf8(body).unwrap(),
        }
    }

    fn get(&self, site: &str, path: &str) -> Answer {
        self.request(site, site, "GET", path, b"")
    }

    fn results(&self) -> Value {
        serde_json::from_str(&self.get(SHOP, "/results.json").body).unwrap()
    }

    /// Reports of a device that saw the banner and bought twice, with all budgets of a week.
    fn reports(&self, purchases: i64) -> Vec<Vec<u8>> {
        let sealer = DapSealer::new(self.services.clone());
        let mut config = Config::new(Profile::BigBird);
        config.aggregation_services = sealer.services().protocols();
        let random = SystemRandomness::new().unwrap();
        let mut device = UserAgent::in_memory(config, random).sealing(sealer);
        let click = device.begin_user_action(NOW).unwrap();
        let seen = Call::new("news.example", NOW).by(click);
        device
            .save_impression(&seen, &ImpressionOptions::new(1))
            .unwrap();
        let mut buy = |number| {
            let at = Timestamp(NOW.0 + 1000 * number);
            let click = device.begin_user_action(at).unwrap();
            let bought = Call::new(SHOP, at).by(click);
            let options = ConversionOptions {
                epsilon: EPSILON,
                ..ConversionOptions::new(SERVICE, 5)
            };
            device
                .measure_conversion(&bought, &options)
                .unwrap()
                .report
                .bytes
        };
        (1..=purchases).map(&mut buy).collect()
    }
}

#[test]
fn every_site_is_there_and_nothing_else_is() {
    let demo = Demo::start();
    assert!(GUIDE.contains("guide.example"));
    for (site, path, words) in [
        ("guide.example", "/", "Measure ads without following people"),
        ("news.example", "/", "https://adtech.example/ad?ad=1"),
        ("blog.example", "/", "https://adtech.example/pixel.svg"),
        ("adtech.example", "/ad", "/ad.js"),
        ("adtech.example", "/ad.js", "saveImpression"),
        (SHOP, "/", "/shop.js"),
        (SHOP, "/results", "Which ads led to purchases?"),
        (SHOP, "/style.css", "prefers-color-scheme: dark"),
        ("agg.example", "/", "aggregation service"),
        ("tracker.example", "/", "https://sybil1.example/?do=save"),
        ("sybil1.example", "/?do=save", "/sybil.js"),
        ("sybil12.example", "/", "/sybil.js"),
    ] {
        let answer = demo.get(site, path);
        assert_eq!(answer.status, "HTTP/1.1 200 OK", "{site}{path}");
        assert!(answer.body.contains(words), "{site}{path}: {}", answer.body);
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'self'"), "{policy}");
    }
    assert!(demo.get(SHOP, "/etc/passwd").status.contains("404"));
    for outside in [
        "www.example.org:443",
        "shop.example:80",
        "127.0.0.1:443",
        "sybil13.example:443",
    ] {
        assert!(demo.tunnel(outside).0.contains("502"), "{outside}");
    }
    // Through the tunnel to one site, nobody reaches another.
    let other = demo.request("tracker.example", SHOP, "GET", "/results.json", b"");
    assert!(other.status.contains("421"), "{}", other.status);
}

#[test]
fn headers_save_and_measure() {
    let demo = Demo::start();
    let saved = demo.get("adtech.example", "/pixel.svg");
    let saved = saved.header("save-impression").unwrap().as_bytes();
    let options = bigbird_user_agent::parse_save_impression(saved).unwrap();
    assert_eq!(options.histogram_index, 4);
    let measured = demo.get(SHOP, "/subscribed.svg");
    let measured = measured.header("measure-conversion").unwrap().as_bytes();
    let base = "https://shop.example/subscribed.svg".parse().unwrap();
    let (options, report_url) =
        bigbird_user_agent::parse_measure_conversion(measured, &base).unwrap();
    assert_eq!(report_url.as_str(), "https://shop.example/reports");
    assert_eq!((options.histogram_size, options.epsilon), (5, EPSILON));
    assert_eq!(options.aggregation_service, SERVICE);
    // Ads that the attacker saves do not concern the shop.
    assert_eq!(options.impression_sites, ["news.example", "blog.example"]);
}

#[test]
fn uploaded_reports_are_summed_noised_and_counted_once() {
    let demo = Demo::start();
    // The third purchase finds the budget of the week spent: its report is null.
    for report in demo.reports(3) {
        let answer = demo.request(SHOP, SHOP, "POST", "/reports", &report);
        assert!(answer.status.contains("201"), "{}", answer.status);
    }
    let again = demo.reports(1);
    for _ in 0..2 {
        demo.request(SHOP, SHOP, "POST", "/reports", &again[0]);
    }
    demo.request(SHOP, SHOP, "POST", "/reports", b"not a report");
    let own = demo.results()["own"].clone();
    let buckets: Vec<&Value> = own
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["buckets"])
        .collect();
    let banner = json!([0, 1, 0, 0, 0]);
    let null = json!([0, 0, 0, 0, 0]);
    assert_eq!(buckets[..4], [&banner, &banner, &null, &banner]);
    assert_eq!(own[4]["refused"], "counted before");
    assert_eq!(own[5]["refused"], "not a report");
    // From outside, the null report is like the others.
    assert_eq!(own[0]["bytes"], own[2]["bytes"]);

    // The simulated people come as soon as their devices are done.
    let results = loop {
        let results = demo.results();
        if results["people"].is_number() {
            break results;
        }
        thread::sleep(Duration::from_millis(50));
    };
    let sums = |field: &str| -> Vec<i64> {
        let list = results[field].as_array().unwrap().iter();
        list.map(|it| it.as_i64().unwrap()).collect()
    };
    assert!(results["reports"].as_u64().unwrap() > 14);
    assert!(sums("true")[1] > 3);
    assert_ne!(sums("true"), sums("noised"));
    // The noise is drawn once for a set of reports, so asking again teaches nothing.
    assert_eq!(demo.results()["noised"], results["noised"]);
}
