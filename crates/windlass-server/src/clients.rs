//! Client tools: tools that run in a connected client. A call is sent to the client, which answers by reply key.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::broadcast;
use windlass::inbox::Blocked;
use windlass::run::{Filter, Hold, RunInfo, RunState};
use windlass::store::StoreError;
use windlass::tool::encode_output;
use windlass::tool::{Atomic, Reply, Schemas};
use windlass::{Call, Effect, Error, Output, RunId, Tool, ToolError, ToolResult, ToolSpec, Toolbox, Windlass};

use crate::app::Shared;
use crate::options::Limits;
use crate::refusal::{ApiResult, Refusal, log_throttled};
use crate::show::{Item, ItemCause};
use crate::sse::{Next, Source, event};
use crate::wire::{ClientCall, ClientRequest, ClientResponse, ClientTool, EndReason, InboxKind, Time};

/// Most registered clients. More are probably registered by a loop.
const MAX_CLIENTS: usize = 1_000;
/// Most tools of one client.
const MAX_TOOLS: usize = 256;
/// Calls that are buffered for a reader. One that is further behind reads them from the store.
const BUFFERED_CALLS: usize = 256;
/// Default deadline of a call.
const DEADLINE: Duration = Duration::from_secs(600);
/// Calls that a reader remembers as sent.
const REMEMBERED: usize = 10_000;
/// Runs that are read from the store at a time.
const PAGE: usize = 100;

#[derive(Default)]
pub(crate) struct Clients {
    by_id: Mutex<FxHashMap<String, ToolClient>>,
    /// Held while a client registers. A lock of its own, because compiling schemas takes long and `by_id` is read
    /// meanwhile.
    registering: Mutex<()>,
}

#[derive(Clone)]
struct ToolClient {
    /// The name of the token that registered it.
    owner: Arc<str>,
    tools: Arc<BTreeSet<Arc<str>>>,
    /// The session that the tools belong to; `None` if they are offered everywhere.
    session: Option<ClientSession>,
    /// The toolbox of the runtime, or of the layer that the client's token is bound to.
    toolbox: Toolbox,
    calls: broadcast::Sender<ClientCall>,
    /// Estimated memory of its tools' schemas.
    schema_bytes: usize,
}

impl ToolClient {
    fn unmount(&self, id: &str) {
        match &self.session {
            Some(session) => self.toolbox.unmount_in_session(&session.name, &source(id)),
            None => self.toolbox.unmount(&source(id)),
        };
    }

    /// Whether a run in this session is offered its tools.
    fn serves(&self, session: Option<&Arc<str>>) -> bool {
        self.session.as_ref().is_none_or(|own| session == Some(&own.name))
    }
}

/// The session that a client's tools belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientSession {
    pub(crate) name: Arc<str>,
    /// Its owner when the tools were registered.
    pub(crate) owner: Option<Arc<str>>,
}

/// The body of a client tool.
struct Remote {
    calls: broadcast::Sender<ClientCall>,
    name: Arc<str>,
    deadline: Duration,
    session: Option<ClientSession>,
}

impl Atomic for Remote {
    fn attempt(&self, call: Call) -> BoxFuture<'static, ToolResult<Output>> {
        let sent = ClientCall {
            run: call.run(),
            path: call.path().clone(),
            tool: self.name.to_string(),
            args: (**call.args()).clone(),
            key: call.reply_key(),
            until: Some(Time::from(Time::now().timestamp() + self.deadline)),
        };
        let (calls, session, deadline) = (self.calls.clone(), self.session.clone(), self.deadline);
        Box::pin(async move {
            if let Some(session) = session {
                check_owner(&call, &session).await?;
            }
            // Fails if the client is not connected. It reads the call from the store when it connects.
            drop(calls.send(sent));
            encode_output(Ok(Reply::<serde_json::Value>::later().within(deadline)))
        })
    }
}

