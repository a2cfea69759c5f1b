//! An operation of a document, with everything needed to send its request.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use windlass::Effect;
use windlass::tool::Schemas;

use super::body::{Body, json_among};
use super::document::{DocumentView, Node};
use super::parameter::{Parameter, ParameterIn};
use super::schema::{Converter, Side, convert};
use super::security::{self, Credential};
use super::{Options, Problem};
use crate::http::effect_of;
use crate::net::{Method, Url};

/// One operation.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) pointer: String,
    pub(crate) method: Method,
    /// Scheme, host and port.
    pub(crate) base: Url,
    /// The whole path, including that of the server.
    pub(crate) path: Vec<Piece>,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) body: Option<Body>,
    pub(crate) credentials: Vec<Credential>,
    pub(crate) effect: Effect,
}

/// A part of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Plain(String),
    Parameter(String),
}

/// The keys of operations in a path item.
pub(crate) const METHODS: [&str; 7] = ["get", "put", "post", "delete", "options", "head", "patch"];

impl Operation {
    /// Parses an operation of a path.
    pub(crate) fn read(
        document: &DocumentView,
        path: &str,
        item: &Node<'_>,
        method: &str,
        options: &Options,
    ) -> Result<Self, Problem> {
        let node = item.get(method).ok_or_else(|| item.problem(format!("there is no operation `{method}`")))?;
        let method: Method = method.to_ascii_uppercase().parse().map_err(|_| node.problem("not a valid method"))?;
        let (base, prefix) = server(document, item, &node, options)?;
        let mut pieces = vec![Piece::Plain(prefix)];
        pieces.extend(pieces_of(path, item)?);
        let mut parameters = parameters(document, item, &node)?;
        let body = node.get("requestBody").map(|body| Body::read(document, body)).transpose()?;
        if body.is_some() && matches!(method, Method::GET | Method::HEAD) {
            return Err(node.problem(format!("a {method} request has no body")));
        }
        name_arguments(&mut parameters, body.is_some());
        check_path(&pieces, &parameters, &node)?;
        let credentials = security::credentials(document, &node, options)?;
        let effect = effect(&node, &method)?;
        Ok(Self { pointer: node.pointer, method, base, path: pieces, parameters, body, credentials, effect })
    }

    /// Its schemas.
    pub(crate) fn schemas(&self, document: &DocumentView) -> Result<Schemas, Problem> {
        let (mut input, definitions) = convert(document, Side::Request, |converter| self.input(document, converter))?;
        if !definitions.is_empty() {
            input["$defs"] = Value::Object(definitions);
        }
        Ok(Schemas { input, output: self.output(document)? })
    }

    fn input(&self, document: &DocumentView, converter: &mut Converter<'_>) -> Result<Value, Problem> {
        let mut properties = Map::new();
        let mut required = Vec::new();
        let mut property = |name: &str, schema: &Option<String>, description: &Option<String>, needed: bool| {
            let node = schema.as_ref().and_then(|pointer| document.at(pointer));
            let mut value = node.map_or(Ok(json!({})), |node| converter.schema(&node))?;
            if let (Some(text), Value::Object(map)) = (description, &mut value) {
                map.entry("description").or_insert_with(|| text.as_str().into());
            }
            properties.insert(name.to_owned(), value);
            if needed {
                required.push(Value::from(name));
            }
            Ok(())
        };
        for parameter in &self.parameters {
            property(&parameter.arg, &parameter.schema, &parameter.description, parameter.required)?;
        }
        if let Some(body) = &self.body {
            property("body", &body.schema, &body.description, body.required)?;
        }
        Ok(json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false}))
    }

    /// The output schema, if every successful response has one.
    fn output(&self, document: &DocumentView) -> Result<Option<Value>, Problem> {
        let responses = document.at(&self.pointer).and_then(|operation| operation.get("responses"));
        let Some(responses) = responses.filter(|_| self.method != Method::HEAD) else { return Ok(None) };
        let mut found: Vec<Option<String>> = Vec::new();
        for (status, response) in responses.children() {
            if !status.starts_with('2') {
                continue;
            }
            let response = document.follow(response)?;
            let content = response.get("content").filter(|content| !content.children().is_empty());
            match content {
                None => found.push(None),
                // A response that may also be something other than JSON has no schema.
                Some(content) if content.children().len() > 1 && json_among(&content).is_some() => return Ok(None),
                Some(content) => match json_among(&content).and_then(|(_, media)| media.get("schema")) {
                    Some(schema) => found.push(Some(schema.pointer)),
                    None => return Ok(None),
                },
            }
        }
        if found.iter().all(Option::is_none) {
            return Ok(None);
        }
        let (mut schemas, definitions) = convert(document, Side::Response, |converter| {
            let one = |pointer: &Option<String>| match pointer.as_ref().and_then(|pointer| document.at(pointer)) {
                Some(node) => converter.schema(&node),
                None => Ok(json!({"type": "null"})),
            };
            found.iter().map(one).collect::<Result<Vec<_>, _>>()
        })?;
        schemas.dedup();
        let mut output = if schemas.len() == 1 { schemas.remove(0) } else { json!({"anyOf": schemas}) };
        if let (false, Value::Object(map)) = (definitions.is_empty(), &mut output) {
            map.insert("$defs".to_owned(), Value::Object(definitions));
        }
        Ok(Some(output))
    }
}

