//! A global allocator that can count.
//!
//! The only module of the workspace with `unsafe` code: `GlobalAlloc` is an unsafe trait, and there is no other way to
//! see every allocation of other crates. Each method passes its arguments to the system's allocator unchanged.
//!
//! Counting is off unless [`count`] runs, so that timed passes pay one predictable branch and no shared write.
#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
static FREED: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Counting;

impl Counting {
    #[inline]
    fn note(bytes: usize) {
        if COUNTING.load(Relaxed) {
            ALLOCATIONS.fetch_add(1, Relaxed);
            BYTES.fetch_add(bytes as u64, Relaxed);
        }
    }

    #[inline]
    fn note_freed(bytes: usize) {
        if COUNTING.load(Relaxed) {
            FREED.fetch_add(bytes as u64, Relaxed);
        }
    }
}

// SAFETY: every method calls the system allocator's with the caller's own arguments; counting neither allocates nor
// panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::note(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        Self::note(new_size.saturating_sub(layout.size()));
        Self::note_freed(layout.size().saturating_sub(new_size));
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::note_freed(layout.size());
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Allocations on all threads. Growing a block counts as one allocation of the additional bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allocated {
    pub(crate) allocations: u64,
    pub(crate) bytes: u64,
    /// Bytes freed in the same time, whenever they were allocated.
    pub(crate) freed: u64,
}

/// Runs `work` and counts the allocations of the whole process in that time. Must not be nested.
pub(crate) fn count<T>(work: impl FnOnce() -> T) -> (T, Allocated) {
    let before = now();
    COUNTING.store(true, Relaxed);
    let output = work();
    COUNTING.store(false, Relaxed);
    let after = now();
    let allocated = Allocated {
        allocations: after.allocations - before.allocations,
        bytes: after.bytes - before.bytes,
        freed: after.freed - before.freed,
    };
    (output, allocated)
}

fn now() -> Allocated {
    Allocated { allocations: ALLOCATIONS.load(Relaxed), bytes: BYTES.load(Relaxed), freed: FREED.load(Relaxed) }
}
