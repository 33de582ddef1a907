//! Answers on their way out: in order, each not before its time.

use std::io::{self, Write as _};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::protocol::Answer;

/// Writes answers while others are being made.
pub(super) struct Output {
    answers: SyncSender<(Option<Instant>, String)>,
    writer: JoinHandle<io::Result<()>>,
}

impl Output {
    pub(super) fn start() -> Self {
        let (answers, waiting) = mpsc::sync_channel(4096);
        Self {
            answers,
            writer: thread::spawn(move || write(&waiting)),
        }
    }

    /// Writes an answer after all before it, and not before a moment.
    pub(super) fn send(&self, release: Option<Instant>, answer: Answer) {
        // If the writer has ended, nobody reads answers any more.
        let _ = self.answers.send((release, answer.line()));
    }

    /// Whether nobody reads answers any more.
    pub(super) fn is_closed(&self) -> bool {
        self.writer.is_finished()
    }

    /// Waits until all are written.
    pub(super) fn finish(self) -> io::Result<()> {
        drop(self.answers);
        match self.writer.join() {
            Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Ok(written) => written,
            Err(_) => Err(io::Error::other(
                "the thread that writes answers has panicked",
            )),
        }
    }
}

fn write(answers: &Receiver<(Option<Instant>, String)>) -> io::Result<()> {
    let mut output = io::BufWriter::new(io::stdout().lock());
    loop {
        let next = match answers.try_recv() {
            Ok(next) => next,
            Err(TryRecvError::Disconnected) => return output.flush(),
            Err(TryRecvError::Empty) => {
                output.flush()?;
                match answers.recv() {
                    Ok(next) => next,
                    Err(_) => return Ok(()),
                }
            }
        };
        let (release, line) = next;
        if let Some(wait) = release.map(|at| at.saturating_duration_since(Instant::now()))
            && !wait.is_zero()
        {
            output.flush()?;
            thread::sleep(wait);
        }
        output.write_all(line.as_bytes())?;
    }
}
