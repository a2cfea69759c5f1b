//! An operation as a tool.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::Value;
use windlass::tool::spec::Breaker;
use windlass::tool::{Atomic, Body};
use windlass::{Call, Output, Tool, ToolError, ToolResult, ToolSpec};

use super::document::Document;
use super::operation::{Operation, Piece};
use super::parameter::ParameterIn;
use super::{Options, Problem};
use crate::http::{Exchange, exactly, exchange, header_name, header_value, target_of};
use crate::net::{Client, HeaderMap, HeaderValue, Outgoing};
use crate::secret::{Redactor, Secrets};

/// Sends the request of one operation.
struct OperationTool {
    operation: Operation,
    client: Client,
    secrets: Secrets,
}

/// Creates the tool. For a large document its schemas are created when they are first needed, for a small one at once,
/// so that their problems are reported.
pub(crate) fn tool(
    document: &Arc<Document>,
    operation: Operation,
    mut spec: ToolSpec,
    options: &Options,
    lazy: bool,
) -> Result<Tool, Problem> {
    spec.effect = operation.effect;
    spec.hints.open_world = true;
    if spec.guards.breaker == Breaker::Auto {
        spec.guards.breaker = Breaker::Target(target_of(&operation.base));
    }
    let body = Arc::new(OperationTool { operation, client: options.client.clone(), secrets: options.secrets.clone() });
    if !lazy {
        let schemas = body.operation.schemas(&document.view())?;
        return Ok(Tool::atomic(spec, schemas, OperationBody(body)));
    }
    let (document, shared) = (document.clone(), body.clone());
    let resolve = move |_: &ToolSpec| {
        let schemas = shared.operation.schemas(&document.view());
        schemas.map_err(|problem| ToolError::unavailable(format!("its OpenAPI document: {problem}")))
    };
    Ok(Tool::lazy(spec, resolve, Body::Atomic(Arc::new(OperationBody(body)))))
}

/// The body of the tool, shared with every attempt.
struct OperationBody(Arc<OperationTool>);

impl Atomic for OperationBody {
    fn attempt(&self, call: Call) -> BoxFuture<'static, ToolResult<Output>> {
        let this = self.0.clone();
        Box::pin(async move {
            let mut seen = Redactor::default();
            let names = this.operation.credentials.iter().flat_map(|credential| credential.secrets());
            let secrets = this.secrets.for_call(names, &call).await?;
            let outgoing = this.operation.request(call.args(), &secrets, &mut seen)?;
            exchange(&this.client, &call, outgoing, &Exchange::default(), &seen).await
        })
    }
}

impl Operation {
    /// The request for these arguments.
    pub(crate) fn request(&self, args: &Value, secrets: &Secrets, seen: &mut Redactor) -> Result<Outgoing, ToolError> {
        let mut headers = HeaderMap::new();
        headers.insert("accept", HeaderValue::from_static("application/json, text/*;q=0.9, */*;q=0.5"));
        let mut pairs = Vec::new();
        for parameter in &self.parameters {
            let Some(value) = args.get(&parameter.arg).filter(|value| !value.is_null()) else { continue };
            match parameter.location {
                ParameterIn::Path => {}
                ParameterIn::Query => {
                    let own = parameter.pairs(value)?;
                    if parameter.names_itself() && value.is_object() {
                        self.check_names(&parameter.arg, &own)?;
                    }
                    pairs.extend(own);
                }
                ParameterIn::Header => {
                    let name = header_name(&parameter.name).map_err(ToolError::unavailable)?;
                    let value = header_value(&name, &parameter.raw(value)?)?;
                    headers.insert(name, value);
                }
            }
        }
        for credential in &self.credentials {
            credential.add(secrets, seen, &mut headers, &mut pairs)?;
        }
        let mut target = self.target(args)?;
        for (n, (name, value)) in pairs.iter().enumerate() {
            target.push(if n == 0 { '?' } else { '&' });
            target.push_str(&format!("{name}={value}"));
        }
        let body = match self.body.as_ref().zip(args.get("body")) {
            Some((body, value)) => {
                let media_type = HeaderValue::from_str(&body.media_type);
                headers.insert("content-type", media_type.map_err(|error| ToolError::unavailable(error.to_string()))?);
                body.write(value)?
            }
            None => bytes::Bytes::new(),
        };
        Ok(Outgoing { method: self.method.clone(), url: exactly(&self.base, &target)?, headers, body })
    }

    fn target(&self, args: &Value) -> Result<String, ToolError> {
        let mut target = String::new();
        for piece in &self.path {
            match piece {
                Piece::Plain(text) => target.push_str(text),
                Piece::Parameter(name) => {
                    let parameter =
                        self.parameters.iter().find(|it| it.location == ParameterIn::Path && it.name == *name);
                    let value = parameter.and_then(|parameter| Some((parameter, args.get(&parameter.arg)?)));
                    let (parameter, value) =
                        value.ok_or_else(|| ToolError::invalid("", format!("the path needs the argument `{name}`")))?;
                    target.push_str(&parameter.in_path(value)?);
                }
            }
        }
        Ok(target)
    }

    /// Refuses an object whose keys are the names of other parameters or credentials.
    fn check_names(&self, arg: &str, pairs: &[(String, String)]) -> Result<(), ToolError> {
        let others = self
            .parameters
            .iter()
            .filter(|it| it.location == ParameterIn::Query && it.arg != arg)
            .map(|it| it.name.as_str());
        let others = others.chain(self.credentials.iter().filter_map(|credential| credential.parameter()));
        let taken: Vec<String> = others.map(crate::encode::strict).collect();
        match pairs.iter().find(|(name, _)| taken.contains(name)) {
            Some((name, _)) => {
                Err(ToolError::invalid(format!("/{arg}"), format!("`{name}` is the name of another parameter")))
            }
            None => Ok(()),
        }
    }
}
