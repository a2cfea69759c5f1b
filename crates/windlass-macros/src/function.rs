//! The function under `#[tool]`: parsed, and refused if it cannot be a tool.

use proc_macro2::{TokenStream, TokenTree};
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, FnArg, PathArguments, Result, ReturnType, Safety, Signature, Token, Type, Visibility, token};

use crate::mistakes::Mistakes;
use crate::parameter::{self, Context, Parameter};
use crate::types::{self, Unfit};

/// The function as written. Its block is not parsed.
pub(crate) struct Function {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) signature: Signature,
    pub(crate) block: TokenTree,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        let is_function = input.peek(Token![async])
            || input.peek(Token![fn])
            || input.peek(Token![unsafe])
            || input.peek(Token![extern])
            || (input.peek(Token![const]) && !input.peek2(syn::Ident));
        if !is_function {
            return Err(input.error("`#[tool]` must be on an async fn"));
        }
        let signature = input.parse()?;
        if !input.peek(token::Brace) {
            return Err(input.error("a tool must have a body: `{ … }`"));
        }
        let block = input.parse()?;
        if !input.is_empty() {
            return Err(input.error("`#[tool]` must be on a single async fn"));
        }
        Ok(Self { attributes, visibility, signature, block })
    }
}

/// The parts of the signature.
pub(crate) struct Shape {
    pub(crate) context: Option<Context>,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) output: Output,
}

/// The two types of a result: as written, and of its `Ok`.
pub(crate) struct Output {
    pub(crate) result: Type,
    pub(crate) ok: Type,
}

impl Function {
    /// Parses the signature, and removes the attributes of the macro from it.
    pub(crate) fn shape(&mut self, mistakes: &mut Mistakes) -> Option<Shape> {
        self.check_kind(mistakes);
        let output = output(&self.signature, mistakes);
        let (mut context, mut parameters) = (None, Vec::new());
        for (index, input) in self.signature.inputs.iter_mut().enumerate() {
            let parameter = match input {
                FnArg::Typed(parameter) => parameter,
                FnArg::Receiver(receiver) => {
                    let way = "for a tool with state, capture it in a closure given to `Tool::new`";
                    mistakes.at(receiver, format!("a tool is a free function, without `self`; {way}"));
                    continue;
                }
            };
            match Context::of(parameter, index == 0) {
                Some(found) => {
                    context = mistakes.note(found).or(context);
                    parameter::strip_context(parameter, mistakes);
                }
                None => parameters.extend(Parameter::read(parameter, mistakes)),
            }
        }
        Some(Shape { context, parameters, output: output? })
    }

    fn check_kind(&self, mistakes: &mut Mistakes) {
        let signature = &self.signature;
        if signature.asyncness.is_none() {
            mistakes.at(signature.fn_token, "a tool is an async fn: write `async fn`");
        }
        if let Some(constness) = &signature.constness {
            mistakes.at(constness, "a tool is a plain async fn, not `const`");
        }
        if !matches!(signature.safety, Safety::Default) {
            mistakes.at(&signature.safety, "a tool is a safe fn: models call it with any arguments");
        }
        if let Some(abi) = &signature.abi {
            mistakes.at(abi, "a tool is a plain async fn, not `extern`");
        }
        let generics = &signature.generics;
        if !generics.params.is_empty() {
            let problem = "a tool has no generic parameters: arguments are decoded from JSON, so name the types";
            mistakes.at(&generics.params, problem);
        }
        if let Some(clause) = &generics.where_clause {
            mistakes.at(clause, "a tool has no generic parameters, so there is nothing to bound");
        }
    }
}

fn output(signature: &Signature, mistakes: &mut Mistakes) -> Option<Output> {
    let wanted = "a tool returns `ToolResult<T>`, or `Result<T, E>` with an error that converts into `ToolError`";
    let ReturnType::Type(_, result) = &signature.output else {
        mistakes.at(&signature.ident, format!("{wanted}; without a value it returns `ToolResult<()>`"));
        return None;
    };
    let Some(ok) = ok_type(result) else {
        mistakes.at(result, wanted);
        return None;
    };
    match types::unfit(ok) {
        // `&'static str` needs no owner.
        Some(Unfit::Borrows(reference)) if reference.lifetime.as_ref().is_some_and(|l| l.ident == "static") => {}
        Some(Unfit::Borrows(reference)) => {
            mistakes.at(reference, "return an owned type, such as `String`: results are kept in a journal");
        }
        Some(Unfit::Unnamed(ty)) => mistakes.at(ty, "name the type: the output schema comes from it"),
        None => {}
    }
    Some(Output { result: (**result).clone(), ok: ok.clone() })
}

fn ok_type(result: &Type) -> Option<&Type> {
    let segment = types::last_segment(result)?;
    let most = match segment.ident.to_string().as_str() {
        "ToolResult" => 1,
        // An alias such as `io::Result<T>` has its error inside.
        "Result" => 2,
        _ => return None,
    };
    let PathArguments::AngleBracketed(list) = &segment.arguments else { return None };
    let types = types::type_arguments(segment);
    if list.args.len() != types.len() || types.len() > most {
        return None;
    }
    types.first().copied()
}

/// The attributes of a function, sorted by the item they belong to.
pub(crate) struct SortedAttributes {
    /// `#[cfg]`: on everything.
    pub(crate) cfgs: Vec<Attribute>,
    /// Docs: on the type, and on the plain function.
    pub(crate) docs: Vec<Attribute>,
    /// `#[deprecated]`: on the functions that create and call the tool.
    pub(crate) deprecated: Vec<Attribute>,
    /// The rest: on the plain function.
    pub(crate) rest: Vec<Attribute>,
}

pub(crate) fn sort_attributes(attributes: &[Attribute]) -> SortedAttributes {
    let mut sorted = SortedAttributes { cfgs: Vec::new(), docs: Vec::new(), deprecated: Vec::new(), rest: Vec::new() };
    for attribute in attributes {
        let path = attribute.path();
        let list = match () {
            () if path.is_ident("cfg") => &mut sorted.cfgs,
            () if path.is_ident("doc") => &mut sorted.docs,
            () if path.is_ident("deprecated") => &mut sorted.deprecated,
            () => &mut sorted.rest,
        };
        list.push(attribute.clone());
    }
    sorted
}

impl SortedAttributes {
    /// The `#[allow]` attributes, which apply to everything that is generated.
    pub(crate) fn allows(&self) -> TokenStream {
        let allows = self.rest.iter().filter(|attribute| attribute.path().is_ident("allow"));
        quote::quote!(#(#allows)*)
    }
}
