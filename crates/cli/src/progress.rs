//! Progress of long work, on standard error. A terminal shows a bar with the time left. Anything
//! else, such as a log file, gets a line every ten seconds.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// A progress bar.
#[derive(Debug)]
pub(crate) struct Bar {
    begin: Instant,
    shown: Option<Instant>,
    terminal: bool,
    drawn: bool,
}

impl Bar {
    pub(crate) fn new() -> Self {
        let (begin, terminal) = (Instant::now(), std::io::stderr().is_terminal());
        Self {
            begin,
            // A log gets no line for work that takes less than ten seconds.
            shown: (!terminal).then_some(begin),
            terminal,
            drawn: false,
        }
    }

    /// Says how long work will take, before it begins. A terminal is told if it is long enough to
    /// wait for. Anything else is not: nobody waits there.
    pub(crate) fn announce(&mut self, seconds: f64, threads: usize) {
        if self.terminal
            && let Some(estimate) = estimate(seconds, threads)
        {
            self.clear();
            let _ = writeln!(std::io::stderr(), "{estimate}");
        }
    }

    /// Shows the share of the work that is done. The share `done_before` was finished by an earlier
    /// run, so it does not count when the time left is estimated.
    pub(crate) fn show(&mut self, done: f64, done_before: f64, what: &str) {
        let pause = match self.terminal {
            true => Duration::from_millis(100),
            false => Duration::from_secs(10),
        };
        if self.shown.is_some_and(|last| last.elapsed() < pause) {
            return;
        }
        self.shown = Some(Instant::now());
        let elapsed = self.begin.elapsed().as_secs_f64();
        let done_now = done - done_before;
        let left = if done_now > 0.02 && elapsed > 1.0 {
            time(elapsed * (1.0 - done) / done_now) + " left"
        } else {
            String::new()
        };
        let percent = (100.0 * done.clamp(0.0, 1.0)).floor();
        let mut out = std::io::stderr().lock();
        // A bar that cannot be shown is not an error.
        let _ = if self.terminal {
            const WIDTH: usize = 24;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a share of a small number"
            )]
            let full = (percent / 100.0 * WIDTH as f64) as usize;
            let bar = "█".repeat(full) + &"░".repeat(WIDTH - full);
            {
                // A line that wraps could not be erased, so it is cut.
                const REST: usize = 34;
                let what: String = what.chars().take(REST).collect();
                write!(out, "\r\x1b[2K{bar} {percent:3.0}%  {left:<11} {what}")
            }
        } else {
            writeln!(out, "{percent:3.0}%  {left:<14} {what}")
        };
        let _ = out.flush();
        self.drawn = true;
    }

    /// Erases the bar.
    pub(crate) fn clear(&mut self) {
        if self.drawn && self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
        self.drawn = false;
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A sentence about work that takes this many seconds of one core. None if it is short.
fn estimate(core_seconds: f64, threads: usize) -> Option<String> {
    const SHORT: f64 = 10.0;
    let seconds = core_seconds / threads.max(1) as f64;
    if !(seconds.is_finite() && seconds >= SHORT) {
        return None;
    }
    // An estimate has one digit, or two.
    let about = match seconds {
        seconds if seconds < 60.0 => format!("{:.0} seconds", (seconds / 10.0).round() * 10.0),
        seconds if seconds < 90.0 => "a minute".to_owned(),
        seconds if seconds < 90.0 * 60.0 => format!("{:.0} minutes", seconds / 60.0),
        seconds => format!("{:.1} hours", seconds / 3600.0),
    };
    let cores = match threads {
        1 => "1 core".to_owned(),
        threads => format!("{threads} cores"),
    };
    Some(format!("This takes about {about} on {cores}."))
}

/// A duration in seconds, minutes or hours, whichever reads best.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 90.0 => format!("{seconds:.0} s"),
        seconds if seconds < 90.0 * 60.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::estimate;

    #[test]
    fn long_work_is_announced() {
        assert_eq!(estimate(12.0, 2), None);
        let of = |seconds, threads| estimate(seconds, threads).unwrap_or_default();
        assert_eq!(of(360.0, 2), "This takes about 3 minutes on 2 cores.");
        assert_eq!(of(33.0, 1), "This takes about 30 seconds on 1 core.");
        assert_eq!(
            of(7_200.0 * 4.0, 4),
            "This takes about 2.0 hours on 4 cores."
        );
    }
}
