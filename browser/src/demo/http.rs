//! As much of HTTP/1.1 as browsers need to see a few pages.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};

/// The longest head of a request, and the longest body, in bytes.
const LONGEST_HEAD: u64 = 64 << 10;
const LONGEST_BODY: usize = 2 << 20;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HttpRequest {
    pub(super) method: String,
    /// The path without its query. For CONNECT, the host and the port.
    pub(super) path: String,
    pub(super) query: String,
    pub(super) host: Option<String>,
    pub(super) body: Vec<u8>,
    /// True if the connection ends with the answer.
    pub(super) last: bool,
}

/// Reads a request. Returns `None` if the connection ended before one.
pub(super) fn read_request<R: Read>(input: &mut BufReader<R>) -> io::Result<Option<HttpRequest>> {
    let invalid = |why: &'static str| io::Error::new(ErrorKind::InvalidData, why);
    let mut head = Vec::new();
    let mut limited = Read::take(&mut *input, LONGEST_HEAD);
    loop {
        if limited.read_until(b'\n', &mut head)? == 0 {
            return match head.is_empty() {
                true => Ok(None),
                false => Err(invalid("the head of a request is too long or cut")),
            };
        }
        if head.ends_with(b"\r\n\r\n") || head.ends_with(b"\n\n") {
            break;
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; 100];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(&head) {
        Ok(httparse::Status::Complete(_)) => {}
        _ => return Err(invalid("the head of a request is malformed")),
    }
    let header = |name: &str| {
        let found = request
            .headers
            .iter()
            .find(|it| it.name.eq_ignore_ascii_case(name));
        found.and_then(|it| std::str::from_utf8(it.value).ok())
    };
    let target = request.path.unwrap_or("/");
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let length = header("content-length").map_or(Ok(0), str::parse::<usize>);
    let length = length.map_err(|_| invalid("the length of a body is not a number"))?;
    if length > LONGEST_BODY || header("transfer-encoding").is_some() {
        return Err(invalid("a body is too long or has no length"));
    }
    let mut parsed = HttpRequest {
        method: request.method.unwrap_or("GET").to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        host: header("host").map(str::to_ascii_lowercase),
        last: header("connection").is_some_and(|it| it.eq_ignore_ascii_case("close")),
        body: vec![0; length],
    };
    input.read_exact(&mut parsed.body)?;
    Ok(Some(parsed))
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HttpAnswer {
    pub(super) status: &'static str,
    pub(super) kind: &'static str,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
}

impl HttpAnswer {
    pub(super) fn new(kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status: "200 OK",
            kind,
            headers: Vec::new(),
            body: body.into(),
        }
    }

    pub(super) fn with_status(mut self, status: &'static str) -> Self {
        self.status = status;
        self
    }

    pub(super) fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(super) fn write(&self, output: &mut impl Write) -> io::Result<()> {
        let mut head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n",
            self.status,
            self.kind,
            self.body.len()
        );
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        output.write_all(head.as_bytes())?;
        output.write_all(&self.body)?;
        output.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> io::Result<Option<HttpRequest>> {
        read_request(&mut BufReader::new(text.as_bytes()))
    }

    #[test]
    fn requests_are_read_with_their_body() {
        let text =
            "POST /reports?x=1 HTTP/1.1\r\nHost: Shop.Example\r\nContent-Length: 3\r\n\r\nabc";
        let request = read(text).unwrap().unwrap();
        assert_eq!(
            (request.method.as_str(), request.path.as_str()),
            ("POST", "/reports")
        );
        assert_eq!(
            (request.query.as_str(), request.body.as_slice()),
            ("x=1", &b"abc"[..])
        );
        assert_eq!(request.host.as_deref(), Some("shop.example"));
        assert!(!request.last);
        assert_eq!(read("").unwrap(), None);
    }

    #[test]
    fn what_is_not_a_request_ends_the_connection() {
        let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(70_000));
        for text in [
            "GET / HTTP/1.1\r\nHost: a",
            "nonsense\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            long.as_str(),
        ] {
            assert!(read(text).is_err(), "{text:.60}");
        }
    }
}
