//! `windlass sessions`

use std::path::Path;

use serde_json::{Value, json};
use windlass_server::wire::{
    CloseRequest, CloseResponse, DataNames, DataRequest, DataView, MessageAuthor, MessagePage, MessageRequest,
    MessageView, PostedMessage, SecretRequest, SessionPage, SessionRequest, SessionToolsRequest, SessionToolsView,
    SessionView, SettingsView, TurnMode, WakeMode,
};

use super::{session_turns, text};
use crate::api::{Api, escaped, query};
use crate::args::{AuthorName, DataCommand, SecretsCommand, SessionListArgs, SessionToolsArgs, SessionsCommand};
use crate::exit::{Failure, Result};
use crate::input;
use crate::out::Out;
use crate::style::{Tint, plain, table};

/// The largest page the server returns.
const PAGE: u64 = 500;

/// Executes a subcommand of `sessions`.
pub(super) async fn run(command: SessionsCommand, api: &Api, out: &Out) -> Result<()> {
    match command {
        SessionsCommand::List(args) => list(&args, api, out).await,
        SessionsCommand::Show { session, last } => show(&session, last, api, out).await,
        SessionsCommand::Open { session, title, owner, settings } => {
            let settings = session_turns::settings(settings, &[]);
            let opened: SessionView = api.put(&path(&session), &SessionRequest { title, owner, settings }).await?;
            if out.json { out.document(&opened) } else { out.lines(&described(&opened)) }
        }
        SessionsCommand::Configure { session, settings, unset } => {
            session_turns::configure(&session, settings, &unset, api, out).await
        }
        SessionsCommand::Wait { session, timeout } => {
            session_turns::wait(&session, timeout.map(|timeout| timeout.0), api, out).await
        }
        SessionsCommand::Context { session } => session_turns::context(&session, api, out).await,
        // It opens the API itself.
        SessionsCommand::Watch { .. } => Ok(()),
        SessionsCommand::Send { session, text, author, cause, key, wake, no_wake, turn } => {
            let text = if text == "-" { input::text(Path::new("-"))? } else { text };
            let author = author_of(author);
            let wake = if wake { Some(true) } else { no_wake.then_some(false) };
            let turn = turn.map(session_turns::turn_mode);
            let request = MessageRequest { author, text: Some(text), content: None, cause, wake, turn };
            let posted: PostedMessage =
                api.post(&format!("{}/messages", path(&session)), &request, key.as_deref()).await?;
            let repeated = if posted.repeated { " (posted before)" } else { "" };
            let run = posted.run.map_or(String::new(), |run| format!(", run {run}"));
            done(out, &posted, &format!("message {}{run}{repeated}", posted.position))
        }
        SessionsCommand::Close { session, reason, cancel } => {
            let request = CloseRequest { reason: Some(reason), cancel };
            let closed: CloseResponse = api.post(&format!("{}/close", path(&session)), &request, None).await?;
            let runs = match (closed.unfinished_runs, cancel) {
                (0, _) => String::new(),
                (1, true) => "; its unfinished run is cancelled".to_owned(),
                (1, false) => "; its unfinished run goes on".to_owned(),
                (count, true) => format!("; {count} unfinished runs are cancelled"),
                (count, false) => format!("; {count} unfinished runs go on"),
            };
            done(out, &closed, &format!("{} closed{runs}", plain(&session)))
        }
        SessionsCommand::Tools(args) => tools(args, api, out).await,
        SessionsCommand::Purge { sessions } => {
            for session in &sessions {
                api.delete(&path(session)).await?;
                done(out, &json!({"session": session, "ok": true}), &format!("{} purged", plain(session)))?;
            }
            Ok(())
        }
        SessionsCommand::Data { command } => data(command, api, out).await,
        SessionsCommand::Secrets { command } => secrets(command, api, out).await,
    }
}

pub(super) fn path(session: &str) -> String {
    format!("/v1/sessions/{}", escaped(session))
}

fn entry(session: &str, kind: &str, name: &str) -> String {
    format!("{}/{kind}/{}", path(session), escaped(name))
}

