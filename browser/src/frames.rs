//! Native-messaging frames as lines: four bytes of length in native order, then JSON.
//!
//! The protocol of the user agent is lines of JSON. A frame is a line with another kind of end, so
//! one adapter turns frames into lines, and another lines into frames.

use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use bigbird_user_agent::protocol::AgentAnswer;
use serde_json::{Value, json};

/// The longest answer, in bytes. Browsers end the connection of a host that sends a longer one.
pub const LONGEST_ANSWER: usize = 1 << 20;

/// Frames of a browser, read as lines.
///
/// A frame that is empty or too long never becomes a line: it is skipped without being kept, and
/// answered here.
#[derive(Debug)]
pub struct FrameLines<R, W> {
    input: R,
    output: FrameOutput<W>,
    /// The maximum length of a frame.
    longest: usize,
    /// The frame that is being read, with a line break at its end.
    line: Vec<u8>,
    /// The number of its bytes that were consumed.
    consumed: usize,
}

impl<R: Read, W: Write> FrameLines<R, W> {
    /// Lines from the frames of `input`, with at most `longest` bytes each. Frames that cannot be
    /// lines are answered on `output`.
    pub fn new(input: R, output: FrameOutput<W>, longest: usize) -> Self {
        Self {
            input,
            output,
            longest,
            line: Vec::new(),
            consumed: 0,
        }
    }

    /// Reads the next frame that can be a line. Returns false if the input has ended.
    fn next_frame(&mut self) -> io::Result<bool> {
        self.line.clear();
        self.consumed = 0;
        loop {
            let mut length = [0; 4];
            if !read_whole(&mut self.input, &mut length)? {
                return Ok(false);
            }
            let length = u32::from_ne_bytes(length);
            let most = u32::try_from(self.longest).unwrap_or(u32::MAX);
            if length == 0 || length > most {
                let mut rest = (&mut self.input).take(length.into());
                io::copy(&mut rest, &mut io::sink())?;
                let told = format!("a frame must have 1 to {most} bytes, got {length}");
                let answer = AgentAnswer::malformed(&told).line();
                self.output.write_all(answer.as_bytes())?;
                self.output.flush()?;
                continue;
            }
            let length = length as usize;
            self.line.resize(length, 0);
            if !read_whole(&mut self.input, &mut self.line)? {
                self.line.clear();
                return Ok(false);
            }
            // In JSON, a line break is white space and nothing else.
            for byte in &mut self.line {
                if *byte == b'\n' {
                    *byte = b' ';
                }
            }
            if self.line.iter().all(u8::is_ascii_whitespace) {
                // An empty line would get no answer.
                self.line = b"null".to_vec();
            }
            self.line.push(b'\n');
            return Ok(true);
        }
    }
}

/// Fills a buffer. Returns false if the input ended before.
fn read_whole(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match input.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

impl<R: Read, W: Write> BufRead for FrameLines<R, W> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.consumed == self.line.len() {
            self.next_frame()?;
        }
        Ok(self.line.get(self.consumed..).unwrap_or_default())
    }

    fn consume(&mut self, amount: usize) {
        self.consumed = (self.consumed + amount).min(self.line.len());
    }
}

impl<R: Read, W: Write> Read for FrameLines<R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

/// The way to the browser: each line that is written becomes a frame. Clones share the way, and
/// frames of several clones never mix.
#[derive(Debug)]
pub struct FrameOutput<W> {
    output: Arc<Mutex<W>>,
    /// The beginning of a line.
    line: Vec<u8>,
}

impl<W> Clone for FrameOutput<W> {
    fn clone(&self) -> Self {
        Self {
            output: Arc::clone(&self.output),
            line: Vec::new(),
        }
    }
}

impl<W: Write> FrameOutput<W> {
    /// Frames on an output.
    pub fn new(output: W) -> Self {
        Self {
            output: Arc::new(Mutex::new(output)),
            line: Vec::new(),
        }
    }

    fn send(&self, line: &[u8]) -> io::Result<()> {
        let too_long;
        let line = match line.len() <= LONGEST_ANSWER {
            true => line,
            false => {
                too_long = instead_of(line);
                too_long.as_slice()
            }
        };
        let length = u32::try_from(line.len()).map_err(|_| ErrorKind::InvalidInput)?;
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        output.write_all(&length.to_ne_bytes())?;
        output.write_all(line)
    }
}

/// The answer that is sent instead of one that is too long.
fn instead_of(line: &[u8]) -> Vec<u8> {
    let length = line.len();
    let told = format!("an answer must have at most {LONGEST_ANSWER} bytes, but has {length}");
    let mut answer = json!({"ok": false, "error": "HostError", "message": told});
    let id = serde_json::from_slice(line).map(|mut answer: Value| answer["id"].take());
    if let Ok(id) = id
        && !id.is_null()
    {
        answer["id"] = id;
    }
    answer.to_string().into_bytes()
}

