//! Tools that connected clients have: their calls are handed to the client, which answers by reply key.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::broadcast;
use windlass::tools::encode_output;
use windlass::{
    Atomic, Blocked, Call, Effect, Error, Filter, Hold, Output, Reply, RunId, RunInfo, RunState, Schemas, StoreError,
    Tool, ToolResult, ToolSpec, Toolbox, Windlass,
};

use crate::app::Shared;
use crate::options::Limits;
use crate::refusal::{Answer, Refusal, troubled};
use crate::show::{Item, What};
use crate::sse::{Next, Source, event};
use crate::wire::{ClientAnswer, ClientCall, ClientRequest, ClientTool, EndReason, InboxKind, Time};

/// Clients at once; more than this is a loop gone wrong.
const CLIENTS: usize = 1_000;
/// Tools of one client.
const TOOLS: usize = 256;
/// Calls that wait for a client to be read; one that is further behind reads them from the store.
const BEHIND: usize = 256;
/// How long a call waits for its client unless the tool says otherwise.
const DEADLINE: Duration = Duration::from_secs(600);
/// Calls a reader is remembered to have been handed.
const TOLD: usize = 10_000;
/// Runs read from the store at a time.
const PAGE: usize = 100;

#[derive(Default)]
pub(crate) struct Clients {
    known: Mutex<FxHashMap<String, Client>>,
    /// Held while tools are brought: one client after the other, and what is known can be looked at meanwhile.
    bringing: Mutex<()>,
}

#[derive(Clone)]
struct Client {
    /// Who brought it.
    owner: Arc<str>,
    tools: Arc<BTreeSet<Arc<str>>>,
    /// Where they are mounted: the runtime's own, or the layer that the client's token is bound to.
    toolbox: Toolbox,
    calls: broadcast::Sender<ClientCall>,
    /// What the schemas of its tools take in memory, roughly.
    schema_bytes: usize,
}

/// A tool that a client has.
struct Remote {
    calls: broadcast::Sender<ClientCall>,
    name: Arc<str>,
    deadline: Duration,
}

impl Atomic for Remote {
    fn attempt(&self, call: Call) -> BoxFuture<'static, ToolResult<Output>> {
        let handed = ClientCall {
            run: call.run(),
            path: call.path().clone(),
            tool: self.name.to_string(),
            args: (**call.args()).clone(),
            key: call.reply_key(),
            until: Some(Time::from(Time::now().timestamp() + self.deadline)),
        };
        // A client that is not connected reads it from the store when it is.
        drop(self.calls.send(handed));
        let later = Reply::<serde_json::Value>::later().within(self.deadline);
        Box::pin(std::future::ready(encode_output(Ok(later))))
    }
}

fn source(client: &str) -> String {
    format!("client:{client}")
}

impl Clients {
    /// Brings the tools of a client. Under a key it is always the same client, and its tools are replaced.
    ///
    /// Compiles their schemas, so it is called where a thread may be held up.
    pub(crate) fn register(
        &self,
        windlass: &Windlass,
        limits: &Limits,
        request: ClientRequest,
        owner: &Arc<str>,
        key: Option<&str>,
    ) -> Answer<ClientAnswer> {
        if request.tools.is_empty() || request.tools.len() > TOOLS {
            return Err(Refusal::invalid(format!("a client brings 1 to {TOOLS} tools")));
        }
        let id = name(owner, key)?;
        let schema_bytes = schema_bytes(limits, &request.tools)?;
        let _bringing = self.bringing.lock();
        let before = self.admitted(windlass, limits, &request, &id, schema_bytes)?;
        let calls = before.map_or_else(|| broadcast::channel(BEHIND).0, |client| client.calls);
        let tools = request.tools.into_iter().map(|tool| remote(tool, &calls)).collect::<Answer<Vec<Tool>>>()?;
        let names: BTreeSet<Arc<str>> = tools.iter().map(|tool| tool.spec().name.clone()).collect();
        // What is wrong with one is said when it is mounted; it is compiled here, where no other client waits.
        tools.iter().for_each(|tool| drop(tool.contract()));
        let mut known = self.known.lock();
        let mounted = windlass.toolbox().mount(&source(&id), tools);
        mounted.map_err(|error| Refusal::invalid(error.to_string()))?;
        let listed = names.iter().map(ToString::to_string).collect();
        let toolbox = windlass.toolbox().clone();
        let client = Client { owner: owner.clone(), tools: Arc::new(names), toolbox, calls, schema_bytes };
        known.insert(id.clone(), client);
        Ok(ClientAnswer { client: id, tools: listed })
    }

