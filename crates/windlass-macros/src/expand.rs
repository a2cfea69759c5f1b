//! Generates the tool.
//!
//! For `pub async fn add(a: f64, b: f64) -> ToolResult<f64>` it generates:
//!
//! ```text
//! pub enum add {}                       // a namespace for the two functions below
//! impl add {
//!     pub fn call(a: impl Arg<f64>, b: impl Arg<f64>) -> ToolCall<f64> { … }
//!     pub async fn body(a: f64, b: f64) -> ToolResult<f64> { /* as written */ }
//! }
//! pub fn add() -> Tool {                // a function, so that `let add = …` may shadow it
//!     struct __Args<A, B> { a: A, b: B } // Deserialize, JsonSchema
//!     struct __Body;                    // Atomic or Durable
//!     …
//! }
//! ```

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{ExprPath, Ident, LitStr, Result};

use crate::attributes::{self, Attributes};
use crate::docs;
use crate::function::{self, Function, Output, Shape, SortedAttributes};
use crate::mistakes::Mistakes;
use crate::parameter::{Context, Parameter};
use crate::types;
use crate::value::Entries;

/// Expands the attribute.
pub(crate) fn tool(attributes: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let mut mistakes = Mistakes::default();
    let entries = mistakes.note(syn::parse2::<Entries>(attributes)).unwrap_or(Entries(Vec::new()));
    let attributes = attributes::read(entries, &mut mistakes);
    let Some(mut function) = mistakes.note(syn::parse2::<Function>(item)) else {
        return mistakes.finish().map(|()| TokenStream::new());
    };
    let shape = function.shape(&mut mistakes);
    let statements = attributes.statements(&mut mistakes);
    let name = attributes.name(&function.signature.ident, &mut mistakes);
    if !attributes.has_description() && !docs::has_text(&function.attributes) {
        let ident = &function.signature.ident;
        let problem = "has no description, and models choose tools by their descriptions: write a doc comment above";
        mistakes.at(ident, format!("tool `{ident}` {problem} it (`/// Current weather for a city.`)"));
    }
    if let Some(shape) = &shape {
        let parameters: Vec<String> = shape.parameters.iter().map(Parameter::name).collect();
        attributes.check(shape.context == Some(Context::Ctx), &parameters, &mut mistakes);
    }
    mistakes.finish()?;
    let Some(shape) = shape else { return Ok(TokenStream::new()) };
    Ok(Tool { function, shape, attributes, statements, name }.expand())
}

struct Tool {
    function: Function,
    shape: Shape,
    attributes: Attributes,
    statements: Vec<TokenStream>,
    name: LitStr,
}

