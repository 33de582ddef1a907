//! Signals that a command survives.

/// Makes a file that would exceed the limit of its size (`ulimit -f`) an error of the write, which is
/// reported as any other. Without a handler the signal kills, in the middle of whatever was being written.
#[cfg(unix)]
pub(crate) fn survive_file_size_limit() {
    use signal_hook::consts::SIGXFSZ;
    // Nobody looks at the flag: that there is a handler is enough. If there cannot be one, the signal is
    // what it was.
    let _ = signal_hook::flag::register(SIGXFSZ, std::sync::Arc::default());
}

/// Elsewhere there is no such signal.
#[cfg(not(unix))]
pub(crate) fn survive_file_size_limit() {}