fn done(out: &Out, document: &impl serde::Serialize, line: &str) -> Result<()> {
    if out.json { out.document(document) } else { out.line(line) }
}

fn author_of(author: AuthorName) -> MessageAuthor {
    match author {
        AuthorName::User => MessageAuthor::User,
        AuthorName::Agent => MessageAuthor::Agent,
        AuthorName::Tool => MessageAuthor::Tool,
        AuthorName::System => MessageAuthor::System,
    }
}

async fn list(args: &SessionListArgs, api: &Api, out: &Out) -> Result<()> {
    let state = match (args.open, args.closed) {
        (true, _) => Some("open"),
        (_, true) => Some("closed"),
        _ => None,
    };
    let (mut sessions, mut cursor): (Vec<SessionView>, Option<String>) = (Vec::new(), None);
    loop {
        let size = (args.limit - sessions.len() as u64).min(PAGE).to_string();
        let pairs = [
            ("state", state),
            ("owner", args.owner.as_deref()),
            ("limit", Some(size.as_str())),
            ("cursor", cursor.as_deref()),
        ];
        let page: SessionPage = api.get(&format!("/v1/sessions{}", query(&pairs))).await?;
        sessions.extend(page.sessions);
        cursor = page.next;
        if cursor.is_none() || sessions.len() as u64 >= args.limit {
            break;
        }
    }
    if out.json {
        return out.document(&json!({"sessions": sessions, "more": cursor.is_some()}));
    }
    if sessions.is_empty() {
        out.note("no sessions");
        return Ok(());
    }
    let now = text::now();
    let heads = ["SESSION", "STATE", "MESSAGES", "CREATED", "OWNER", "TITLE"];
    let mut rows = vec![heads.map(|head| (Tint::Dim, head.to_owned())).into()];
    for session in &sessions {
        let state = if session.closed.is_some() { (Tint::Dim, "closed") } else { (Tint::Good, "open") };
        rows.push(vec![
            (Tint::Bold, plain(&session.session)),
            (state.0, state.1.to_owned()),
            (Tint::Plain, session.messages.to_string()),
            (Tint::Dim, text::ago(session.created, now)),
            (Tint::Plain, session.owner.as_deref().map(plain).unwrap_or_default()),
            (Tint::Plain, session.title.as_deref().map(plain).unwrap_or_default()),
        ]);
    }
    out.lines(&table(&rows, &out.style))?;
    if cursor.is_some() {
        out.note(&format!("… there are more; `--limit {}` shows more of them", args.limit * 5));
    }
    Ok(())
}

async fn show(session: &str, last: u64, api: &Api, out: &Out) -> Result<()> {
    if last > PAGE {
        return Err(Failure::usage(format!("--last is at most {PAGE}")));
    }
    let shown: SessionView = api.get(&path(session)).await?;
    let messages = match last {
        0 => Vec::new(),
        last => api.get::<MessagePage>(&format!("{}/messages?last={last}", path(session))).await?.messages,
    };
    if out.json {
        return out.document(&json!({"session": shown, "messages": messages}));
    }
    out.lines(&described(&shown))?;
    for message in &messages {
        out.line(&format!("{}  {}: {}", message.position, plain(&message.author), plain(&content(message))))?;
    }
    Ok(())
}

/// The lines about a session.
pub(super) fn described(session: &SessionView) -> Vec<String> {
    let state = match (&session.closed, &session.reason) {
        (Some(_), reason) => format!("closed: {}", plain(reason.as_deref().unwrap_or_default())),
        (None, _) => "open".to_owned(),
    };
    let mut lines = vec![format!("{}  {state}", plain(&session.session))];
    lines.extend(session.title.as_deref().map(|title| format!("title: {}", plain(title))));
    lines.extend(session.owner.as_deref().map(|owner| format!("owner: {}", plain(owner))));
    let SettingsView { model, window, agent, wake, turns, unfinished_runs } = &session.settings;
    lines.extend(agent.as_deref().map(|agent| format!("agent: {}", plain(agent))));
    lines.extend(model.as_deref().map(|model| format!("model: {}", plain(model))));
    lines.extend(window.map(|window| format!("window: {window} tokens")));
    lines.extend((*wake == WakeMode::User).then(|| "wake: every message of a user".to_owned()));
    lines.extend((*turns == TurnMode::Refuse).then(|| "turns: refused while there is one".to_owned()));
    lines.extend(unfinished_runs.map(|most| format!("max-runs: {most}")));
    lines
}

