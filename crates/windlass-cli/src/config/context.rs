//! What the sections of a file share while it is read: secrets, network rules, relative paths; and the webhook.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass::tool::nearest;
use windlass_tools::net::{self, Allow, Client, Rules, Url};
use windlass_tools::secret::{Reference, Secrets, Text};

use super::problem::{Problem, Source};
use super::table;
use super::text::listed;
use super::tree::{Node, Span, TableEntry};
use super::view::View;

/// The webhook that is called when a person is needed.
#[derive(Clone, Debug)]
pub struct Webhook {
    /// The URL that receives a POST for every new inbox item.
    pub url: Url,
    /// The secret that signs each request.
    pub secret: Text,
    at: Span,
}

impl Webhook {
    /// The server's webhook, with the current value of the secret.
    pub(super) fn resolve(&self, secrets: &Secrets) -> Result<windlass_server::Webhook, Problem> {
        let wrong = |why: String| Problem::error("webhook", &self.at, format!("`webhook.secret`: {why}"));
        let secret = self.secret.resolve(secrets).map_err(|error| wrong(error.to_string()))?;
        let hook = windlass_server::Webhook::new(&self.url.to_string(), secret.expose().as_bytes());
        hook.map_err(|error| wrong(error.to_string()))
    }
}

/// The context in which a file is read.
pub(super) struct ReadContext {
    folder: PathBuf,
    pub(super) secrets: Secrets,
    pub(super) net: Net,
    source: Arc<Source>,
    used: BTreeSet<String>,
}

/// How requests are sent.
#[derive(Clone)]
pub(super) struct Net {
    rules: Rules,
    limits: net::Limits,
    authorities: Vec<PathBuf>,
    at: Span,
}

impl Net {
    /// A client that sends requests under these rules.
    pub(super) fn client(&self) -> Result<Client, Problem> {
        let options = net::Options {
            rules: self.rules.clone(),
            limits: self.limits,
            authorities: self.authorities.clone(),
            ..net::Options::default()
        };
        Client::new(options).map_err(|problem| Problem::error("bad_value", &self.at, format!("[net]: {problem}")))
    }

    /// Files of additional trusted certificates.
    pub(super) fn authorities(&self) -> &[PathBuf] {
        &self.authorities
    }

    /// Whether the rules allow requests to a URL.
    pub(super) fn allows(&self, url: &Url) -> Result<(), String> {
        self.rules.allows(url)
    }

    fn read(root: &View<'_>, folder: &Path) -> Self {
        let view = root.below("net", &table::NET);
        let default = net::Limits::default();
        let ports: Vec<u16> = view.counts("ports");
        Self {
            rules: Rules {
                allow: view.texts("allow").into_iter().filter_map(|text| text.parse::<Allow>().ok()).collect(),
                ports: (!ports.is_empty()).then(|| ports.into_iter().collect()),
            },
            limits: net::Limits {
                connect: view.duration("connect").unwrap_or(default.connect),
                answer: view.size("max_answer").and_then(|size| usize::try_from(size).ok()).unwrap_or(default.answer),
                redirects: view.count("redirects").unwrap_or(default.redirects),
                ..default
            },
            authorities: view.texts("authorities").into_iter().map(|path| folder.join(path)).collect(),
            at: view.span_of("authorities"),
        }
    }
}

impl ReadContext {
    pub(super) fn read(root: &View<'_>, source: Arc<Source>, folder: &Path, problems: &mut Vec<Problem>) -> Self {
        let mut secrets = Vec::new();
        for entry in root.entries("secrets") {
            let reference = entry.node.text().and_then(|text| text.parse::<Reference>().ok());
            let Some(reference) = reference else { continue };
            let reference = match reference {
                Reference::File(path) => Reference::File(folder.join(path)),
                other => other,
            };
            let warning = match reference.read() {
                _ if reference.is_of_call() => None,
                Ok(_) => reference.warning(),
                Err(problem) => Some(format!("{problem}; tools that need it fail until it is available")),
            };
            if let Some(warning) = warning {
                let problem = format!("secret `{}`: {warning}", entry.key);
                problems.push(Problem::warning("secret", &entry.node.span, problem));
            }
            secrets.push((entry.key.clone(), reference));
        }
        Self {
            folder: folder.to_path_buf(),
            secrets: Secrets::new(secrets),
            net: Net::read(root, folder),
            source,
            used: BTreeSet::new(),
        }
    }

