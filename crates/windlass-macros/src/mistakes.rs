//! Every mistake of one use of the macro.

use proc_macro2::Span;
use quote::ToTokens;
use syn::Error;

/// Collects mistakes, so that all of them are reported at once.
#[derive(Default)]
pub(crate) struct Mistakes(Option<Error>);

impl Mistakes {
    pub(crate) fn push(&mut self, error: Error) {
        match &mut self.0 {
            Some(mistakes) => mistakes.combine(error),
            None => self.0 = Some(error),
        }
    }

    /// A mistake that spans all of `place`.
    pub(crate) fn at(&mut self, place: impl ToTokens, message: impl std::fmt::Display) {
        self.push(Error::new_spanned(place, message));
    }

    /// A mistake at one token.
    pub(crate) fn here(&mut self, span: Span, message: impl std::fmt::Display) {
        self.push(Error::new(span, message));
    }

    /// Takes the value out of `result`, or notes the mistake.
    pub(crate) fn note<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// `Ok` if there were none.
    pub(crate) fn finish(self) -> Result<(), Error> {
        self.0.map_or(Ok(()), Err)
    }
}
