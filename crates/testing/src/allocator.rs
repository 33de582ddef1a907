//! A counting allocator, for tests and benchmarks that make claims about memory.
#![allow(unsafe_code, reason = "the trait of allocators is unsafe")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The system's allocator, with counters.
///
/// ```
/// use bigbird_testing::CountingAllocator;
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator::new();
///
/// let (before, count) = (ALLOCATOR.bytes(), ALLOCATOR.allocations());
/// let kept = vec![0_u8; 1000];
/// assert!(ALLOCATOR.bytes() >= before + 1000 && ALLOCATOR.allocations() > count);
/// # drop(kept);
/// ```
#[derive(Debug, Default)]
pub struct CountingAllocator {
    bytes: AtomicUsize,
    allocations: AtomicU64,
}

impl CountingAllocator {
    /// An allocator that has not allocated anything.
    pub const fn new() -> Self {
        Self {
            bytes: AtomicUsize::new(0),
            allocations: AtomicU64::new(0),
        }
    }

    /// The number of bytes in use.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The number of allocations so far.
    pub fn allocations(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed)
    }
}

// SAFETY: every call is forwarded to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.bytes.fetch_add(layout.size(), Ordering::Relaxed);
        self.allocations.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.bytes.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of this function.
        unsafe { System.dealloc(pointer, layout) }
    }
}
