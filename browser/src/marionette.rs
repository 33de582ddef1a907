//! A client of Marionette, the remote control of Firefox: messages of JSON over TCP, each with its
//! length before it.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;

use serde_json::{Value, json};

use crate::error::BrowserError;

/// The file in a profile with the port that Firefox chose.
pub(crate) const PORT_FILE: &str = "MarionetteActivePort";

/// The longest message that is accepted. Those that we ask for are short.
const LONGEST: usize = 1 << 20;

/// A session.
#[derive(Debug)]
pub(crate) struct Marionette {
    stream: BufReader<TcpStream>,
    last: u64,
}

impl Marionette {
    /// Connects to a port of this machine, and begins a session. With `any_certificate`, the
    /// session accepts certificates that nobody signed.
    pub(crate) fn connect(port: u16, any_certificate: bool) -> Result<Self, BrowserError> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
        let mut session = Self {
            stream: BufReader::new(stream.map_err(BrowserError::Marionette)?),
            last: 0,
        };
        // Firefox introduces itself.
        session.receive().map_err(BrowserError::Marionette)?;
        let capabilities = json!({
            "acceptInsecureCerts": any_certificate,
            // Nobody waits for a page here.
            "pageLoadStrategy": "none",
        });
        let always = json!({"capabilities": {"alwaysMatch": capabilities}});
        session.call("WebDriver:NewSession", &always)?;
        Ok(session)
    }

    /// Installs an extension from its folder or its archive, until Firefox ends, also for private
    /// windows.
    pub(crate) fn install(&mut self, extension: &Path) -> Result<(), BrowserError> {
        let Some(path) = extension.to_str() else {
            return Err(BrowserError::Path(extension.to_owned()));
        };
        let options = json!({"path": path, "temporary": true, "allowPrivateBrowsing": true});
        self.call("Addon:Install", &options).map(drop)
    }

    /// Opens an address in the current tab. If it cannot be reached, the tab says so.
    pub(crate) fn open(&mut self, address: &str) -> Result<(), BrowserError> {
        match self.call("WebDriver:Navigate", &json!({"url": address})) {
            Ok(_) | Err(BrowserError::Refused { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Ends the session. Firefox stays.
    pub(crate) fn end(mut self) -> Result<(), BrowserError> {
        self.call("WebDriver:DeleteSession", &json!({})).map(drop)
    }

    fn call(&mut self, command: &'static str, options: &Value) -> Result<Value, BrowserError> {
        self.last += 1;
        let message = json!([0, self.last, command, options]).to_string();
        let message = format!("{}:{message}", message.len());
        let sent = self.stream.get_mut().write_all(message.as_bytes());
        sent.map_err(BrowserError::Marionette)?;
        loop {
            let answer = self.receive().map_err(BrowserError::Marionette)?;
            if answer[0] != 1 || answer[1] != self.last {
                continue;
            }
            return match &answer[2] {
                Value::Null => Ok(answer[3].clone()),
                error => Err(BrowserError::Refused {
                    command,
                    message: error["message"]
                        .as_str()
                        .unwrap_or("unknown error")
                        .to_owned(),
                }),
            };
        }
    }

    fn receive(&mut self) -> io::Result<Value> {
        let invalid = |why: &str| io::Error::new(ErrorKind::InvalidData, why.to_owned());
        let mut length = Vec::new();
        // A length has at most seven digits.
        (&mut self.stream).take(8).read_until(b':', &mut length)?;
        let digits = length.strip_suffix(b":").unwrap_or_default();
        let length = std::str::from_utf8(digits)
            .ok()
            .and_then(|text| text.parse().ok());
        let length: usize = length.ok_or_else(|| invalid("a message has no length"))?;
        if length > LONGEST {
            return Err(invalid("a message is too long"));
        }
        let mut message = vec![0; length];
        self.stream.read_exact(&mut message)?;
        serde_json::from_slice(&message).map_err(|_| invalid("a message is not JSON"))
    }
}
