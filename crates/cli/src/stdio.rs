//! Standard input, output and error that wait.
//!
//! Whoever starts the command may have made them non-blocking, as node does with pipes and some terminals
//! do. The mode belongs to the open file, which both processes share: to change it here would change it
//! there. So whatever is not ready is waited for, instead of taken for the end of a stream.

use std::io::{self, ErrorKind, Read, Write};

/// Standard input.
pub(crate) fn input() -> Waiting<io::Stdin> {
    Waiting(io::stdin())
}

/// Standard output. What is written must be flushed.
pub(crate) fn output() -> Waiting<io::Stdout> {
    Waiting(io::stdout())
}

/// Tells people something, in a line on standard error. If that is gone there is nobody to tell.
pub(crate) fn tell(what: &str) {
    let _ = Waiting(io::stderr()).write_all(format!("bigbird: {what}\n").as_bytes());
}

/// A stream that waits until it is ready.
#[derive(Debug)]
pub(crate) struct Waiting<T>(T);

impl<T: Read + Wait> Read for Waiting<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.0.wait(Ready::Read)?,
                read => return read,
            }
        }
    }
}

/// An error of a standard stream that would block means that nothing was taken, so it can be tried again.
impl<T: Write + Wait> Write for Waiting<T> {
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

/// What a stream is waited for to be ready for.
#[derive(Debug, Clone, Copy)]
enum Ready {
    Read,
    Write,
}

/// A stream that can be waited for.
trait Wait {
    /// Waits until it is ready, or at an end, which trying again will tell. May return early.
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

/// Elsewhere standard streams block.
#[cfg(not(unix))]
impl<T> Wait for T {
    fn wait(&self, _: Ready) -> io::Result<()> {
        Err(ErrorKind::WouldBlock.into())
    }
}
