//! Asking the other side whether it happened.

use std::sync::Arc;

use serde_json::Value;
use windlass::{Output, Reconciled, Tool, ToolError, ToolResult};

use super::exchange::{Exchange, json_of, send};
use super::request::Request;
use crate::net::{Answer, Client};

/// How an answer tells whether a request happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HappenedWhen {
    /// It says so in JSON: `{"happened": VALUE}`, `{"did_not_happen": true}` or `{"unknown": true}`.
    Told,
    /// By its status. With one of the first it happened, and the body is its result; with one of the second it did not.
    Status {
        /// It happened.
        happened: Vec<u16>,
        /// It did not.
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
    /// Lets this request settle doubts about a tool's attempts. It must change nothing; `{key}` is the key the attempts were
    /// made under. An answer that says neither leaves the doubt to policy and people.
    pub fn reconcile(self, client: Client, tool: Tool, when: HappenedWhen) -> Tool {
        let this = Arc::new((self, client, when));
        tool.reconcile(move |call| {
            let this = this.clone();
            async move {
                let (request, client, when) = &*this;
                let (outgoing, seen) = request.fill(&call)?;
                let answer = send(client, &call, outgoing, &Exchange::default()).await;
                let answer = answer.map_err(|error| ToolError::failed(seen.redact(&error.to_string())))?;
                let found = judge(&answer, when)?;
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

fn judge(answer: &Answer, when: &HappenedWhen) -> ToolResult<Reconciled<Value>> {
    let status = answer.status.as_u16();
    match when {
        HappenedWhen::Status { happened, .. } if happened.contains(&status) => {
            let text = || String::from_utf8_lossy(&answer.body).into_owned();
            let value =
                if answer.body.is_empty() { Value::Null } else { json_of(answer).unwrap_or_else(|| text().into()) };
            Ok(Reconciled::Happened(value))
        }
        HappenedWhen::Status { did_not_happen, .. } if did_not_happen.contains(&status) => Ok(Reconciled::DidNotHappen),
        HappenedWhen::Status { .. } => Ok(Reconciled::Unknown),
        HappenedWhen::Told if !answer.status.is_success() => Ok(Reconciled::Unknown),
        HappenedWhen::Told => {
            let told = serde_json::from_slice::<Value>(&answer.body).ok();
            told.as_ref().and_then(told_by).ok_or_else(|| {
                ToolError::failed(
                    "the answer is none of {\"happened\": VALUE}, {\"did_not_happen\": true} and {\"unknown\": true}",
                )
            })
        }
    }
}

/// What an answer says in so many words; nothing if it says something else, or several things.
fn told_by(answer: &Value) -> Option<Reconciled<Value>> {
    let mut fields = answer.as_object()?.iter();
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
        judge(&Answer { status, headers, body: body.to_owned().into(), url }, when).ok()
    }

    #[test]
    fn w01_an_answer_settles_it_only_if_it_says_so() {
        let (status, told) = (HappenedWhen::default(), HappenedWhen::Told);
        for (code, body, when, expected) in [
            (200, r#"{"id": 1}"#, &status, Some(Reconciled::Happened(json!({"id": 1})))),
            (200, "", &status, Some(Reconciled::Happened(Value::Null))),
            (404, "", &status, Some(Reconciled::DidNotHappen)),
            (500, "", &status, Some(Reconciled::Unknown)),
            (202, "", &status, Some(Reconciled::Unknown)),
            (200, r#"{"happened": {"id": 1}}"#, &told, Some(Reconciled::Happened(json!({"id": 1})))),
            (200, r#"{"did_not_happen": true}"#, &told, Some(Reconciled::DidNotHappen)),
            (200, r#"{"unknown": true}"#, &told, Some(Reconciled::Unknown)),
            (404, r#"{"did_not_happen": true}"#, &told, Some(Reconciled::Unknown)),
            (200, r#"{"did_not_happen": false}"#, &told, None),
            (200, r#"{"happened": 1, "did_not_happen": true}"#, &told, None),
            (200, "yes", &told, None),
        ] {
            assert_eq!(found(code, body, when), expected, "{code} {body}");
        }
    }
}