fn effect(node: &Node<'_>, method: &Method) -> Result<Effect, Problem> {
    match node.value.get("x-windlass-effect") {
        None => Ok(effect_of(method)),
        Some(value) => serde_json::from_value(value.clone()).map_err(|_| {
            node.problem(format!("`x-windlass-effect` must be readonly, idempotent or once, not {value}"))
        }),
    }
}

/// The parameters of a path and of its operation. Those of the operation take precedence.
fn parameters(document: &DocumentView, item: &Node<'_>, operation: &Node<'_>) -> Result<Vec<Parameter>, Problem> {
    let mut found: BTreeMap<(ParameterIn, String), Parameter> = BTreeMap::new();
    for node in [item, operation].into_iter().filter_map(|node| node.get("parameters")) {
        for (_, parameter) in node.children() {
            if let Some(parameter) = Parameter::read(document, parameter)? {
                found.insert((parameter.location, parameter.name.clone()), parameter);
            }
        }
    }
    Ok(found.into_values().collect())
}

/// Names the arguments after their parameters. Where two names would be the same, `path_`, `query_` or `header_` is
/// added.
fn name_arguments(parameters: &mut [Parameter], has_body: bool) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    parameters.iter().for_each(|parameter| *counts.entry(parameter.arg.clone()).or_default() += 1);
    if has_body {
        *counts.entry("body".to_owned()).or_default() += 1;
    }
    let mut taken: BTreeSet<String> = has_body.then(|| "body".to_owned()).into_iter().collect();
    for parameter in parameters {
        let location = match parameter.location {
            ParameterIn::Path => "path",
            ParameterIn::Query => "query",
            ParameterIn::Header => "header",
        };
        if counts.get(&parameter.arg).is_some_and(|count| *count > 1) || parameter.arg.is_empty() {
            parameter.arg = format!("{location}_{}", parameter.arg);
        }
        parameter.arg = super::name::unique(&parameter.arg, &mut taken);
    }
}

/// Splits a path at its parameters.
fn pieces_of(path: &str, item: &Node<'_>) -> Result<Vec<Piece>, Problem> {
    let mut pieces = Vec::new();
    let mut rest = path;
    while let Some((plain, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').ok_or_else(|| item.problem("a `{` in the path is not closed"))?;
        pieces.push(Piece::Plain(plain.to_owned()));
        pieces.push(Piece::Parameter(name.to_owned()));
        rest = after;
    }
    pieces.push(Piece::Plain(rest.to_owned()));
    Ok(pieces)
}

/// Checks that the parameters in the path and those that are described are the same.
fn check_path(pieces: &[Piece], parameters: &[Parameter], node: &Node<'_>) -> Result<(), Problem> {
    let described: BTreeSet<&str> = parameters
        .iter()
        .filter(|parameter| parameter.location == ParameterIn::Path)
        .map(|parameter| parameter.name.as_str())
        .collect();
    let present: BTreeSet<&str> = pieces
        .iter()
        .filter_map(|piece| if let Piece::Parameter(name) = piece { Some(name.as_str()) } else { None })
        .collect();
    if let Some(name) = present.difference(&described).next() {
        return Err(node.problem(format!("the path has `{{{name}}}`, but there is no such parameter")));
    }
    if let Some(name) = described.difference(&present).next() {
        return Err(node.problem(format!("the parameter `{name}` is not in the path")));
    }
    Ok(())
}

fn first<'d>(node: &Node<'d>) -> Option<Node<'d>> {
    node.get("servers")?.get_nth(0)
}

/// The server, and the prefix of every path there.
fn server(
    document: &DocumentView,
    item: &Node<'_>,
    operation: &Node<'_>,
    options: &Options,
) -> Result<(Url, String), Problem> {
    let (text, at) = match &options.base {
        Some(base) => (base.clone(), "#".to_owned()),
        None => {
            let of_document = || document.at("#/servers")?.get_nth(0);
            let server = first(operation).or_else(|| first(item)).or_else(of_document);
            let server = server.ok_or_else(|| Problem::at("#", "the document has no server; set `base_url`"))?;
            (with_variables(&server, options)?, server.pointer)
        }
    };
    if text.starts_with('/') {
        return Err(Problem::at(&at, format!("the server `{text}` is relative; set `base_url`")));
    }
    let url: Url = text.parse().map_err(|bad| Problem::at(&at, format!("the server `{text}` is not valid: {bad}")))?;
    if url.target().contains('?') {
        return Err(Problem::at(&at, format!("the server `{text}` must not have a query")));
    }
    let prefix = url.target().trim_end_matches('/').to_owned();
    Ok((url, prefix))
}

/// The URL of a server with its variables, as configured or by default.
fn with_variables(server: &Node<'_>, options: &Options) -> Result<String, Problem> {
    let template = server.text("url").ok_or_else(|| server.problem("a server must have a `url`"))?;
    let mut out = String::new();
    let mut rest = template;
    while let Some((plain, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').ok_or_else(|| server.problem("a `{` in the URL is not closed"))?;
        let variable = server.get("variables").and_then(|variables| variables.get(name));
        let default = variable.as_ref().and_then(|variable| variable.text("default"));
        let value = options.variables.get(name).map(String::as_str).or(default);
        let value = value
            .ok_or_else(|| server.problem(format!("the variable `{name}` has no value; set it in `variables`")))?;
        let allowed = variable.as_ref().and_then(|variable| variable.value.get("enum")?.as_array());
        if allowed.is_some_and(|allowed| !allowed.iter().any(|allowed| allowed == value)) {
            return Err(server.problem(format!("the variable `{name}` must not be `{value}`: it is not in its `enum`")));
        }
        out.push_str(plain);
        out.push_str(value);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}
