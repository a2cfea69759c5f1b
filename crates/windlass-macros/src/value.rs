//! What stands in the parentheses of `#[tool(…)]`: names, and what is said of each.

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, Expr, ExprLit, ExprPath, Ident, Lit, LitInt, LitStr, Result, Token, parenthesized, token};

use crate::{duration, near};

/// `name`, `name = value` or `name(entries)`.
pub(crate) struct Entry {
    pub(crate) name: Ident,
    given: Given,
}

enum Given {
    Nothing,
    Value(Expr),
    Entries(Vec<Entry>),
}

/// Several entries, with commas.
pub(crate) struct Entries(pub(crate) Vec<Entry>);

impl Parse for Entries {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        Ok(Self(Punctuated::<Entry, Token![,]>::parse_terminated(input)?.into_iter().collect()))
    }
}

impl Parse for Entry {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        if !input.peek(Ident::peek_any) {
            return Err(input.error("expected the name of an attribute, such as `effect = readonly`"));
        }
        let name = input.call(Ident::parse_any)?;
        let given = if input.peek(token::Paren) {
            let list;
            parenthesized!(list in input);
            Given::Entries(Entries::parse(&list)?.0)
        } else if input.peek(Token![=]) {
            input.parse::<Token![=]>()?;
            Given::Value(input.parse()?)
        } else if input.is_empty() || input.peek(Token![,]) {
            Given::Nothing
        } else {
            return Err(input.error(format!("expected `=`, `(` or `,` after `{name}`")));
        };
        Ok(Self { name, given })
    }
}

/// An entry together with an example of how it is written, for the message if it is not.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub(crate) entry: &'a Entry,
    pub(crate) example: &'a str,
}

impl<'a> Reader<'a> {
    /// The value must be something else.
    pub(crate) fn wrong(self, what: impl std::fmt::Display) -> Error {
        let Entry { name, given } = self.entry;
        let message = format!("`{name}` {what}: `{}`", self.example);
        match given {
            Given::Value(value) => Error::new_spanned(value, message),
            _ => Error::new(name.span(), message),
        }
    }

    fn literal(self) -> Option<&'a Lit> {
        match &self.entry.given {
            Given::Value(Expr::Lit(ExprLit { lit, .. })) => Some(lit),
            _ => None,
        }
    }

    pub(crate) fn flag(self) -> Result<()> {
        match self.entry.given {
            Given::Nothing => Ok(()),
            _ => Err(self.wrong("stands alone, without a value")),
        }
    }

    pub(crate) fn text(self) -> Result<&'a LitStr> {
        match self.literal() {
            Some(Lit::Str(text)) if text.value().trim().is_empty() => Err(self.wrong("is empty; write for instance")),
            Some(Lit::Str(text)) => Ok(text),
            _ => Err(self.wrong("is a text in quotes")),
        }
    }

    pub(crate) fn texts(self) -> Result<Vec<&'a LitStr>> {
        let wrong = || self.wrong("is a list of texts in quotes");
        let Given::Value(Expr::Array(list)) = &self.entry.given else { return Err(wrong()) };
        list.elems
            .iter()
            .map(|item| match item {
                Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) if !text.value().trim().is_empty() => Ok(text),
                _ => Err(wrong()),
            })
            .collect()
    }

    /// One of a few words: the first of a pair is how it is written here, the second how the kernel calls it.
    pub(crate) fn word(self, words: &[(&str, &str)]) -> Result<Ident> {
        let known = || words.iter().map(|(word, _)| *word);
        let wrong = || format!("is one of {}; write for instance", near::list(known()));
        let Some(path) = self.plain_path() else { return Err(self.wrong(wrong())) };
        let found = path.path.get_ident().and_then(|given| {
            let (_, kernel) = words.iter().find(|(word, _)| given == word)?;
            Some(Ident::new(kernel, given.span()))
        });
        found.ok_or_else(|| self.wrong(wrong()))
    }

    pub(crate) fn path(self) -> Result<&'a ExprPath> {
        self.plain_path().ok_or_else(|| self.wrong("is the path of an async fn"))
    }

    fn plain_path(self) -> Option<&'a ExprPath> {
        match &self.entry.given {
            Given::Value(Expr::Path(path)) if path.attrs.is_empty() => Some(path),
            _ => None,
        }
    }

    pub(crate) fn duration(self) -> Result<TokenStream> {
        let Some(Lit::Str(text)) = self.literal() else { return Err(self.wrong("is a duration in quotes")) };
        let millis = duration::millis(&text.value())
            .map_err(|problem| Error::new_spanned(text, format!("{problem}; write for instance `{}`", self.example)))?;
        Ok(quote!(::core::time::Duration::from_millis(#millis)))
    }

    /// A whole number from 1.
    pub(crate) fn count(self) -> Result<u32> {
        match self.literal() {
            Some(Lit::Int(number)) => self.positive(number),
            _ => Err(self.wrong("is a whole number")),
        }
    }

    fn positive(self, number: &LitInt) -> Result<u32> {
        match number.base10_parse::<u32>() {
            Ok(0) => Err(self.wrong("is at least 1")),
            Ok(count) if number.suffix().is_empty() => Ok(count),
            _ => Err(self.wrong("is a plain whole number below 2³²")),
        }
    }

    pub(crate) fn entries(self) -> Result<&'a [Entry]> {
        match &self.entry.given {
            Given::Entries(entries) if !entries.is_empty() => Ok(entries),
            _ => Err(self.wrong("has its settings in parentheses")),
        }
    }

    /// Whether a value in quotes was given.
    pub(crate) fn is_text(self) -> bool {
        matches!(self.literal(), Some(Lit::Str(_)))
    }
}