/// Refuses a call in a session that got the name of the client's session after that was purged, if it belongs to another
/// principal: the client must not see its arguments.
async fn check_owner(call: &Call, session: &ClientSession) -> ToolResult<()> {
    let now = match call.session() {
        Some(session) => session.info().await?,
        None => None,
    };
    match now {
        Some(now) if now.owner == session.owner => Ok(()),
        _ => {
            let name = call.tool();
            Err(ToolError::unavailable(format!("there is no tool `{name}` in this session; its client is gone")))
        }
    }
}

fn source(client: &str) -> String {
    format!("client:{client}")
}

impl Clients {
    /// Registers the tools of a client. The same key always means the same client, whose tools are then replaced.
    ///
    /// Blocks the thread, because it compiles schemas.
    pub(crate) fn register(
        &self,
        windlass: &Windlass,
        limits: &Limits,
        request: ClientRequest,
        (owner, session): (&Arc<str>, Option<ClientSession>),
        key: Option<&str>,
    ) -> ApiResult<ClientResponse> {
        if request.tools.is_empty() || request.tools.len() > MAX_TOOLS {
            let count = request.tools.len();
            return Err(Refusal::invalid(format!("`tools` has {count} entries; register 1 to {MAX_TOOLS} tools")));
        }
        let id = client_id(owner, key)?;
        let schema_bytes = schema_bytes(limits, &request.tools)?;
        let _registering = self.registering.lock();
        let previous = self.admit(windlass, limits, &request, (&id, session.as_ref()), schema_bytes)?;
        let calls = match &previous {
            Some(client) => client.calls.clone(),
            None => broadcast::channel(BUFFERED_CALLS).0,
        };
        let tools = request.tools.into_iter().map(|tool| remote(tool, &calls, session.as_ref()));
        let tools = tools.collect::<ApiResult<Vec<Tool>>>()?;
        let names: BTreeSet<Arc<str>> = tools.iter().map(|tool| tool.spec().name.clone()).collect();
        // Compiled here, outside of the `by_id` lock. Mounting reports the errors.
        tools.iter().for_each(|tool| drop(tool.contract()));
        let mut clients = self.by_id.lock();
        let mounted = match &session {
            Some(session) => windlass.toolbox().mount_in_session(&session.name, &source(&id), tools),
            None => windlass.toolbox().mount(&source(&id), tools),
        };
        mounted.map_err(|error| Refusal::invalid(error.to_string()))?;
        // A client that moves to another session is not offered in the old one any more.
        if let Some(previous) = previous.filter(|previous| previous.session != session) {
            previous.unmount(&id);
        }
        let listed = names.iter().map(ToString::to_string).collect();
        let toolbox = windlass.toolbox().clone();
        let offered = session.as_ref().map(|session| session.name.to_string());
        let client = ToolClient { owner: owner.clone(), tools: Arc::new(names), session, toolbox, calls, schema_bytes };
        clients.insert(id.clone(), client);
        Ok(ClientResponse { client: id, tools: listed, session: offered })
    }