    /// Whether there is room for the tools of a client; answers what it brought before.
    fn admitted(
        &self,
        windlass: &Windlass,
        limits: &Limits,
        request: &ClientRequest,
        id: &str,
        schema_bytes: usize,
    ) -> Answer<Option<Client>> {
        let clients = self.known.lock();
        let others = clients.iter().filter(|(other, _)| **other != id).map(|(_, client)| client.schema_bytes);
        if others.sum::<usize>() + schema_bytes > limits.all_schema_bytes {
            let most = limits.all_schema_bytes;
            let why = format!(
                "the schemas of all clients would take more than {most} bytes of memory; take some clients away first"
            );
            return Err(Refusal::conflict("too_many", why));
        }
        if clients.len() >= CLIENTS && !clients.contains_key(id) {
            let why = format!("{CLIENTS} clients have brought tools already; take some away first");
            return Err(Refusal::conflict("too_many", why));
        }
        let before = clients.get(id).cloned();
        drop(clients);
        let snapshot = windlass.toolbox().snapshot();
        for tool in &request.tools {
            let own = before.as_ref().is_some_and(|client| client.tools.contains(tool.name.as_str()));
            if !own && snapshot.by_name(&tool.name).is_some() {
                let why = format!("there is a tool `{}` here already; give yours another name", tool.name);
                return Err(Refusal::conflict("tool_exists", why));
            }
        }
        Ok(before)
    }

    /// Takes a client and its tools away. Its calls wait until their deadline for one that brings the tools again.
    pub(crate) fn remove(&self, id: &str, who: &str) -> Answer<()> {
        let client = self.find(id, who)?;
        self.known.lock().remove(id);
        client.toolbox.unmount(&source(id));
        Ok(())
    }

    fn find(&self, id: &str, who: &str) -> Answer<Client> {
        let client = self.known.lock().get(id).cloned();
        // Somebody else's looks like nobody's.
        client.filter(|client| *client.owner == *who).ok_or_else(|| {
            Refusal::not_found(format!(
                "there is no client `{}` of yours; bring its tools again (POST /v1/clients), with the same \
                 Idempotency-Key to have the same name",
                crate::extract::shortened(id)
            ))
        })
    }

    /// Whether somebody brought a tool of this name.
    fn has_tool(&self, name: &str) -> bool {
        self.known.lock().values().any(|client| client.tools.contains(name))
    }

    fn knows(&self, id: &str, calls: &broadcast::Sender<ClientCall>) -> bool {
        self.known.lock().get(id).is_some_and(|client| client.calls.same_channel(calls))
    }

    /// The calls of a client as they come, beginning with those that wait already.
    pub(crate) fn calls(&self, app: &Shared, id: &str, who: &str) -> Answer<Calls> {
        let client = self.find(id, who)?;
        // Heard from now on, and looked for then: nothing falls between.
        let heard = client.calls.subscribe();
        Ok(Calls {
            app: app.clone(),
            id: id.to_owned(),
            client,
            heard,
            told: BTreeSet::new(),
            waiting: Vec::new(),
            look: true,
        })
    }
}

/// What the schemas of tools take in memory, roughly, for as long as their client has them: many times their text.
fn schema_bytes(limits: &Limits, tools: &[ClientTool]) -> Answer<usize> {
    let (mut bytes, most) = (0usize, limits.schema_bytes);
    for tool in tools {
        let input = tool.input_schema.clone().unwrap_or(serde_json::Value::Bool(true));
        let schemas = Schemas { input, output: tool.output_schema.clone() };
        bytes = bytes.saturating_add(schemas.compiled_bytes());
        if bytes > most {
            let name = crate::extract::shortened(&tool.name);
            let why = format!(
                "with those of `{name}` the schemas of this client take more than {most} bytes of memory; use fewer \
                 subschemas, or simpler patterns"
            );
            let title = "The schemas are too large";
            return Err(
                Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "schemas_too_large", title, why).with("limit", most)
            );
        }
    }
    Ok(bytes)
}

