//! Signals that a command survives.

/// Turns a write beyond the file size limit (`ulimit -f`) into an ordinary write error. Without a
/// handler, the signal would kill the process in the middle of the write.
#[cfg(unix)]
pub(crate) fn survive_file_size_limit() {
    use signal_hook::consts::SIGXFSZ;
    // Nothing reads the flag: installing a handler is enough. If that fails, the signal keeps its
    // default effect.
    let _ = signal_hook::flag::register(SIGXFSZ, std::sync::Arc::default());
}

/// Other systems have no such signal.
#[cfg(not(unix))]
pub(crate) fn survive_file_size_limit() {}
