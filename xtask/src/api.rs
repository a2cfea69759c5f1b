//! `cargo xtask api`: a real server, held to its own description by schemathesis.
//!
//! The binary serves a file of its own on a port of its own, with runs in it that ended, wait, or are in doubt. Then
//! schemathesis reads `/openapi.json` and asks whatever it can think of: no answer may be a server error, or have a status, a
//! content type or a shape that the description does not name.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cargo::{Cargo, target};
use crate::{no_arguments, python};

/// The same questions every time come only from the same version.
const SCHEMATHESIS: &str = "4.32.5";
const SEED: u32 = 7;
/// Questions to each operation in each phase: all together a minute.
const EXAMPLES: u32 = 20;

const CONFIG: &str = include_str!("api.toml");
/// What keeps questions from waiting.
const HOOKS: &str = include_str!("api.py");

/// Calls that leave something to ask about. The last two are of the demo's tools: runs that wait for an answer and for a
/// signal.
const CALLS: [&[&str]; 8] = [
    &["echo", "--args", r#"{"text": "ahoy"}"#, "--session", "desk"],
    &["broken"],
    &["pay", "--detach", "--session", "desk"],
    &["pay", "--detach"],
    &["unsure", "--detach"],
    &["linked", "--detach"],
    &["ask_customer", "--args", r#"{"question": "Where to?"}"#, "--detach"],
    &["await_boarding", "--detach"],
];

pub(crate) fn main(args: &[String]) -> Result<()> {
    no_arguments("api", args)?;
    gate()
}

/// Installs what the gate needs. Returns where its programs are.
pub(crate) fn set_up() -> Result<PathBuf> {
    python::program("schemathesis", SCHEMATHESIS)
}

pub(crate) fn gate() -> Result<()> {
    let programs = set_up()?;
    Cargo::new("build -p windlass-cli --locked").run()?;
    let place = Place::new()?;
    let token = place.token()?;
    let server = Server::start(&place)?;
    for call in CALLS {
        // Calls that fail leave a run, too.
        place.windlass(&token, &[&["call"], call].concat())?;
    }
    let config = place.folder.join("schemathesis.toml");
    fs::write(place.folder.join("hooks.py"), HOOKS).context("cannot write how it is asked")?;
    fs::write(&config, questions(&token, &known(&place, &token)?)).context("cannot write what is asked")?;
    let mut asking = Command::new(programs.join("st"));
    asking.current_dir(&place.folder).arg("--config-file").arg(&config).arg("run");
    asking.arg(format!("{}/openapi.json", server.url)).arg(format!("--max-examples={EXAMPLES}"));
    let asked = asking.arg("--warnings=off").status().context("cannot start schemathesis")?;
    ensure!(
        asked.success(),
        "schemathesis ended with {asked}, see above; the server's log is {}",
        place.log().display()
    );
    // It still serves, and every accepted request was answered.
    let listed = place.windlass(&token, &["runs", "list"])?;
    ensure!(listed.status.success(), "after all that: {}", String::from_utf8_lossy(&listed.stderr));
    server.stop()?;
    let log = fs::read_to_string(place.log()).context("cannot read the server's log")?;
    ensure!(!log.contains("panicked"), "a handler panicked, see {}", place.log().display());
    Ok(())
}

/// A folder of its own, made anew.
struct Place {
    folder: PathBuf,
    binary: PathBuf,
}

impl Place {
    fn new() -> Result<Self> {
        let folder = target().join("api");
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::write(folder.join("windlass.toml"), CONFIG).context("cannot write the config")?;
        Ok(Self { folder, binary: target().join("debug/windlass") })
    }

    fn log(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command.current_dir(&self.folder).stdin(Stdio::null());
        for name in ["WINDLASS_SERVER", "WINDLASS_TOKEN", "WINDLASS_LOG"] {
            command.env_remove(name);
        }
        command
    }

    fn windlass(&self, token: &str, args: &[&str]) -> Result<Output> {
        self.command().args(["--json", "--token", token]).args(args).output().context("cannot start windlass")
    }

    /// A token with every scope. A server without tokens would refuse all later requests as soon as one creates a token.
    fn token(&self) -> Result<String> {
        let make = ["--quiet", "token", "create", "schemathesis", "--scope", "read,call,approve,admin"];
        let made = self.command().args(make).output().context("cannot start windlass")?;
        ensure!(made.status.success(), "no token: {}", String::from_utf8_lossy(&made.stderr));
        Ok(String::from_utf8(made.stdout).context("the token is not UTF-8")?.trim().to_owned())
    }
}

/// A server that dies with us.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(place: &Place) -> Result<Self> {
        let log = fs::File::create(place.log()).context("cannot make the server's log")?;
        let mut command = place.command();
        command.args(["--json", "serve", "--listen", "127.0.0.1:0", "--demo", "ledger.jsonl"]);
        // It ends when its standard input does, which is when we do.
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn()?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let ready: Value = serde_json::from_str(&line)
            .with_context(|| format!("the server did not start, see {}", place.log().display()))?;
        let url = ready["url"].as_str().context("the server did not say where it is")?.to_owned();
        Ok(Self { child, url })
    }

    fn stop(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let ended = self.child.wait().context("the server cannot be waited for")?;
        ensure!(ended.success(), "the server ended with {ended}");
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Names of things that are there: questions about things that are not are soon answered.
struct Known {
    runs: Vec<String>,
    items: Vec<String>,
    keys: Vec<String>,
}

fn known(place: &Place, token: &str) -> Result<Known> {
    let ask = |args: &[&str]| -> Result<Value> {
        let output = place.windlass(token, args)?;
        serde_json::from_slice(&output.stdout).with_context(|| format!("`windlass {}` printed no JSON", args.join(" ")))
    };
    let texts = |list: &Value, name: &str| -> Vec<String> {
        let all = list.as_array().into_iter().flatten();
        all.filter_map(|one| one[name].as_str().map(str::to_owned)).collect()
    };
    let (runs, inbox) = (ask(&["runs", "list"])?, ask(&["inbox"])?);
    let items = &inbox["items"];
    let known = Known { runs: texts(&runs["runs"], "id"), items: texts(items, "id"), keys: texts(items, "key") };
    ensure!(known.runs.len() == CALLS.len(), "every call leaves a run: {runs}");
    ensure!(known.items.len() == 5 && !known.keys.is_empty(), "five wait for a person: {inbox}");
    Ok(known)
}

/// What schemathesis is told. One worker: Python's compiler keeps a count that two threads spoil for each other, and the same
/// seed asks the same questions in the same order only then. A stream that says nothing for a second is left.
fn questions(token: &str, known: &Known) -> String {
    let Known { runs, items, keys } = known;
    let (runs, items, keys) = (json!(runs), json!(items), json!(keys));
    let checks = ["not_a_server_error", "status_code_conformance", "content_type_conformance"];
    let more = ["response_schema_conformance", "response_headers_conformance"];
    let checks: String = checks.iter().chain(&more).map(|check| format!("{check}.enabled = true\n")).collect();
    format!(
        r#"seed = {SEED}
workers = 1
request-timeout = 20
continue-on-failure = true
hooks = "hooks.py"

[headers]
Authorization = "Bearer {token}"

[checks]
enabled = false
{checks}
[dictionaries]
runs.values = {runs}
items.values = {items}
keys.values = {keys}
tools.values = ["echo", "broken"]
sessions.values = ["desk"]

[parameters]
"path.run" = {{ dictionary = "runs", probability = 0.7 }}
"path.other" = {{ dictionary = "runs", probability = 0.7 }}
"path.id" = {{ dictionary = "items", probability = 0.5 }}
"path.key" = {{ dictionary = "keys", probability = 0.5 }}
"path.name" = {{ dictionary = "tools", probability = 0.7 }}
"path.session" = {{ dictionary = "sessions", probability = 0.7 }}
"body.tool" = {{ dictionary = "tools", probability = 0.7 }}

[[operations]]
include-path-regex = "/events$|/clients/.*/calls$"
request-timeout = 1.0
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_of_the_config_is_called() {
        let tools = CONFIG.lines().filter_map(|line| line.strip_prefix("[tool.")?.strip_suffix(']'));
        for tool in tools {
            assert!(CALLS.iter().any(|call| call[0] == tool), "{tool}");
        }
    }

    #[test]
    fn what_is_known_is_asked_about() {
        let known = Known { runs: vec!["r1".to_owned(), "r2".to_owned()], items: Vec::new(), keys: Vec::new() };
        let text = questions("secret", &known);
        for line in
            ["runs.values = [\"r1\",\"r2\"]", "Authorization = \"Bearer secret\"", "not_a_server_error.enabled = true"]
        {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
    }
}
