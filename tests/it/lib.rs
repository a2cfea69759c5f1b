//! The end-to-end tests of Windlass live in the `it` test binary.
