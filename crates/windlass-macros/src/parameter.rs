//! The parameters of a tool: the call or the context, then the arguments.

use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Attribute, Error, Expr, ExprLit, Ident, Lit, Meta, Pat, PatType, Result, Type};

use crate::docs;
use crate::mistakes::Mistakes;
use crate::types::{self, Unfit};

/// What a body may take besides its arguments.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Context {
    /// `&Call`: the body stays atomic.
    Call,
    /// `&mut Ctx`: the body is durable.
    Ctx,
}

impl Context {
    /// Whether a parameter is, or is meant to be, the call or the context. `Err` explains the right syntax.
    pub(crate) fn of(parameter: &PatType, first: bool) -> Option<Result<Self>> {
        let (target, mutable) = match types::plain(&parameter.ty) {
            Type::Reference(reference) => (&*reference.elem, Some(reference.mutability.is_some())),
            owned => (owned, None),
        };
        let segment = types::last_segment(target).filter(|segment| segment.arguments.is_none())?;
        let (context, way, right) = if segment.ident == "Call" {
            (Self::Call, "`call: &Call`", mutable == Some(false))
        } else if segment.ident == "Ctx" {
            (Self::Ctx, "`ctx: &mut Ctx`", mutable == Some(true))
        } else {
            return None;
        };
        Some(if !right {
            Err(Error::new_spanned(parameter, format!("write {way}, as the first parameter")))
        } else if !first {
            let problem = "comes first, and a tool takes one of `&Call` and `&mut Ctx`: move it to the front";
            Err(Error::new_spanned(parameter, format!("{way} {problem}")))
        } else {
            Ok(context)
        })
    }
}

/// An argument.
pub(crate) struct Parameter {
    pub(crate) ident: Ident,
    pub(crate) ty: Type,
    default: Default,
    /// Docs and `#[schemars(…)]`, which shape the schema.
    schema: Vec<Attribute>,
}

/// The value of an argument that is left out.
enum Default {
    /// None: that is an error, unless it is an `Option`.
    None,
    /// The default of its type.
    OfType,
    /// This value.
    Value(Box<Expr>),
}

impl Parameter {
    /// Parses an argument, and removes the attributes of the macro from the function.
    pub(crate) fn read(parameter: &mut PatType, mistakes: &mut Mistakes) -> Option<Self> {
        let (schema, default) = attributes(&mut parameter.attrs, mistakes);
        match types::unfit(&parameter.ty) {
            Some(Unfit::Borrows(reference)) => {
                mistakes.at(reference, format!("{}: arguments are decoded from JSON", types::owned(reference)));
            }
            Some(Unfit::Unnamed(ty)) => mistakes.at(ty, "name a type: arguments are decoded from JSON"),
            None => {}
        }
        let Pat::Ident(pattern) = &*parameter.pat else {
            let problem = "give the parameter a name and take it apart in the body: arguments are decoded by name";
            mistakes.at(&parameter.pat, problem);
            return None;
        };
        if pattern.by_ref.is_some() || pattern.subpat.is_some() {
            mistakes.at(pattern, "write just a name: arguments are decoded by name");
        }
        Some(Self { ident: pattern.ident.clone(), ty: (*parameter.ty).clone(), default, schema })
    }

    /// Its name in JSON.
    pub(crate) fn name(&self) -> String {
        self.ident.unraw().to_string()
    }

    /// The type parameter that its field has in the hidden struct for the arguments. The bounds on it make the compiler
    /// report a type that cannot be decoded, once and with a way out. A default needs the type itself, and so does
    /// `#[schemars(with = …)]`, where the type needs no schema.
    pub(crate) fn generic(&self, index: usize) -> Option<Ident> {
        let is_replaced = |attribute: &Attribute| match &attribute.meta {
            Meta::List(list) => list.tokens.clone().into_iter().any(|token| match token {
                TokenTree::Ident(word) => word == "with" || word == "schema_with",
                _ => false,
            }),
            _ => false,
        };
        let plain = matches!(self.default, Default::None) && !self.schema.iter().any(is_replaced);
        plain.then(|| format_ident!("__Parameter{index}"))
    }

    /// The field of the hidden struct for the arguments, and the function for its default.
    pub(crate) fn field(&self, index: usize) -> (TokenStream, Option<TokenStream>) {
        let Self { ident, ty, schema, .. } = self;
        if let Some(generic) = self.generic(index) {
            return (quote!(#(#schema)* #ident: #generic), None);
        }
        match &self.default {
            Default::None => (quote!(#(#schema)* #ident: #ty), None),
            Default::OfType => (quote!(#(#schema)* #[serde(default)] #ident: #ty), None),
            Default::Value(value) => {
                let function = format_ident!("__default_{index}");
                let path = function.to_string();
                // A string literal is converted, usually to a `String`.
                let value = match &**value {
                    Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => {
                        quote_spanned!(text.span()=> ::core::convert::Into::into(#text))
                    }
                    value => value.to_token_stream(),
                };
                let field = quote!(#(#schema)* #[serde(default = #path)] #ident: #ty);
                (field, Some(quote!(fn #function() -> #ty { #value })))
            }
        }
    }
}

/// Removes the attributes that the context may have, and reports those that it may not.
pub(crate) fn strip_context(parameter: &mut PatType, mistakes: &mut Mistakes) {
    parameter.attrs.retain(|attribute| docs::text(attribute).is_none());
    let mut rest = parameter.attrs.clone();
    let (schema, default) = attributes(&mut rest, mistakes);
    if !schema.is_empty() || !matches!(default, Default::None) {
        mistakes.at(&parameter.pat, "this is not an argument: it has no schema and no default");
    }
}

/// Splits a parameter's attributes; lints stay.
fn attributes(attributes: &mut Vec<Attribute>, mistakes: &mut Mistakes) -> (Vec<Attribute>, Default) {
    let (mut schema, mut default, mut kept) = (Vec::new(), Default::None, Vec::new());
    for attribute in attributes.drain(..) {
        let path = attribute.path();
        let is = |names: &[&str]| names.iter().any(|name| path.is_ident(name));
        if is(&["doc", "schemars"]) {
            schema.push(attribute);
        } else if is(&["allow", "expect", "warn", "deny", "forbid"]) {
            kept.push(attribute);
        } else if is(&["default"]) {
            if !matches!(default, Default::None) {
                mistakes.at(&attribute, "the parameter has a default already");
            }
            default = mistakes.note(value_of(&attribute)).unwrap_or(Default::OfType);
        } else {
            let known = "doc comments, `#[default]` and `#[schemars]`";
            let way = match is(&["serde"]) {
                true => "; use a struct of your own to define how it is decoded",
                false => "",
            };
            mistakes.at(&attribute, format!("a parameter of a tool has {known} only{way}"));
        }
    }
    *attributes = kept;
    (schema, default)
}

fn value_of(attribute: &Attribute) -> Result<Default> {
    Ok(match &attribute.meta {
        Meta::Path(_) => Default::OfType,
        Meta::NameValue(meta) => Default::Value(Box::new(meta.value.clone())),
        Meta::List(list) if list.tokens.is_empty() => {
            return Err(Error::new(list.span(), "write `#[default]`, or the value: `#[default(5)]`"));
        }
        Meta::List(list) => Default::Value(Box::new(list.parse_args()?)),
    })
}
