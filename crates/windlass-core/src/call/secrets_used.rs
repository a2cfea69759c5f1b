//! The secrets that an attempt has read: its connections, and secrets of its session. They are redacted from everything
//! that the attempt returns or reports.

use std::sync::Arc;

use super::attempt::Attempt;
use super::prepare::Preparation;
use crate::connections::{ConnectionQuery, ConnectionState};
use crate::store::{ConnectionKey, Credential};
use crate::tool::{Output, Reconciled, Redactor, ToolError, ToolResult};

/// The secrets that an attempt has read.
#[derive(Default)]
pub(super) struct UsedSecrets {
    redactor: Redactor,
    /// The revisions of the connections it has read, by provider.
    connections: Vec<(Arc<str>, u64)>,
}

impl Attempt {
    /// The credential of the connection to this provider, for the principal of the run. It is read from the store, and
    /// is in no record; what the attempt returns, reports or fails with is searched for it, and it is replaced there.
    ///
    /// An expired connection is refreshed first, if the runtime knows how.
    ///
    /// # Errors
    ///
    /// [`ToolError::ConnectionRequired`] if there is none: return it before anything was done, and the call waits until
    /// a person has connected the provider.
    pub async fn connection(&self, provider: &str) -> ToolResult<Credential> {
        let Some(run) = self.home() else {
            return Err(ToolError::unavailable("the run of this attempt is no longer driven here"));
        };
        let key = ConnectionKey::new(provider, self.principal().map(Into::into));
        let query = ConnectionQuery { refreshes: true, ..ConnectionQuery::new(key) };
        match run.kernel.connection_state(query).await.map_err(ToolError::internal)? {
            ConnectionState::Connected { revision, credential } => {
                self.secrets().lock().connections.push((provider.into(), revision));
                let credential = credential.ok_or_else(|| ToolError::connection_required(provider))?;
                self.note_secret(provider, credential.expose());
                Ok(credential)
            }
            ConnectionState::Missing { .. } => Err(ToolError::connection_required(provider)),
        }
    }

    /// Redacts this text from everything that the attempt returns or reports.
    pub(crate) fn note_secret(&self, name: &str, text: &str) {
        self.secrets().lock().redactor.add(name, text);
    }

    /// The connections that it has read, with the revisions of their credentials.
    pub(super) fn used_connections(&self) -> Vec<(Arc<str>, u64)> {
        self.used_secrets().map_or_else(Vec::new, |used| used.lock().connections.clone())
    }

    pub(super) fn redact(&self, result: &mut ToolResult<Output>) {
        if let Some(used) = self.used_secrets() {
            used.lock().redactor.redact_result(result);
        }
    }

    pub(super) fn redact_reconciled(&self, found: &mut ToolResult<Reconciled<Output>>) {
        let Some(used) = self.used_secrets() else { return };
        match found {
            Ok(Reconciled::Happened(output)) => used.lock().redactor.redact_output(output),
            Ok(_) => {}
            Err(error) => error.redact(&used.lock().redactor),
        }
    }

    /// The same for what `prepare` returned.
    pub(super) fn redact_preparation(&self, preparation: &mut ToolResult<Preparation>) {
        let Some(used) = self.used_secrets() else { return };
        let redactor = &used.lock().redactor;
        match preparation {
            Ok(Preparation { args, payload, answer }) => {
                args.iter_mut().chain(payload.iter_mut()).for_each(|value| redactor.redact_value(value));
                answer.iter_mut().for_each(|output| redactor.redact_output(output));
            }
            Err(error) => error.redact(redactor),
        }
    }

    pub(super) fn redact_text(&self, text: &str) -> String {
        match self.used_secrets() {
            Some(used) => used.lock().redactor.redact(text).into_owned(),
            None => text.to_owned(),
        }
    }
}