/// A message as text; other blocks by their kind.
pub(super) fn content(message: &MessageView) -> String {
    let block = |block: &Value| match block["text"].as_str() {
        Some(text) => text.to_owned(),
        None => format!("[{}]", block["type"].as_str().unwrap_or("content")),
    };
    message.content.iter().map(block).collect::<Vec<_>>().join(" ")
}

async fn tools(args: SessionToolsArgs, api: &Api, out: &Out) -> Result<()> {
    let SessionToolsArgs { session, show, only, hide, reveal, reset } = args;
    let path = format!("{}/tools", path(&session));
    let only = (!only.is_empty()).then_some(only);
    let request = SessionToolsRequest { reset, only, show, reveal, hide };
    let shown: SessionToolsView = match request == SessionToolsRequest::default() {
        true => api.get(&path).await?,
        false => api.put(&path, &request).await?,
    };
    for name in &shown.unknown {
        out.note(&format!("there is no tool `{}` now; the session keeps the name for later", plain(name)));
    }
    if out.json {
        return out.document(&shown);
    }
    let names = |names: &[String]| match names {
        [] => "none".to_owned(),
        names => names.iter().map(|name| plain(name)).collect::<Vec<_>>().join(", "),
    };
    let mut lines = vec![match &shown.shown {
        Some(only) => format!("{} shows only: {}", plain(&session), names(only)),
        None => format!("{} shows all tools", plain(&session)),
    }];
    lines.extend((!shown.hidden.is_empty()).then(|| format!("hidden: {}", names(&shown.hidden))));
    lines.extend((!shown.revealed.is_empty()).then(|| format!("revealed: {}", names(&shown.revealed))));
    lines.push(format!("can be called: {}", names(&shown.tools)));
    out.lines(&lines)
}

async fn data(command: DataCommand, api: &Api, out: &Out) -> Result<()> {
    match command {
        DataCommand::List { session } => names(&session, "data", api, out).await,
        DataCommand::Get { session, name } => {
            let found: DataView = api.get(&entry(&session, "data", &name)).await?;
            out.document(&found.value)
        }
        DataCommand::Set { session, name, value } => {
            let value = input::json(&value, "the value")?;
            api.put_nothing(&entry(&session, "data", &name), &DataRequest { value }).await?;
            done(out, &json!({"name": name, "ok": true}), &format!("{} set", plain(&name)))
        }
        DataCommand::Delete { session, name } => delete(&session, "data", &name, api, out).await,
    }
}

async fn secrets(command: SecretsCommand, api: &Api, out: &Out) -> Result<()> {
    match command {
        SecretsCommand::List { session } => names(&session, "secrets", api, out).await,
        SecretsCommand::Set { session, name, from } => {
            let text = input::text(from.as_deref().unwrap_or(Path::new("-")))?;
            // The line break that `echo` and editors add is not part of it.
            let value = text.strip_suffix('\n').unwrap_or(&text).to_owned();
            api.put_nothing(&entry(&session, "secrets", &name), &SecretRequest { value }).await?;
            done(out, &json!({"name": name, "ok": true}), &format!("{} set", plain(&name)))
        }
        SecretsCommand::Delete { session, name } => delete(&session, "secrets", &name, api, out).await,
    }
}

async fn names(session: &str, kind: &str, api: &Api, out: &Out) -> Result<()> {
    let names: DataNames = api.get(&format!("{}/{kind}", path(session))).await?;
    if out.json {
        return out.document(&names);
    }
    out.lines(&names.names.iter().map(|entry| plain(&entry.name)).collect::<Vec<_>>())
}

async fn delete(session: &str, kind: &str, name: &str, api: &Api, out: &Out) -> Result<()> {
    api.delete(&entry(session, kind, name)).await?;
    done(out, &json!({"name": name, "ok": true}), &format!("{} deleted", plain(name)))
}
