//! Credentials: the security schemes of a document, with the secrets that a configuration names.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use windlass::ToolError;

use super::document::{DocumentView, Node, escaped};
use super::{Options, Problem};
use crate::encode;
use crate::http::{header_name, header_value};
use crate::net::{HeaderMap, HeaderName};
use crate::secret::{Redactor, Secrets, Text};

/// One credential of an operation.
#[derive(Clone, Debug)]
pub(crate) struct Credential {
    scheme: String,
    text: Text,
    form: CredentialForm,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum CredentialForm {
    Header(HeaderName),
    Query(String),
    Bearer,
    /// The text is `user:password`.
    Basic,
}

/// The credentials of an operation: the first of its alternatives for which all credentials are configured.
pub(crate) fn credentials(
    document: &DocumentView,
    operation: &Node<'_>,
    options: &Options,
) -> Result<Vec<Credential>, Problem> {
    let Some(security) = operation.get("security").or_else(|| document.at("#/security")) else {
        return Ok(Vec::new());
    };
    let alternatives = security.children();
    if alternatives.is_empty() {
        return Ok(Vec::new());
    }
    let names = |node: &Node<'_>| node.children().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let usable = |names: &Vec<String>| names.iter().all(|name| options.security.contains_key(name));
    let wanted: Vec<Vec<String>> = alternatives.iter().map(|(_, node)| names(node)).collect();
    // An alternative without credentials is used only if no other is configured.
    let chosen = wanted.iter().filter(|names| !names.is_empty()).find(|names| usable(names));
    let Some(chosen) = chosen.or_else(|| wanted.iter().find(|names| names.is_empty())) else {
        let listed: Vec<String> = wanted.iter().map(|names| format!("`{}`", names.join("` and `"))).collect();
        return Err(security.problem(format!(
            "the operation needs {}; configure it in `security`, or leave the operation out with `exclude`",
            listed.join(" or ")
        )));
    };
    chosen.iter().map(|name| credential(document, &security, name, options)).collect()
}

fn credential(document: &DocumentView, at: &Node<'_>, name: &str, options: &Options) -> Result<Credential, Problem> {
    let scheme = document.at(&format!("#/components/securitySchemes/{}", escaped(name)));
    let scheme = document.follow(scheme.ok_or_else(|| at.problem(format!("there is no security scheme `{name}`")))?)?;
    let form =
        match (scheme.text("type"), scheme.text("in"), scheme.text("scheme").map(str::to_ascii_lowercase).as_deref()) {
            (Some("apiKey"), Some("header"), _) => {
                let header =
                    scheme.text("name").ok_or_else(|| scheme.problem("the scheme does not name its header"))?;
                CredentialForm::Header(header_name(header).map_err(|problem| scheme.problem(problem))?)
            }
            (Some("apiKey"), Some("query"), _) => CredentialForm::Query(
                scheme.text("name").ok_or_else(|| scheme.problem("the scheme does not name its parameter"))?.to_owned(),
            ),
            (Some("http"), _, Some("basic")) => CredentialForm::Basic,
            (Some("http"), _, Some("bearer")) | (Some("oauth2" | "openIdConnect"), ..) => CredentialForm::Bearer,
            _ => return Err(scheme.problem("this kind of scheme is not supported; API keys, basic and bearer are")),
        };
    let text = options.security.get(name).cloned().unwrap_or_default();
    Ok(Credential { scheme: name.to_owned(), text, form })
}

impl Credential {
    /// The query parameter it occupies, which no argument may set.
    pub(crate) fn parameter(&self) -> Option<&str> {
        if let CredentialForm::Query(name) = &self.form { Some(name) } else { None }
    }

    /// The names of the secrets it mentions.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &str> {
        self.text.secrets()
    }

    /// Adds it to a request.
    pub(crate) fn add(
        &self,
        secrets: &Secrets,
        seen: &mut Redactor,
        headers: &mut HeaderMap,
        pairs: &mut Vec<(String, String)>,
    ) -> Result<(), ToolError> {
        let unavailable = |error: crate::secret::SecretError| ToolError::unavailable(error.to_string());
        let value = self.text.resolve_noting(secrets, seen).map_err(unavailable)?;
        let authorization = HeaderName::from_static("authorization");
        let (name, text) = match &self.form {
            CredentialForm::Query(name) => {
                pairs.push((encode::strict(name), encode::strict(value.expose())));
                return Ok(());
            }
            CredentialForm::Header(name) => (name.clone(), value.expose().to_owned()),
            CredentialForm::Bearer => (authorization, format!("Bearer {}", value.expose())),
            CredentialForm::Basic => {
                let encoded = STANDARD.encode(value.expose());
                seen.add(&self.scheme, &encoded);
                (authorization, format!("Basic {encoded}"))
            }
        };
        let mut value = header_value(&name, &text)?;
        value.set_sensitive(true);
        headers.insert(name, value);
        Ok(())
    }
}