/// A random name, or the one that belongs to a key.
fn name(owner: &str, key: Option<&str>) -> Answer<String> {
    let mut bytes = [0u8; 12];
    match key {
        Some(key) => {
            let mut hasher = blake3::Hasher::new_derive_key("windlass 2026 names of clients v1");
            hasher.update(owner.as_bytes()).update(&[0]).update(key.as_bytes());
            hasher.finalize_xof().fill(&mut bytes);
        }
        None => getrandom::fill(&mut bytes).map_err(|_| Refusal::internal())?,
    }
    Ok(format!("c_{}", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
}

fn remote(tool: ClientTool, calls: &broadcast::Sender<ClientCall>) -> Answer<Tool> {
    let effect = match tool.effect.as_deref() {
        None | Some("once") => Effect::Once,
        Some("idempotent") => Effect::Idempotent,
        Some("readonly") => Effect::Readonly,
        Some(other) => {
            let (name, other) = (&tool.name, crate::extract::shortened(other));
            return Err(Refusal::invalid(format!("tool `{name}`: `{other}` is no effect: readonly, idempotent, once")));
        }
    };
    let deadline = tool.deadline_ms.map_or(DEADLINE, Duration::from_millis);
    if deadline.is_zero() {
        return Err(Refusal::invalid(format!("tool `{}`: a deadline of zero would fail every call", tool.name)));
    }
    let input = tool.input_schema.unwrap_or_else(|| serde_json::json!({"type": "object"}));
    let schemas = Schemas { input, output: tool.output_schema };
    let spec = ToolSpec::new(tool.name.as_str(), tool.description);
    let name: Arc<str> = tool.name.into();
    Ok(Tool::atomic(spec, schemas, Remote { calls: calls.clone(), name, deadline }).effect(effect))
}

/// Lets runs go on that were held because a tool was missing which is here now.
pub(crate) async fn take_up_held(windlass: &Windlass, tools: &[String]) {
    let mut after = None;
    loop {
        let page = match windlass.list(Filter::Held, after, PAGE).await {
            Ok(page) => page,
            Err(error) => return tracing::warn!("held runs cannot be looked for: {error}"),
        };
        after = page.last().map(|info| info.run);
        for info in &page {
            let RunState::Held { hold: Hold::ToolMissing { tool, .. } } = &info.state else { continue };
            if tools.contains(tool)
                && let Err(error) = windlass.resume(info.run).await
            {
                tracing::warn!(run = %info.run, "cannot be taken up: {error}");
            }
        }
        if page.len() < PAGE {
            return;
        }
    }
}

/// What of a run waits for people. A call that was handed to a client waits for a program; it is theirs only while nobody brings its
/// tool, because then nobody else would see it.
pub(crate) async fn for_people(app: &Shared, info: &RunInfo, mut items: Vec<Item>) -> windlass::Result<Vec<Item>> {
    let of_client = |item: &Item| match &item.what {
        What::Park(awaited) => {
            matches!(&awaited.park.on, Blocked::Input { name, at: None } if app.clients.has_tool(name))
        }
        What::Doubt(_) => false,
    };
    let paths: Vec<_> = items.iter().filter(|item| of_client(item)).map(|item| item.id.path.clone()).collect();
    if paths.is_empty() {
        return Ok(items);
    }
    let asked = app.windlass.asked_calls(info.run, &paths).await?;
    // A wait of a body may have the name of a tool; it is no call.
    let calls: BTreeSet<_> =
        paths.iter().zip(&asked).filter(|(_, asked)| asked.is_some()).map(|(path, _)| path).collect();
    items.retain(|item| item.id.kind != InboxKind::Input || !calls.contains(&item.id.path));
    Ok(items)
}

/// The calls a client is handed.
pub(crate) struct Calls {
    app: Shared,
    id: String,
    client: Client,
    heard: broadcast::Receiver<ClientCall>,
    /// The keys of calls that this reader was handed.
    told: BTreeSet<String>,
    waiting: Vec<ClientCall>,
    /// Whether the store is to be looked at.
    look: bool,
}

impl Source for Calls {
    async fn next(&mut self) -> Next {
        loop {
            if std::mem::take(&mut self.look) {
                match pending(&self.app.windlass, &self.client.tools).await {
                    Ok(calls) => self.waiting = calls,
                    Err(error) => {
                        troubled(&format_args!("the calls of a client cannot be read: {error}"));
                        return Next::Over(EndReason::Failed);
                    }
                }
                self.waiting.reverse();
            }
            let call = match self.waiting.pop() {
                Some(call) => call,
                None => match tokio::time::timeout(Duration::from_secs(1), self.heard.recv()).await {
                    Ok(Ok(call)) if !is_kept(&self.app.windlass, call.run).await => {
                        self.look = true;
                        continue;
                    }
                    Ok(Ok(call)) => call,
                    // What was missed is in the store.
                    Ok(Err(broadcast::error::RecvError::Lagged(_))) => {
                        self.look = true;
                        continue;
                    }
                    Ok(Err(broadcast::error::RecvError::Closed)) => return Next::Over(EndReason::Removed),
                    Err(_) if !self.app.clients.knows(&self.id, &self.client.calls) => {
                        return Next::Over(EndReason::Removed);
                    }
                    // A call that was said before anybody listened may have come to the store after the last look.
                    Err(_) => {
                        self.look = true;
                        continue;
                    }
                },
            };
            // What is forgotten is at worst handed out again, under the same key.
            if self.told.len() >= TOLD {
                self.told.clear();
            }
            if self.told.insert(call.key.clone()) {
                return Next::Event(event(None, "call", &call));
            }
        }
    }

    fn place(&self) -> String {
        String::new()
    }
}

/// Whether the store has a run, or has it in a moment. An attempt that only reads may run ahead of its run's first record, and nobody
/// can answer a run that is not there.
async fn is_kept(windlass: &Windlass, run: RunId) -> bool {
    for moment in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
        match windlass.info(run).await {
            Ok(Some(_)) => return true,
            _ => tokio::time::sleep(Duration::from_millis(moment)).await,
        }
    }
    false
}

/// Calls of these tools that wait for an answer.
async fn pending(windlass: &Windlass, tools: &BTreeSet<Arc<str>>) -> windlass::Result<Vec<ClientCall>> {
    let mut calls = Vec::new();
    let mut after = None;
    loop {
        let page = windlass.list(Filter::Inbox, after, PAGE).await?;
        after = page.last().map(|info| info.run);
        for info in &page {
            let of_tools = windlass
                .awaited(info)
                .into_iter()
                .filter(|item| matches!(&item.park.on, Blocked::Input { name, at: None } if tools.contains(name)));
            let items: Vec<_> = of_tools.collect();
            if items.is_empty() {
                continue;
            }
            let paths: Vec<_> = items.iter().map(|item| item.park.path.clone()).collect();
            let asked = match windlass.asked_calls(info.run, &paths).await {
                Err(error @ Error::Store(StoreError::Sealed { .. } | StoreError::Damaged { .. })) => {
                    tracing::warn!("no client can be given a call: {error}");
                    continue;
                }
                asked => asked?,
            };
            for (item, asked) in items.into_iter().zip(asked) {
                // A wait of a body may have the name of a tool; it is no call.
                let (Some(asked), Some(key)) = (asked, item.key) else { continue };
                calls.push(ClientCall {
                    run: info.run,
                    path: item.park.path,
                    tool: asked.tool.to_string(),
                    args: asked.args,
                    key,
                    until: item.park.until.map(Into::into),
                });
            }
        }
        if page.len() < PAGE {
            return Ok(calls);
        }
    }
}
