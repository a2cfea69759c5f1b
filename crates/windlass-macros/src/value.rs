//! The syntax in the parentheses of `#[tool(…)]`: names and their values.

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, Expr, ExprLit, ExprPath, Ident, Lit, LitInt, LitStr, Result, Token, parenthesized, token};

use crate::{duration, near};

/// `name`, `name = value` or `name(entries)`.
pub(crate) struct AttributeEntry {
    pub(crate) name: Ident,
    value: EntryValue,
}

enum EntryValue {
    Nothing,
    Expr(Expr),
    Entries(Vec<AttributeEntry>),
}

/// Entries separated by commas.
pub(crate) struct Entries(pub(crate) Vec<AttributeEntry>);

impl Parse for Entries {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        Ok(Self(Punctuated::<AttributeEntry, Token![,]>::parse_terminated(input)?.into_iter().collect()))
    }
}

impl Parse for AttributeEntry {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        if !input.peek(Ident::peek_any) {
            return Err(input.error("expected the name of an attribute, such as `effect = readonly`"));
        }
        let name = input.call(Ident::parse_any)?;
        let value = if input.peek(token::Paren) {
            let list;
            parenthesized!(list in input);
            EntryValue::Entries(Entries::parse(&list)?.0)
        } else if input.peek(Token![=]) {
            input.parse::<Token![=]>()?;
            EntryValue::Expr(input.parse()?)
        } else if input.is_empty() || input.peek(Token![,]) {
            EntryValue::Nothing
        } else {
            return Err(input.error(format!("expected `=`, `(` or `,` after `{name}`")));
        };
        Ok(Self { name, value })
    }
}

/// An entry together with an example of its syntax, for error messages.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub(crate) entry: &'a AttributeEntry,
    pub(crate) example: &'a str,
}

impl<'a> Reader<'a> {
    /// The error for a value that is not what it must be.
    pub(crate) fn wrong(self, what: impl std::fmt::Display) -> Error {
        let AttributeEntry { name, value } = self.entry;
        let message = format!("`{name}` {what}: `{}`", self.example);
        match value {
            EntryValue::Expr(expr) => Error::new_spanned(expr, message),
            _ => Error::new(name.span(), message),
        }
    }

    fn literal(self) -> Option<&'a Lit> {
        match &self.entry.value {
            EntryValue::Expr(Expr::Lit(ExprLit { lit, .. })) => Some(lit),
            _ => None,
        }
    }

    pub(crate) fn flag(self) -> Result<()> {
        match self.entry.value {
            EntryValue::Nothing => Ok(()),
            _ => Err(self.wrong("takes no value")),
        }
    }

    pub(crate) fn text(self) -> Result<&'a LitStr> {
        match self.literal() {
            Some(Lit::Str(text)) if text.value().trim().is_empty() => Err(self.wrong("is empty; write, for example")),
            Some(Lit::Str(text)) => Ok(text),
            _ => Err(self.wrong("must be a text in quotes")),
        }
    }

    pub(crate) fn texts(self) -> Result<Vec<&'a LitStr>> {
        let wrong = || self.wrong("must be a list of texts in quotes");
        let EntryValue::Expr(Expr::Array(list)) = &self.entry.value else { return Err(wrong()) };
        list.elems
            .iter()
            .map(|item| match item {
                Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) if !text.value().trim().is_empty() => Ok(text),
                _ => Err(wrong()),
            })
            .collect()
    }

    /// One of a few words. The first of a pair is the word in the attribute, the second its name in the kernel.
    pub(crate) fn word(self, words: &[(&str, &str)]) -> Result<Ident> {
        let known = || words.iter().map(|(word, _)| *word);
        let wrong = || format!("must be one of {}; write, for example", near::list(known()));
        let Some(path) = self.plain_path() else { return Err(self.wrong(wrong())) };
        let found = path.path.get_ident().and_then(|given| {
            let (_, kernel) = words.iter().find(|(word, _)| given == word)?;
            Some(Ident::new(kernel, given.span()))
        });
        found.ok_or_else(|| self.wrong(wrong()))
    }

    pub(crate) fn path(self) -> Result<&'a ExprPath> {
        self.plain_path().ok_or_else(|| self.wrong("must be the path of an async fn"))
    }

    fn plain_path(self) -> Option<&'a ExprPath> {
        match &self.entry.value {
            EntryValue::Expr(Expr::Path(path)) if path.attrs.is_empty() => Some(path),
            _ => None,
        }
    }

    pub(crate) fn duration(self) -> Result<TokenStream> {
        let Some(Lit::Str(text)) = self.literal() else { return Err(self.wrong("must be a duration in quotes")) };
        let millis = duration::millis(&text.value()).map_err(|problem| {
            Error::new_spanned(text, format!("{problem}; write, for example, `{}`", self.example))
        })?;
        Ok(quote!(::core::time::Duration::from_millis(#millis)))
    }

    /// A whole number of at least 1.
    pub(crate) fn count(self) -> Result<u32> {
        match self.literal() {
            Some(Lit::Int(number)) => self.positive(number),
            _ => Err(self.wrong("must be a whole number")),
        }
    }

    fn positive(self, number: &LitInt) -> Result<u32> {
        match number.base10_parse::<u32>() {
            Ok(0) => Err(self.wrong("must be at least 1")),
            Ok(count) if number.suffix().is_empty() => Ok(count),
            _ => Err(self.wrong("must be a plain whole number below 2³²")),
        }
    }

    pub(crate) fn entries(self) -> Result<&'a [AttributeEntry]> {
        match &self.entry.value {
            EntryValue::Entries(entries) if !entries.is_empty() => Ok(entries),
            _ => Err(self.wrong("needs its settings in parentheses")),
        }
    }

    /// Whether the value is a text in quotes.
    pub(crate) fn is_text(self) -> bool {
        matches!(self.literal(), Some(Lit::Str(_)))
    }
}