    /// Resolves a path relative to the folder of the file.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    /// The position of a part of a value, if the file contains it without escapes.
    pub(super) fn within(&self, span: &Span, piece: &str) -> Span {
        let raw = self.source.text.get(span.clone()).unwrap_or_default();
        let at = raw.find(piece).filter(|_| !piece.is_empty());
        at.map_or(span.clone(), |at| span.start + at..span.start + at + piece.len())
    }

    /// Parses a string that may refer to secrets.
    pub(super) fn text(&mut self, node: &Node, path: &str, problems: &mut Vec<Problem>) -> Option<Text> {
        match node.text()?.parse::<Text>() {
            Ok(text) => {
                self.use_secrets(text.secrets(), node, path, problems);
                Some(text)
            }
            Err(bad) => {
                problems.push(Problem::error("bad_value", &node.span, format!("`{path}`: {bad}")));
                None
            }
        }
    }

    /// Marks secrets as used, and reports those that are not defined.
    pub(super) fn use_secrets<'s>(
        &mut self,
        names: impl Iterator<Item = &'s str>,
        node: &Node,
        path: &str,
        problems: &mut Vec<Problem>,
    ) {
        for name in names {
            self.used.insert(name.to_owned());
            if self.secrets.contains(name) {
                continue;
            }
            let span = self.within(&node.span, &format!("${{secret:{name}}}"));
            let problem = Problem::error("unknown_secret", &span, format!("`{path}`: there is no secret `{name}`"));
            let defined = || self.secrets.iter().map(|(name, _)| name);
            problems.push(match nearest(name, defined()) {
                Some(near) => problem.label(format!("did you mean `{near}`?")),
                None if defined().next().is_none() => {
                    problem.help(format!("define it, for example [secrets] {name} = \"env:{name}\""))
                }
                None => problem.help(format!("[secrets] defines {}", listed(defined(), "and"))),
            });
        }
    }

    /// Parses a URL.
    pub(super) fn url(&self, entry: &TableEntry, path: &str, problems: &mut Vec<Problem>) -> Option<Url> {
        match entry.node.text()?.parse::<Url>() {
            Ok(url) => Some(url),
            Err(bad) => {
                let problem = Problem::error("bad_url", &entry.node.span, format!("`{path}`: {bad}"));
                problems.push(problem.help("write a full URL, for example \"https://api.example.com/v1\""));
                None
            }
        }
    }

    pub(super) fn webhook(&mut self, root: &View<'_>, problems: &mut Vec<Problem>) -> Option<Webhook> {
        let view = root.within("webhook", &table::WEBHOOK)?;
        let secret = view.get("secret").and_then(|entry| {
            let text = self.text(&entry.node, "webhook.secret", problems)?;
            if text.secrets().next().is_none() {
                let problem = "`webhook.secret`: a secret must not be written in this file";
                let problem = Problem::error("bad_value", &entry.node.span, problem).hidden();
                problems.push(problem.help("define it in [secrets], and write \"${secret:NAME}\" here"));
            }
            Some((text, entry.node.span.clone()))
        });
        let url = self.url(view.get("url")?, "webhook.url", problems)?;
        secret.map(|(secret, at)| Webhook { url, secret, at })
    }

    /// Warns about secrets that are not used.
    pub(super) fn warn_unused(&self, root: &View<'_>, problems: &mut Vec<Problem>) {
        let unused = |entry: &&TableEntry| self.secrets.contains(&entry.key) && !self.used.contains(&entry.key);
        for entry in root.entries("secrets").iter().filter(unused) {
            let problem = format!("the secret `{}` is not used", entry.key);
            let problem = Problem::warning("unused_secret", &entry.at, problem);
            problems.push(problem.help(format!("write ${{secret:{}}} where it is needed, or remove it", entry.key)));
        }
    }
}