    /// Checks the limits for a client's tools. Returns its previous registration, if it has one.
    fn admit(
        &self,
        windlass: &Windlass,
        limits: &Limits,
        request: &ClientRequest,
        (id, session): (&str, Option<&ClientSession>),
        schema_bytes: usize,
    ) -> ApiResult<Option<ToolClient>> {
        let clients = self.by_id.lock();
        let others = clients.iter().filter(|(other, _)| **other != id).map(|(_, client)| client.schema_bytes);
        if others.sum::<usize>() + schema_bytes > limits.total_schema_bytes {
            let most = limits.total_schema_bytes;
            let detail = format!(
                "the tool schemas of all clients would take more than {most} bytes of memory; remove some clients first"
            );
            return Err(Refusal::conflict("limit_reached", detail));
        }
        if clients.len() >= MAX_CLIENTS && !clients.contains_key(id) {
            let detail = format!("{MAX_CLIENTS} clients have registered tools, which is the limit; remove some first");
            return Err(Refusal::conflict("limit_reached", detail));
        }
        let previous = clients.get(id).cloned();
        let layers = windlass.toolbox().layers();
        // The tools of two clients may have the same name only in two different sessions.
        let of_others: BTreeSet<Arc<str>> = clients
            .iter()
            .filter(|(other, client)| *other != id && client.toolbox.layers() == layers)
            .filter(|(_, client)| session.is_none_or(|session| client.serves(Some(&session.name))))
            .flat_map(|(_, client)| client.tools.iter().cloned())
            .collect();
        drop(clients);
        let toolbox = match session {
            Some(session) => windlass.toolbox().of_session(session.name.clone()),
            None => windlass.toolbox().clone(),
        };
        let snapshot = toolbox.snapshot();
        for tool in &request.tools {
            let own = previous.as_ref().is_some_and(|client| client.tools.contains(tool.name.as_str()));
            if of_others.contains(tool.name.as_str()) || (!own && snapshot.by_name(&tool.name).is_some()) {
                let detail = format!("the tool `{}` already exists; choose another name for yours", tool.name);
                return Err(Refusal::conflict("tool_exists", detail));
            }
        }
        Ok(previous)
    }

    /// Removes a client and its tools. Pending calls wait until their deadline for a client that registers the tools
    /// again.
    pub(crate) fn remove(&self, id: &str, owner: &str) -> ApiResult<()> {
        let client = self.find(id, owner)?;
        self.by_id.lock().remove(id);
        client.unmount(id);
        Ok(())
    }

    fn find(&self, id: &str, owner: &str) -> ApiResult<ToolClient> {
        let client = self.by_id.lock().get(id).cloned();
        // A client of another token is not distinguishable from one that does not exist.
        client.filter(|client| *client.owner == *owner).ok_or_else(|| {
            Refusal::not_found(format!(
                "client `{}` does not exist or belongs to another token; register its tools again (POST /v1/clients), \
                 with the same Idempotency-Key to get the same id",
                crate::extract::shortened(id)
            ))
        })
    }

    /// Whether a client has a tool of this name for a run in this session.
    fn has_tool(&self, name: &str, session: Option<&Arc<str>>) -> bool {
        self.by_id.lock().values().any(|client| client.serves(session) && client.tools.contains(name))
    }

    fn is_registered(&self, id: &str, calls: &broadcast::Sender<ClientCall>) -> bool {
        self.by_id.lock().get(id).is_some_and(|client| client.calls.same_channel(calls))
    }

    /// The calls of a client: first the pending ones, then new ones as they are made.
    pub(crate) fn calls(&self, app: &Shared, id: &str, owner: &str) -> ApiResult<Calls> {
        let client = self.find(id, owner)?;
        // Subscribed before the store is read, so no call is missed in between.
        let live = client.calls.subscribe();
        Ok(Calls {
            app: app.clone(),
            id: id.to_owned(),
            client,
            live,
            sent: BTreeSet::new(),
            pending: Vec::new(),
            read_store: true,
        })
    }
}

/// Estimated memory of the compiled schemas, which is many times the size of their text.
fn schema_bytes(limits: &Limits, tools: &[ClientTool]) -> ApiResult<usize> {
    let (mut bytes, most) = (0usize, limits.schema_bytes);
    for tool in tools {
        let input = tool.input_schema.clone().unwrap_or(serde_json::Value::Bool(true));
        let schemas = Schemas { input, output: tool.output_schema.clone() };
        bytes = bytes.saturating_add(schemas.compiled_bytes());
        if bytes > most {
            let name = crate::extract::shortened(&tool.name);
            let detail = format!(
                "the schemas of this client's tools up to `{name}` take more than {most} bytes of memory; use fewer \
                 subschemas, or simpler patterns"
            );
            let (status, title) = (StatusCode::PAYLOAD_TOO_LARGE, "Tool schemas too large");
            return Err(Refusal::new(status, "schemas_too_large", title, detail).with("limit", most));
        }
    }
    Ok(bytes)
}

