//! Standard input, output and error that wait until they are ready.
//!
//! The process that starts the command may have made these streams non-blocking. Node does this
//! with pipes, and some terminals do it too. The mode belongs to the open file, which both
//! processes share, so changing it here would change it for the other process. A stream that is not
//! ready is therefore waited for. It must not be mistaken for a stream that has ended.

use std::io::{self, ErrorKind, Read, Write};

/// Standard input.
pub(crate) fn input() -> WaitingStream<io::Stdin> {
    WaitingStream(io::stdin())
}

/// Standard output. The caller must flush what it writes.
pub(crate) fn output() -> WaitingStream<io::Stdout> {
    WaitingStream(io::stdout())
}

/// Prints a message as one line on standard error. If that fails, there is nowhere to report it.
pub(crate) fn tell(what: &str) {
    let _ = WaitingStream(io::stderr()).write_all(format!("bigbird: {what}\n").as_bytes());
}

/// A stream that waits until it is ready.
#[derive(Debug)]
pub(crate) struct WaitingStream<T>(T);

impl<T: Read + Wait> Read for WaitingStream<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.0.wait(Ready::Read)?,
                read => return read,
            }
        }
    }
}

/// When a write to a standard stream fails because it would block, nothing was written. It is
/// therefore safe to try again.
impl<T: Write + Wait> Write for WaitingStream<T> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.0.wait(Ready::Write)?,
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        loop {
            match self.0.flush() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.0.wait(Ready::Write)?,
                flushed => return flushed,
            }
        }
    }
}

/// The operation that a stream must become ready for.
#[derive(Debug, Clone, Copy)]
enum Ready {
    Read,
    Write,
}

/// A stream that can be waited for.
trait Wait {
    /// Waits until the stream is ready or has ended. May return early, so the caller tries again.
    fn wait(&self, ready: Ready) -> io::Result<()>;
}

#[cfg(unix)]
impl<T: std::os::fd::AsFd> Wait for T {
    fn wait(&self, ready: Ready) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags, poll};
        use rustix::io::Errno;
        let ready = match ready {
            Ready::Read => PollFlags::IN,
            Ready::Write => PollFlags::OUT,
        };
        match poll(&mut [PollFd::new(self, ready)], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// On other systems, standard streams block.
#[cfg(not(unix))]
impl<T> Wait for T {
    fn wait(&self, _: Ready) -> io::Result<()> {
        Err(ErrorKind::WouldBlock.into())
    }
}
