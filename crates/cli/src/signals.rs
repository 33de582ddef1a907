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

/// Sets the flag when the user or the system asks this process to end, instead of ending it. A
/// second such signal ends it at once.
#[cfg(unix)]
pub(crate) fn notice_interrupts(flag: &std::sync::Arc<std::sync::atomic::AtomicBool>) {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        let again = std::sync::Arc::clone(flag);
        // If that fails, the signal keeps its default effect.
        let _ = signal_hook::flag::register_conditional_shutdown(signal, 1, again);
        let _ = signal_hook::flag::register(signal, std::sync::Arc::clone(flag));
    }
}

/// On other systems, the process ends.
#[cfg(not(unix))]
pub(crate) fn notice_interrupts(_: &std::sync::Arc<std::sync::atomic::AtomicBool>) {}

/// Other systems have no such signal.
#[cfg(not(unix))]
pub(crate) fn survive_file_size_limit() {}