impl<W: Write> Write for FrameOutput<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let mut rest = buffer;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (before, behind) = rest.split_at(end);
            rest = &behind[1..];
            if self.line.is_empty() {
                self.send(before)?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(before);
                self.send(&line)?;
            }
        }
        self.line.extend_from_slice(rest);
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        output.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(content: &[u8]) -> Vec<u8> {
        let mut frame = u32::try_from(content.len()).unwrap().to_ne_bytes().to_vec();
        frame.extend_from_slice(content);
        frame
    }

    /// The lines of frames, and what was answered without a line.
    fn lines(input: &[u8], longest: usize) -> (Vec<Vec<u8>>, Vec<Value>) {
        let output = FrameOutput::new(Vec::new());
        let frames = FrameLines::new(input, output.clone(), longest);
        let lines = frames.split(b'\n').collect::<io::Result<_>>().unwrap();
        let written = output.output.lock().unwrap().clone();
        (lines, contents(&written))
    }

    fn contents(mut written: &[u8]) -> Vec<Value> {
        let mut contents = Vec::new();
        while let Some((length, rest)) = written.split_first_chunk::<4>() {
            let (content, behind) = rest.split_at(u32::from_ne_bytes(*length) as usize);
            contents.push(serde_json::from_slice(content).unwrap());
            written = behind;
        }
        assert!(written.is_empty());
        contents
    }

    #[test]
    fn frames_become_lines() {
        let mut input = frame(br#"{"a":1}"#);
        input.extend(frame(b"{\n\"b\":\r\n2}"));
        input.extend(frame("\u{fffd}".as_bytes()));
        input.extend(frame(b"\xff\xfe"));
        let (lines, answers) = lines(&input, 100);
        let expected: [&[u8]; 4] = [
            br#"{"a":1}"#,
            b"{ \"b\":\r 2}",
            "\u{fffd}".as_bytes(),
            b"\xff\xfe",
        ];
        assert_eq!(lines, expected);
        assert!(answers.is_empty());
    }

    #[test]
    fn a_cut_anywhere_ends_the_input() {
        let mut input = frame(br#"{"first":1}"#);
        let first = input.len();
        input.extend(frame(br#"{"second":2}"#));
        for cut in 0..=input.len() {
            let (lines, answers) = lines(&input[..cut], 100);
            let whole = usize::from(cut >= first) + usize::from(cut == input.len());
            assert_eq!(lines.len(), whole, "cut at {cut}");
            assert!(answers.is_empty());
        }
    }

    /// Reads a byte at a time, as a slow pipe.
    struct Trickle<'a>(&'a [u8]);

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let one = buffer.len().min(1);
            self.0.read(&mut buffer[..one])
        }
    }

    #[test]
    fn it_does_not_matter_how_bytes_arrive() {
        let mut input = frame(br#"{"first":1}"#);
        input.extend(frame(&[b'x'; 101]));
        input.extend(frame(br#"{"second":2}"#));
        let output = FrameOutput::new(Vec::new());
        let frames = FrameLines::new(Trickle(&input), output, 100);
        let lines: Vec<Vec<u8>> = frames.split(b'\n').map(Result::unwrap).collect();
        assert_eq!(lines, [&br#"{"first":1}"#[..], br#"{"second":2}"#]);
    }

    #[test]
    fn what_cannot_be_a_request_is_skipped_and_answered() {
        let mut input = frame(&[]);
        input.extend(frame(&[b'{'; 11]));
        input.extend(frame(b"0123456789"));
        input.extend(frame(b" \n\t"));
        // A length without its content, longer than any machine has memory for.
        input.extend(u32::MAX.to_ne_bytes());
        input.extend(b"the rest");
        let (lines, answers) = lines(&input, 10);
        assert_eq!(lines, [&b"0123456789"[..], b"null"]);
        let messages: Vec<_> = answers.iter().map(|it| it["message"].as_str()).collect();
        let told = |got: u32| format!("a frame must have 1 to 10 bytes, got {got}");
        let expected = [told(0), told(11), told(u32::MAX)];
        assert_eq!(messages, expected.each_ref().map(|it| Some(it.as_str())));
        assert!(answers.iter().all(|it| it["error"] == "MalformedRequest"));
    }

    #[test]
    fn lines_become_frames_however_they_are_written() {
        let text = b"{\"a\":1}\n{\"b\":2}\n{}\n";
        for step in 1..=text.len() {
            let mut output = FrameOutput::new(Vec::new());
            for part in text.chunks(step) {
                output.write_all(part).unwrap();
            }
            output.flush().unwrap();
            let written = output.output.lock().unwrap().clone();
            assert_eq!(
                contents(&written),
                [json!({"a": 1}), json!({"b": 2}), json!({})],
                "steps of {step}"
            );
        }
    }

    #[test]
    fn an_answer_that_no_browser_takes_becomes_an_error() {
        let answer = |length: usize| {
            let mut line = json!({"id": 7, "ok": true, "report": ""}).to_string();
            let padding = length - line.len();
            line = json!({"id": 7, "ok": true, "report": "r".repeat(padding)}).to_string();
            assert_eq!(line.len(), length);
            let mut output = FrameOutput::new(Vec::new());
            output.write_all((line + "\n").as_bytes()).unwrap();
            let written = output.output.lock().unwrap().clone();
            contents(&written).remove(0)
        };
        assert_eq!(answer(LONGEST_ANSWER)["ok"], true);
        let refused = answer(LONGEST_ANSWER + 1);
        assert_eq!(refused["error"], "HostError");
        assert_eq!(refused["id"], 7);
    }
}
