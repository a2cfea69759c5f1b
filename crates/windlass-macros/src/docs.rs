//! Doc comments as text.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Attribute, Expr, ExprLit, Lit, Meta};

/// The text of a `#[doc = …]` attribute.
pub(crate) fn text(attribute: &Attribute) -> Option<&Expr> {
    match &attribute.meta {
        Meta::NameValue(meta) if meta.path.is_ident("doc") => Some(&meta.value),
        _ => None,
    }
}

/// Whether there is a doc comment that says something.
pub(crate) fn has_text(attributes: &[Attribute]) -> bool {
    attributes.iter().filter_map(text).any(|value| match value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => !text.value().trim().is_empty(),
        // Only the compiler knows the text of `include_str!`.
        _ => true,
    })
}

/// An expression for the description: the doc comment as written, without the space after the slashes.
pub(crate) fn description(attributes: &[Attribute]) -> TokenStream {
    let mut pieces = Vec::new();
    for value in attributes.iter().filter_map(text) {
        pieces.push(match value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Ok(lines(&text.value())),
            // `#[doc = include_str!("tool.md")]`: only the compiler knows the text.
            other => Err(other),
        });
    }
    if pieces.iter().all(Result::is_ok) {
        let text = pieces.into_iter().flatten().collect::<Vec<_>>().join("\n");
        let text = text.trim();
        return quote!(#text);
    }
    let pieces = pieces.into_iter().map(|piece| match piece {
        Ok(text) => quote!(#text, "\n"),
        Err(value) => quote!(#value, "\n"),
    });
    quote!(::core::primitive::str::trim(::core::concat!(#(#pieces),*)))
}

/// The lines of a comment without its markers.
fn lines(comment: &str) -> String {
    let rest = || comment.lines().skip(1).map(str::trim_start);
    // `/** … */` with a column of stars.
    let starred = rest().any(|line| !line.is_empty()) && rest().all(|line| line.is_empty() || line.starts_with('*'));
    let line = |(number, line): (usize, &str)| {
        let line = if starred && number > 0 { unstarred(line) } else { line };
        line.strip_prefix(' ').unwrap_or(line).trim_end().to_owned()
    };
    comment.lines().enumerate().map(line).collect::<Vec<_>>().join("\n")
}

fn unstarred(line: &str) -> &str {
    let line = line.trim_start();
    line.strip_prefix('*').unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    fn described(function: &syn::ItemFn) -> String {
        description(&function.attrs).to_string()
    }

    #[test]
    fn lines_are_joined_as_written() {
        let text = described(&parse_quote! {
            /// Does it.
            ///
            /// - once
            ///   or `twice`
            ///
            fn f() {}
        });
        assert_eq!(text, quote!("Does it.\n\n- once\n  or `twice`").to_string());
    }

    #[test]
    fn stars_of_a_block_comment_are_not_text() {
        assert_eq!(
            lines(" Does it.\n     *\n     * - once\n     *   or twice\n     "),
            "Does it.\n\n- once\n  or twice\n"
        );
        assert_eq!(lines("Does it.\n* once\nor twice"), "Does it.\n* once\nor twice");
    }

    #[test]
    fn no_comment_is_no_description() {
        assert_eq!(
            described(&parse_quote!(
                #[inline]
                fn f() {}
            )),
            quote!("").to_string()
        );
    }
}
