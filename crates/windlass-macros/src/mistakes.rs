//! All errors in one use of the macro.

use proc_macro2::Span;
use quote::ToTokens;
use syn::Error;

/// Collects errors, so that all of them are reported at once.
#[derive(Default)]
pub(crate) struct Mistakes(Option<Error>);

impl Mistakes {
    pub(crate) fn push(&mut self, error: Error) {
        match &mut self.0 {
            Some(mistakes) => mistakes.combine(error),
            None => self.0 = Some(error),
        }
    }

    /// An error at these tokens.
    pub(crate) fn at(&mut self, tokens: impl ToTokens, message: impl std::fmt::Display) {
        self.push(Error::new_spanned(tokens, message));
    }

    /// An error at a single token.
    pub(crate) fn here(&mut self, span: Span, message: impl std::fmt::Display) {
        self.push(Error::new(span, message));
    }

    /// The value of `result`, or records the error.
    pub(crate) fn note<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// `Ok` if there were no errors.
    pub(crate) fn finish(self) -> Result<(), Error> {
        self.0.map_or(Ok(()), Err)
    }
}
