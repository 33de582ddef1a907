//! The interface to JavaScript: memory that is passed by pointer and length.
//!
//! The caller writes a request into memory from [`alloc`], and gets back the pointer and the length
//! of an answer. It frees both with [`free`].
#![allow(
    unsafe_code,
    reason = "JavaScript passes pointers, and imports are foreign functions"
)]

use std::sync::{Mutex, PoisonError};

use bigbird::Timestamp;

use crate::gate::{BrowserGate, not_text};

/// The gate of this instance. WebAssembly has one thread, so nobody waits for it.
static GATE: Mutex<Option<BrowserGate>> = Mutex::new(None);

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    /// Fills memory with random bytes that nobody can predict.
    fn random(pointer: *mut u8, length: usize);
    /// The time, in milliseconds since 1970.
    safe fn now() -> f64;
}

/// Memory for a request of some bytes.
#[unsafe(no_mangle)]
extern "C" fn alloc(length: usize) -> *mut u8 {
    leak(vec![0; length].into_boxed_slice())
}

/// Gives back memory that [`alloc`] returned, or an answer.
///
/// # Safety
/// The pointer and the length belong together, and were not given back before.
#[unsafe(no_mangle)]
unsafe extern "C" fn free(pointer: *mut u8, length: usize) {
    // SAFETY: see above. `leak` made the pointer from a box of this length.
    drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(pointer, length)) });
}

/// Configures the gate: see [`BrowserGate::configure`].
///
/// # Safety
/// The pointer and the length are those of memory from [`alloc`].
#[unsafe(no_mangle)]
unsafe extern "C" fn configure(pointer: *const u8, length: usize) -> u64 {
    // SAFETY: see above.
    let request = unsafe { std::slice::from_raw_parts(pointer, length) };
    respond(request, BrowserGate::configure)
}

/// Answers a request: see [`BrowserGate::answer`].
///
/// # Safety
/// The pointer and the length are those of memory from [`alloc`].
#[unsafe(no_mangle)]
unsafe extern "C" fn call(pointer: *const u8, length: usize) -> u64 {
    // SAFETY: see above.
    let request = unsafe { std::slice::from_raw_parts(pointer, length) };
    respond(request, |gate, request| gate.answer(request, moment()))
}

/// The random bytes of everything below this crate.
///
/// # Safety
/// There is memory of that length at the pointer.
#[unsafe(no_mangle)]
unsafe extern "Rust" fn __getrandom_v03_custom(
    pointer: *mut u8,
    length: usize,
) -> Result<(), getrandom::Error> {
    // SAFETY: see above.
    unsafe { random(pointer, length) };
    Ok(())
}

fn moment() -> Timestamp {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "larger numbers are clamped"
    )]
    Timestamp(now() as i64)
}

/// Passes a request on, and returns the pointer and the length of the answer: the upper and the
/// lower 32 bits.
fn respond(request: &[u8], answer: impl FnOnce(&mut BrowserGate, &str) -> String) -> u64 {
    let answer = match std::str::from_utf8(request) {
        Ok(request) => {
            let mut gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
            answer(gate.get_or_insert_default(), request)
        }
        Err(error) => not_text(error),
    };
    let bytes = answer.into_bytes().into_boxed_slice();
    let length = bytes.len() as u64;
    (leak(bytes) as usize as u64) << 32 | length
}

fn leak(bytes: Box<[u8]>) -> *mut u8 {
    Box::into_raw(bytes).cast()
}
