//! The README's programs, compiled.

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