impl Tool {
    fn expand(&self) -> TokenStream {
        let Function { visibility, signature, .. } = &self.function;
        let ident = &signature.ident;
        let sorted = function::sort_attributes(&self.function.attributes);
        let SortedAttributes { cfgs, docs, deprecated, .. } = &sorted;
        let allows = sorted.allows();
        let call = self.call();
        let body = self.body(&sorted);
        let construct = self.construct();
        quote! {
            #(#cfgs)*
            #(#docs)*
            #[allow(non_camel_case_types, dead_code)]
            #visibility enum #ident {}

            #(#cfgs)*
            #[allow(dead_code)]
            impl #ident {
                #(#deprecated)*
                #call
                #body
            }

            #(#cfgs)*
            #(#deprecated)*
            #allows
            #[doc(hidden)]
            #visibility fn #ident() -> ::windlass::__private::core::tool::Tool {
                #construct
            }
        }
    }

    /// `call`: the typed constructor of calls.
    fn call(&self) -> TokenStream {
        let visibility = &self.function.visibility;
        // The caller gets the reply, whether it is sent now or later.
        let ok = types::reply_type(&self.shape.output.ok);
        let id = self.attributes.id().unwrap_or(&self.name);
        let idents: Vec<&Ident> = self.shape.parameters.iter().map(|parameter| &parameter.ident).collect();
        let types = self.shape.parameters.iter().map(|parameter| &parameter.ty);
        let names: Vec<String> = self.shape.parameters.iter().map(Parameter::name).collect();
        let doc = format!("A call of `{}`.", self.name.value());
        let call = Ident::new("call", self.function.signature.ident.span());
        // `mixed_site` keeps these two apart from parameters of the same name.
        let tool = Ident::new("tool", Span::mixed_site());
        let args = Ident::new("args", Span::mixed_site());
        let mutable = (!idents.is_empty()).then(|| quote!(mut));
        quote! {
            #[doc = #doc]
            #[allow(clippy::too_many_arguments)]
            #visibility fn #call(
                #(#idents: impl ::windlass::__private::core::tool::Arg<#types>),*
            ) -> ::windlass::__private::core::call::ToolCall<#ok> {
                let #tool = ::windlass::__private::core::call::ToolRef::Id(::core::convert::Into::into(#id));
                let #mutable #args = ::windlass::__private::serde_json::Map::new();
                #(
                    match ::windlass::__private::serde_json::to_value(&#idents) {
                        ::core::result::Result::Ok(value) => {
                            #args.insert(::std::string::String::from(#names), value);
                        }
                        ::core::result::Result::Err(error) => {
                            return ::windlass::__private::core::call::ToolCall::broken(
                                #tool,
                                ::std::format!("argument `{}` is not JSON: {error}", #names),
                            );
                        }
                    }
                )*
                ::windlass::__private::core::call::ToolCall::to(
                    #tool,
                    ::windlass::__private::serde_json::Value::Object(#args),
                )
            }
        }
    }

    /// `body`: the function as written.
    fn body(&self, sorted: &SortedAttributes) -> TokenStream {
        let Function { visibility, signature, block, .. } = &self.function;
        let SortedAttributes { docs, rest, .. } = sorted;
        let mut signature = signature.clone();
        signature.ident = Ident::new("body", signature.ident.span());
        quote! {
            #(#docs)*
            #(#rest)*
            #visibility #signature #block
        }
    }

    /// The body of the function that creates the tool.
    fn construct(&self) -> TokenStream {
        let Self { name, statements, .. } = self;
        let description = match self.attributes.description() {
            Some(text) => quote!(#text),
            None => docs::description(&self.function.attributes),
        };
        let arguments = self.arguments();
        let run = self.run();
        let constructor = format_ident!("{}", if self.durable() { "durable" } else { "atomic" });
        let ok = &self.shape.output.ok;
        // Some model APIs refuse an object without `properties`.
        let input = match self.shape.parameters.as_slice() {
            [] => quote! {
                ::windlass::__private::serde_json::json!({
                    "type": "object", "properties": {}, "additionalProperties": false
                })
            },
            _ => {
                let given = self.given();
                quote_spanned!(self.blamed()=> <#given as __kernel::Arguments>::schema())
            }
        };
        let schema = quote_spanned!(at(ok)=> <#ok as __kernel::IntoOutput>::schema());
        let spec = if statements.iter().all(TokenStream::is_empty) { quote!(__spec) } else { quote!(mut __spec) };
        let (reconcile, settle) = self.attributes.reconcile().map(|path| self.reconcile(path)).unzip();
        let (prepare, prepared) = self.attributes.prepare().map(prepare).unzip();
        let channels = self.attributes.channels();
        quote! {
            use ::windlass::__private::core::tool as __kernel;
            #arguments
            #run
            #reconcile
            #prepare
            let #spec = __kernel::ToolSpec::new(#name, #description);
            #(#statements)*
            let __schemas = __kernel::Schemas { input: #input, output: #schema };
            __kernel::Tool::#constructor(__spec, __schemas, __Body) #settle #prepared #channels
        }
    }

    fn durable(&self) -> bool {
        self.shape.context == Some(Context::Ctx)
    }

    /// The hidden struct the arguments are decoded into.
    fn arguments(&self) -> TokenStream {
        let fields = self.shape.parameters.iter().enumerate().map(|(index, parameter)| parameter.field(index));
        let (fields, defaults): (Vec<_>, Vec<_>) = fields.unzip();
        let parameters = self.shape.parameters.iter().enumerate();
        let generics: Vec<Ident> = parameters.filter_map(|(index, parameter)| parameter.generic(index)).collect();
        let bounds = generics.iter().map(|generic| format!("{generic}: __kernel::Parameter,")).collect::<String>();
        quote! {
            #[derive(::windlass::__private::serde::Deserialize, ::windlass::__private::schemars::JsonSchema)]
            #[serde(crate = "::windlass::__private::serde", deny_unknown_fields, bound = #bounds)]
            #[schemars(crate = "::windlass::__private::schemars", bound = #bounds)]
            struct __Args<#(#generics),*> {
                #(#fields,)*
            }
            #(#defaults)*
        }
    }

    /// The type of the arguments: the hidden struct with the types of the parameters.
    fn given(&self) -> TokenStream {
        let parameters = self.shape.parameters.iter().enumerate();
        let types = parameters.filter_map(|(index, parameter)| parameter.generic(index).map(|_| &parameter.ty));
        quote_spanned!(self.blamed()=> __Args<#(#types),*>)
    }

    /// Where the compiler reports a parameter whose type cannot be decoded: at the first type that may be the reason.
    fn blamed(&self) -> Span {
        let types = || self.shape.parameters.iter().map(|parameter| &parameter.ty);
        let ty = types().find(|ty| !types::is_of_std(ty)).or_else(|| types().next());
        ty.map_or_else(Span::call_site, at)
    }

    /// The hidden type that decodes the arguments, runs the function and encodes its result.
    fn run(&self) -> TokenStream {
        let ident = &self.function.signature.ident;
        let Output { result, ok } = &self.shape.output;
        let arguments = self.shape.parameters.iter().map(|parameter| {
            let field = &parameter.ident;
            quote!(__args.#field)
        });
        let context = match self.shape.context {
            Some(Context::Call) => Some(quote!(&__call,)),
            Some(Context::Ctx) => Some(quote!(&mut __ctx,)),
            None => None,
        };
        let used = (!self.shape.parameters.is_empty()).then(|| quote!(let __args =));
        let converted = quote_spanned! {at(result)=>
            ::core::result::Result::map_err(__result, ::core::convert::Into::into)
        };
        // The same path as for the schema: the compiler reports an unfit type once.
        let encoded = quote_spanned!(at(ok)=> <#ok as __kernel::IntoOutput>::encode(#converted));
        let given = self.given();
        let decode = quote_spanned!(self.blamed()=> <#given as __kernel::Arguments>::decode);
        // If the function's future is not `Send`, the compiler points at the function's name and explains which value
        // is held across which await.
        let run = |source: TokenStream| {
            quote_spanned! {at(ident)=>
                ::std::boxed::Box::pin(async move {
                    #used #decode(#source)?;
                    let __result: #result = #ident::body(#context #(#arguments),*).await;
                    #encoded
                })
            }
        };
        let future = quote! {
            ::core::pin::Pin<::std::boxed::Box<
                dyn ::core::future::Future<Output = __kernel::ToolResult<__kernel::Output>> + ::core::marker::Send,
            >>
        };
        if self.durable() {
            let run = run(quote!(&__given));
            quote! {
                struct __Body;
                impl __kernel::Durable for __Body {
                    fn enter(
                        &self,
                        mut __ctx: ::windlass::__private::core::ctx::Ctx,
                        __given: ::std::sync::Arc<::windlass::__private::serde_json::Value>,
                    ) -> #future {
                        #run
                    }
                }
            }
        } else {
            let run = run(quote!(__call.args()));
            quote! {
                struct __Body;
                impl __kernel::Atomic for __Body {
                    fn attempt(&self, __call: ::windlass::__private::core::call::Call) -> #future {
                        #run
                    }
                }
            }
        }
    }

    /// A function whose signature makes the compiler check the type of `reconcile`, and the call that passes it to the
    /// tool.
    fn reconcile(&self, path: &ExprPath) -> (TokenStream, TokenStream) {
        let ok = types::reply_type(&self.shape.output.ok);
        let output = quote!(__kernel::ToolResult<__kernel::Reconciled<#ok>>);
        let checked = quote_spanned! {at(path)=>
            fn __reconcile(
                __call: &::windlass::__private::core::call::Call,
            ) -> impl ::core::future::Future<Output = #output> + ::core::marker::Send {
                #path(__call)
            }
        };
        let settle = quote! {
            .reconcile(|__call: ::windlass::__private::core::call::Call| async move { __reconcile(&__call).await })
        };
        (checked, settle)
    }
}

/// A function whose signature makes the compiler check the type of `prepare`, and the call that passes it to the tool.
fn prepare(path: &ExprPath) -> (TokenStream, TokenStream) {
    let output = quote!(__kernel::ToolResult<::windlass::__private::core::call::Preparation>);
    let checked = quote_spanned! {at(path)=>
        fn __prepare(
            __call: &::windlass::__private::core::call::Call,
        ) -> impl ::core::future::Future<Output = #output> + ::core::marker::Send {
            #path(__call)
        }
    };
    let prepared = quote! {
        .prepare(|__call: ::windlass::__private::core::call::Call| async move { __prepare(&__call).await })
    };
    (checked, prepared)
}

/// The span of user code, with the names that generated code sees: errors are reported there.
fn at(tokens: &impl Spanned) -> Span {
    tokens.span().resolved_at(Span::call_site())
}
