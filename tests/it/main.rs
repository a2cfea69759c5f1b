//! End to end, in one binary.
