//! Asks the server whether a request happened.

use std::sync::Arc;

use serde_json::Value;
use windlass::tool::Reconciled;
use windlass::{Output, Tool, ToolError, ToolResult};

use super::exchange::{Exchange, json_of, send};
use super::request::Request;
use crate::net::{Client, Response};

/// How a response shows whether a request happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HappenedWhen {
    /// The body says so in JSON: `{"happened": VALUE}`, `{"did_not_happen": true}` or `{"unknown": true}`.
    Reported,
    /// The status shows it.
    Status {
        /// It happened, and the body is its result.
        happened: Vec<u16>,
        /// It did not happen.
        did_not_happen: Vec<u16>,
    },
}

impl Default for HappenedWhen {
    /// 200: it happened. 404: it did not.
    fn default() -> Self {
        Self::Status { happened: vec![200], did_not_happen: vec![404] }
    }
}

impl Request {
    /// Lets this request settle doubts about the attempts of a tool. It must change nothing; `{key}` is the idempotency
    /// key of the attempts. A response that decides neither leaves the doubt to the policy and the operators.
    pub fn reconcile(self, client: Client, tool: Tool, when: HappenedWhen) -> Tool {
        let this = Arc::new((self, client, when));
        tool.reconcile(move |call| {
            let this = this.clone();
            async move {
                let (request, client, when) = &*this;
                let (outgoing, seen) = request.fill(&call).await?;
                let response = send(client, &call, outgoing, &Exchange::default()).await;
                let response = response.map_err(|error| ToolError::failed(seen.redact(&error.to_string())))?;
                let found = judge(&response, when)?;
                Ok(match found {
                    Reconciled::Happened(mut value) => {
                        seen.redact_value(&mut value);
                        Reconciled::Happened(Output::value(value))
                    }
                    Reconciled::DidNotHappen => Reconciled::DidNotHappen,
                    Reconciled::Unknown => Reconciled::Unknown,
                })
            }
        })
    }
}

fn judge(response: &Response, when: &HappenedWhen) -> ToolResult<Reconciled<Value>> {
    let status = response.status.as_u16();
    match when {
        HappenedWhen::Status { happened, .. } if happened.contains(&status) => {
            let text = || String::from_utf8_lossy(&response.body).into_owned();
            let value =
                if response.body.is_empty() { Value::Null } else { json_of(response).unwrap_or_else(|| text().into()) };
            Ok(Reconciled::Happened(value))
        }
        HappenedWhen::Status { did_not_happen, .. } if did_not_happen.contains(&status) => Ok(Reconciled::DidNotHappen),
        HappenedWhen::Status { .. } => Ok(Reconciled::Unknown),
        HappenedWhen::Reported if !response.status.is_success() => Ok(Reconciled::Unknown),
        HappenedWhen::Reported => {
            let body = serde_json::from_slice::<Value>(&response.body).ok();
            body.as_ref().and_then(reconciled).ok_or_else(|| {
                ToolError::failed(
                    "the response must be {\"happened\": VALUE}, {\"did_not_happen\": true} or {\"unknown\": true}",
                )
            })
        }
    }
}

/// Reads the three forms of a body; none for any other body.
fn reconciled(body: &Value) -> Option<Reconciled<Value>> {
    let mut fields = body.as_object()?.iter();
    let (name, value) = fields.next()?;
    match (name.as_str(), value, fields.next()) {
        ("happened", value, None) => Some(Reconciled::Happened(value.clone())),
        ("did_not_happen", Value::Bool(true), None) => Some(Reconciled::DidNotHappen),
        ("unknown", Value::Bool(true), None) => Some(Reconciled::Unknown),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::net::{HeaderMap, StatusCode};

    fn found(status: u16, body: &str, when: &HappenedWhen) -> Option<Reconciled<Value>> {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", "application/json".parse().unwrap());
        let status = StatusCode::from_u16(status).unwrap();
        let url = "https://a.example/".parse().unwrap();
        judge(&Response { status, headers, body: body.to_owned().into(), url }, when).ok()
    }

    #[test]
    fn w01_a_response_settles_a_doubt_only_if_it_is_explicit() {
        let (status, reported) = (HappenedWhen::default(), HappenedWhen::Reported);
        for (code, body, when, expected) in [
            (200, r#"{"id": 1}"#, &status, Some(Reconciled::Happened(json!({"id": 1})))),
            (200, "", &status, Some(Reconciled::Happened(Value::Null))),
            (404, "", &status, Some(Reconciled::DidNotHappen)),
            (500, "", &status, Some(Reconciled::Unknown)),
            (202, "", &status, Some(Reconciled::Unknown)),
            (200, r#"{"happened": {"id": 1}}"#, &reported, Some(Reconciled::Happened(json!({"id": 1})))),
            (200, r#"{"did_not_happen": true}"#, &reported, Some(Reconciled::DidNotHappen)),
            (200, r#"{"unknown": true}"#, &reported, Some(Reconciled::Unknown)),
            (404, r#"{"did_not_happen": true}"#, &reported, Some(Reconciled::Unknown)),
            (200, r#"{"did_not_happen": false}"#, &reported, None),
            (200, r#"{"happened": 1, "did_not_happen": true}"#, &reported, None),
            (200, "yes", &reported, None),
        ] {
            assert_eq!(found(code, body, when), expected, "{code} {body}");
        }
    }
}
