//! The demonstration: publishers, a shop, an ad-tech company, an aggregation service and an
//! attacker with its Sybil domains, on one port of this machine.
//!
//! The port is an HTTP proxy. A browser that makes all its connections through it reaches these
//! sites over HTTPS under their own names, and nothing else: other hosts get an error.

mod aggregates;
mod http;
mod population;
mod sites;

use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bigbird::Timestamp;
use bigbird_dap::{AggregationService, AggregatorKeys, ConfiguredServices, DapSealer};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use sha2::{Digest as _, Sha256};

pub use aggregates::EPSILON;
pub use population::{ADS, DemoPopulation, SHOP};
pub use sites::{GUIDE, SERVICE};

use crate::error::BrowserError;
use crate::throwaway::ProxyAddress;
use aggregates::Aggregates;
use http::{HttpAnswer, HttpRequest, read_request};
use sites::DemoSites;

/// The seed of the simulated people.
const SEED: u64 = 16;

/// The longest time for which a connection may be silent.
const SILENCE: Duration = Duration::from_secs(300);

/// What a demonstration is made from.
#[derive(Debug)]
pub struct DemoOptions {
    /// The port, or 0 for any that is free.
    pub port: u16,
    /// The aggregation service, under [`SERVICE`].
    pub service: AggregationService,
    /// The keys of both its aggregators.
    pub keys: [AggregatorKeys; 2],
    /// The name of the rules of the visitor's browser, which the guide explains.
    pub rules: String,
    /// The number of simulated people. With much fewer than 400, noise hides the sums.
    pub people: u32,
    /// The current time.
    pub now: Timestamp,
}

/// The server of a demonstration. It serves until the process ends.
#[derive(Debug)]
pub struct DemoServer {
    port: u16,
    key_hash: String,
    certificate: Vec<u8>,
}

impl DemoServer {
    /// Starts the server, and the simulated people in the background.
    ///
    /// # Errors
    /// If the port is taken, or no certificate can be made.
    pub fn start(options: DemoOptions) -> Result<Self, BrowserError> {
        let DemoOptions {
            port,
            service,
            keys,
            rules,
            people,
            now,
        } = options;
        let failed = |operation| move |message: String| BrowserError::Demo { operation, message };
        let certificate = DemoCertificate::new().map_err(failed("make a certificate"))?;
        let tls = Arc::new(certificate.tls().map_err(failed("set up TLS"))?);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .map_err(|error| failed("listen on the port")(format!("{port}: {error}")))?;
        let port = listener
            .local_addr()
            .map_err(|error| failed("listen on the port")(error.to_string()))?
            .port();
        let sites = Arc::new(DemoSites {
            aggregates: Mutex::new(Aggregates::new(&service, keys, now)?),
            rules,
        });
        let crowd = Arc::clone(&sites);
        thread::spawn(move || {
            let mut services = ConfiguredServices::new();
            services.insert(service);
            let sealer = DapSealer::new(services);
            // If this fails, the page says that nobody has bought anything yet.
            if let Ok(played) = DemoPopulation::play(people, SEED, EPSILON, &sealer, now) {
                crowd.lock().add_people(played.devices, &played.reports);
            }
        });
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (sites, tls) = (Arc::clone(&sites), Arc::clone(&tls));
                // A connection that fails concerns nobody else.
                thread::spawn(move || serve(&sites, &tls, stream));
            }
        });
        Ok(Self {
            port,
            key_hash: certificate.key_hash,
            certificate: certificate.der,
        })
    }

    /// How a browser reaches the sites.
    pub fn proxy(&self) -> ProxyAddress {
        ProxyAddress {
            port: self.port,
            key_hash: self.key_hash.clone(),
        }
    }

    /// The certificate of all sites, in DER.
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }
}

/// A certificate that lasts as long as the process. Nobody signed it.
struct DemoCertificate {
    der: Vec<u8>,
    key: Vec<u8>,
    key_hash: String,
}

impl DemoCertificate {
    fn new() -> Result<Self, String> {
        let made = rcgen::generate_simple_self_signed(sites::hosts());
        let made = made.map_err(|error| error.to_string())?;
        let public = rcgen::PublicKeyData::subject_public_key_info(&made.signing_key);
        Ok(Self {
            der: made.cert.der().to_vec(),
            key_hash: STANDARD.encode(Sha256::digest(public)),
            key: made.signing_key.serialize_der(),
        })
    }

    fn tls(&self) -> Result<ServerConfig, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.key.clone()));
        ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| {
                let chain = vec![self.der.clone().into()];
                builder.with_no_client_auth().with_single_cert(chain, key)
            })
            .map_err(|error| error.to_string())
    }
}

/// Serves a connection: a tunnel to one of the sites, or TLS without a tunnel.
fn serve(sites: &DemoSites, tls: &Arc<ServerConfig>, stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_nodelay(true)?;
    let mut first = [0];
    stream.peek(&mut first)?;
    /// The first byte of a TLS handshake.
    const HANDSHAKE: u8 = 22;
    let mut host = None;
    let mut stream = BufReader::new(stream);
    if first[0] != HANDSHAKE {
        let Some(request) = read_request(&mut stream)? else {
            return Ok(());
        };
        let Some(asked) = tunnel_host(&request) else {
            let told = "Only the sites of the demonstration can be reached.\n";
            let answer = HttpAnswer::new("text/plain", told).with_status("502 Bad Gateway");
            return answer
                .with_header("Connection", "close")
                .write(stream.get_mut());
        };
        stream
            .get_mut()
            .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
        host = Some(asked);
    }
    let connection = ServerConnection::new(Arc::clone(tls)).map_err(io::Error::other)?;
    let mut stream = BufReader::new(StreamOwned::new(connection, Rest(stream)));
    while let Some(request) = read_request(&mut stream)? {
        let asked = request.host.as_deref().unwrap_or_default();
        let asked = asked.strip_suffix(":443").unwrap_or(asked);
        let known = sites::hosts().iter().any(|it| it == asked);
        let answer = match &host {
            Some(host) if host == asked => sites.answer(asked, &request),
            None if known => sites.answer(asked, &request),
            _ => HttpAnswer::new("text/plain", "This connection is to another site.\n")
                .with_status("421 Misdirected Request"),
        };
        answer.write(stream.get_mut())?;
        if request.last {
            break;
        }
    }
    stream.get_mut().conn.send_close_notify();
    stream.get_mut().flush()
}

/// The site that a tunnel is asked for.
fn tunnel_host(request: &HttpRequest) -> Option<String> {
    let (host, port) = request.path.rsplit_once(':')?;
    let host = host.to_ascii_lowercase();
    let known = request.method == "CONNECT" && port == "443" && sites::hosts().contains(&host);
    known.then_some(host)
}

/// A connection whose first bytes may have been read already.
#[derive(Debug)]
struct Rest(BufReader<TcpStream>);

impl Read for Rest {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Rest {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.get_mut().flush()
    }
}