/// A random id, or the one that is derived from the key.
fn client_id(owner: &str, key: Option<&str>) -> ApiResult<String> {
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

fn remote(tool: ClientTool, calls: &broadcast::Sender<ClientCall>, session: Option<&ClientSession>) -> ApiResult<Tool> {
    let effect = match tool.effect.as_deref() {
        None | Some("once") => Effect::Once,
        Some("idempotent") => Effect::Idempotent,
        Some("readonly") => Effect::Readonly,
        Some(other) => {
            let (name, other) = (&tool.name, crate::extract::shortened(other));
            let detail = format!("tool `{name}`: `{other}` is not an effect; use `readonly`, `idempotent` or `once`");
            return Err(Refusal::invalid(detail));
        }
    };
    let deadline = tool.deadline_ms.map_or(DEADLINE, Duration::from_millis);
    if deadline.is_zero() {
        let detail =
            format!("tool `{}`: `deadline_ms` is zero, so every call would fail; use a longer time", tool.name);
        return Err(Refusal::invalid(detail));
    }
    let input = tool.input_schema.unwrap_or_else(|| serde_json::json!({"type": "object"}));
    let schemas = Schemas { input, output: tool.output_schema };
    let spec = ToolSpec::new(tool.name.as_str(), tool.description);
    let name: Arc<str> = tool.name.into();
    Ok(Tool::atomic(spec, schemas, Remote { calls: calls.clone(), name, deadline, session: session.cloned() })
        .effect(effect))
}

/// Resumes the runs that are held because one of these tools was missing: all of them, or those of the session that the
/// tools belong to.
pub(crate) async fn resume_held(windlass: &Windlass, tools: &[String], session: Option<&str>) {
    let mut after = None;
    loop {
        let page = match windlass.list(Filter::held(), after, PAGE).await {
            Ok(page) => page,
            Err(error) => return tracing::warn!("could not list the held runs: {error}"),
        };
        after = page.last().map(|info| info.run);
        for info in &page {
            let RunState::Held { hold: Hold::ToolMissing { tool, .. } } = &info.state else { continue };
            if tools.contains(tool)
                && session.is_none_or(|session| info.session.as_deref() == Some(session))
                && let Err(error) = windlass.runtime().resume(info.run).await
            {
                tracing::warn!(run = %info.run, "could not resume a held run: {error}");
            }
        }
        if page.len() < PAGE {
            return;
        }
    }
}

/// Removes calls of client tools from a run's inbox items: their client answers them. A call whose tool no client has
/// stays, because otherwise it would be visible nowhere.
pub(crate) async fn without_client_calls(
    app: &Shared,
    info: &RunInfo,
    mut items: Vec<Item>,
) -> windlass::Result<Vec<Item>> {
    let of_client = |item: &Item| match &item.cause {
        ItemCause::Park(awaited) => {
            matches!(&awaited.park.on, Blocked::Input { name, at: None } if app.clients.has_tool(name, info.session.as_ref()))
        }
        ItemCause::Doubt(_) => false,
    };
    let paths: Vec<_> = items.iter().filter(|item| of_client(item)).map(|item| item.id.path.clone()).collect();
    if paths.is_empty() {
        return Ok(items);
    }
    let asked = app.windlass.runtime().asked_calls(info.run, &paths).await?;
    // A wait in a body may have the same name as a tool, but it is not a call.
    let calls: BTreeSet<_> =
        paths.iter().zip(&asked).filter(|(_, asked)| asked.is_some()).map(|(path, _)| path).collect();
    items.retain(|item| item.id.kind != InboxKind::Input || !calls.contains(&item.id.path));
    Ok(items)
}

/// The event source of a client's calls.
pub(crate) struct Calls {
    app: Shared,
    id: String,
    client: ToolClient,
    live: broadcast::Receiver<ClientCall>,
    /// The reply keys of calls that were sent to this reader.
    sent: BTreeSet<String>,
    /// Calls from the store that are not sent yet, in reverse order.
    pending: Vec<ClientCall>,
    /// Whether the store has to be read again.
    read_store: bool,
}

impl Source for Calls {
    async fn next(&mut self) -> Next {
        loop {
            if std::mem::take(&mut self.read_store) {
                match pending_calls(&self.app.windlass, &self.client).await {
                    Ok(calls) => self.pending = calls,
                    Err(error) => {
                        log_throttled(&format_args!("could not read the pending calls of a client: {error}"));
                        return Next::End(EndReason::Failed);
                    }
                }
                self.pending.reverse();
            }
            let call = match self.pending.pop() {
                Some(call) => call,
                None => match tokio::time::timeout(Duration::from_secs(1), self.live.recv()).await {
                    Ok(Ok(call)) if !is_stored(&self.app.windlass, call.run).await => {
                        self.read_store = true;
                        continue;
                    }
                    Ok(Ok(call)) => call,
                    // Missed calls are in the store.
                    Ok(Err(broadcast::error::RecvError::Lagged(_))) => {
                        self.read_store = true;
                        continue;
                    }
                    Ok(Err(broadcast::error::RecvError::Closed)) => return Next::End(EndReason::Removed),
                    Err(_) if !self.app.clients.is_registered(&self.id, &self.client.calls) => {
                        return Next::End(EndReason::Removed);
                    }
                    // A call that was sent before this reader subscribed may have been stored after the last read.
                    Err(_) => {
                        self.read_store = true;
                        continue;
                    }
                },
            };
            // A forgotten call may be sent again, with the same key.
            if self.sent.len() >= REMEMBERED {
                self.sent.clear();
            }
            if self.sent.insert(call.key.clone()) {
                return Next::Event(event(None, "call", &call));
            }
        }
    }

    fn position(&self) -> String {
        String::new()
    }
}

/// Waits briefly until the store has a run. A `readonly` attempt may start before the run's first record is stored, and
/// a run that is not stored cannot be answered.
async fn is_stored(windlass: &Windlass, run: RunId) -> bool {
    for delay in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
        match windlass.runtime().info(run).await {
            Ok(Some(_)) => return true,
            _ => tokio::time::sleep(Duration::from_millis(delay)).await,
        }
    }
    false
}

/// Calls of these tools that wait for an answer.
async fn pending_calls(windlass: &Windlass, client: &ToolClient) -> windlass::Result<Vec<ClientCall>> {
    let mut calls = Vec::new();
    let mut after = None;
    loop {
        let page = windlass.list(Filter::inbox(), after, PAGE).await?;
        after = page.last().map(|info| info.run);
        for info in page.iter().filter(|info| client.serves(info.session.as_ref())) {
            let of_tools = windlass.runtime().awaited(info).into_iter().filter(
                |item| matches!(&item.park.on, Blocked::Input { name, at: None } if client.tools.contains(name)),
            );
            let items: Vec<_> = of_tools.collect();
            if items.is_empty() {
                continue;
            }
            let paths: Vec<_> = items.iter().map(|item| item.park.path.clone()).collect();
            let asked = match windlass.runtime().asked_calls(info.run, &paths).await {
                Err(error @ Error::Store(StoreError::Sealed { .. } | StoreError::Damaged { .. })) => {
                    tracing::warn!(run = %info.run, "could not read the pending calls of a run: {error}");
                    continue;
                }
                asked => asked?,
            };
            for (item, asked) in items.into_iter().zip(asked) {
                // A wait in a body may have the same name as a tool, but it is not a call.
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
