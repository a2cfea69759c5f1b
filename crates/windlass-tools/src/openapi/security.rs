//! Credentials: what a document's security schemes ask for, taken from the secrets a configuration names.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use windlass::ToolError;

use super::document::{Reading, Spot, escaped};
use super::{Options, Problem};
use crate::encode;
use crate::http::{header_name, header_value};
use crate::net::{HeaderMap, HeaderName};
use crate::secret::{Redactor, Secret, Secrets, Text};

/// One credential of an operation.
#[derive(Clone, Debug)]
pub(crate) struct Credential {
    scheme: String,
    text: Text,
    form: Form,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    Header(HeaderName),
    Query(String),
    Bearer,
    /// The text is `user:password`.
    Basic,
}

/// The credentials of an operation: the first of its alternatives for which there are all.
pub(crate) fn credentials(
    document: &Reading,
    operation: &Spot<'_>,
    options: &Options,
) -> Result<Vec<Credential>, Problem> {
    let Some(security) = operation.get("security").or_else(|| document.at("#/security")) else {
        return Ok(Vec::new());
    };
    let alternatives = security.children();
    if alternatives.is_empty() {
        return Ok(Vec::new());
    }
    let names = |spot: &Spot<'_>| spot.children().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let usable = |names: &Vec<String>| names.iter().all(|name| options.security.contains_key(name));
    let wanted: Vec<Vec<String>> = alternatives.iter().map(|(_, spot)| names(spot)).collect();
    // One that asks for nothing is taken only where no other can be.
    let chosen = wanted.iter().filter(|names| !names.is_empty()).find(|names| usable(names));
    let Some(chosen) = chosen.or_else(|| wanted.iter().find(|names| names.is_empty())) else {
        let listed: Vec<String> = wanted.iter().map(|names| format!("`{}`", names.join("` and `"))).collect();
        return Err(security.problem(format!(
            "it needs {}; say which secret that is, or leave the operations out with `exclude`",
            listed.join(" or ")
        )));
    };
    chosen.iter().map(|name| credential(document, &security, name, options)).collect()
}

fn credential(document: &Reading, at: &Spot<'_>, name: &str, options: &Options) -> Result<Credential, Problem> {
    let scheme = document.at(&format!("#/components/securitySchemes/{}", escaped(name)));
    let scheme = document.follow(scheme.ok_or_else(|| at.problem(format!("there is no security scheme `{name}`")))?)?;
    let form =
        match (scheme.text("type"), scheme.text("in"), scheme.text("scheme").map(str::to_ascii_lowercase).as_deref()) {
            (Some("apiKey"), Some("header"), _) => {
                let header = scheme.text("name").ok_or_else(|| scheme.problem("it does not name its header"))?;
                Form::Header(header_name(header).map_err(|problem| scheme.problem(problem))?)
            }
            (Some("apiKey"), Some("query"), _) => Form::Query(
                scheme.text("name").ok_or_else(|| scheme.problem("it does not name its parameter"))?.to_owned(),
            ),
            (Some("http"), _, Some("basic")) => Form::Basic,
            (Some("http"), _, Some("bearer")) | (Some("oauth2" | "openIdConnect"), ..) => Form::Bearer,
            _ => return Err(scheme.problem("a scheme of this kind is not used: API keys, basic and bearer are")),
        };
    let text = options.security.get(name).cloned().unwrap_or_default();
    Ok(Credential { scheme: name.to_owned(), text, form })
}

impl Credential {
    /// The parameter of the query it takes, which is nobody else's.
    pub(crate) fn parameter(&self) -> Option<&str> {
        if let Form::Query(name) = &self.form { Some(name) } else { None }
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
            Form::Query(name) => {
                pairs.push((encode::strict(name), encode::strict(value.expose())));
                return Ok(());
            }
            Form::Header(name) => (name.clone(), value.expose().to_owned()),
            Form::Bearer => (authorization, format!("Bearer {}", value.expose())),
            Form::Basic => {
                let encoded = STANDARD.encode(value.expose());
                seen.add(&self.scheme, &Secret::new(&encoded));
                (authorization, format!("Basic {encoded}"))
            }
        };
        let mut value = header_value(&name, &text)?;
        value.set_sensitive(true);
        headers.insert(name, value);
        Ok(())
    }
}
