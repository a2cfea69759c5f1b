//! Connections that are kept (E06): for a provider and a principal, sealed, used by calls, refreshed when they expire.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass::connections::{ConnectionKey, Credential, ExpiredConnection, Refreshed};
use windlass::inbox::Blocked;
use windlass::{Call, Ctx, Effect, Error, RunId, Tool, ToolCall, ToolError, ToolResult};
use windlass_core::store::{ConnectionsOf, StoreError};
use windlass_core::{Config, Connect, Runtime};

use crate::world::{Counter, Kind, World, on_every_store};

const MOMENT: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const TOKEN: &str = "gho_correct-horse-battery-staple";

fn key(principal: &str) -> ConnectionKey {
    ConnectionKey::new("git", (!principal.is_empty()).then(|| principal.into()))
}

fn with(token: &str) -> Connect {
    Connect { credential: Some(Credential::new(token)), expires_in: None }
}

/// What the provider accepts, and what it was sent.
#[derive(Clone, Default)]
struct Git {
    accepts: Arc<Mutex<Option<String>>>,
    sent: Arc<Mutex<Vec<String>>>,
}

impl Git {
    /// A tool that sends its credential once. It declares its provider or finds out in its body.
    fn push(&self, declares: bool) -> Tool {
        let git = self.clone();
        let tool = Tool::with_call("push", "pushes", move |call: Call, _: Value| {
            let git = git.clone();
            async move {
                let token = call.connection("git").await?;
                git.sent.lock().push(token.expose().to_owned());
                if git.accepts.lock().as_deref().is_some_and(|accepted| accepted != token.expose()) {
                    return Err(ToolError::connection_required("git"));
                }
                Ok(json!("pushed"))
            }
        });
        tool.with(|spec| spec.guards.connection = declares.then(|| "git".into()))
    }

    fn sent(&self) -> Vec<String> {
        self.sent.lock().clone()
    }
}

fn start_as(world: &World, runtime: &Runtime, tool: &str, principal: &str) -> RunId {
    let call = ToolCall::new(tool, json!({}));
    let call = if principal.is_empty() { call } else { call.principal(principal) };
    let starting = runtime.clone();
    let run = world.run(async move { starting.start_call(call).await }).expect("it starts");
    world.pass(MOMENT);
    run
}

fn connect(world: &World, runtime: &Runtime, principal: &str, how: Connect) -> usize {
    let (runtime, key) = (runtime.clone(), key(principal));
    let told = world.run(async move { runtime.connect_with(None, &key, how).await }).expect("it is kept");
    world.pass(MOMENT);
    told
}

fn outcome(world: &World, runtime: &Runtime, run: RunId) -> ToolResult<Value> {
    let runtime = runtime.clone();
    let outcomes = world.run(async move { runtime.attach(run).await }).expect("the run ends");
    outcomes[0].result.clone().map(|output| output.value.clone()).map_err(|error| (*error).clone())
}

fn wanted(world: &World, runtime: &Runtime) -> Vec<(ConnectionKey, usize)> {
    let runtime = runtime.clone();
    let wanted = world.run(async move { runtime.connections_wanted().await }).expect("the store answers");
    wanted.into_iter().map(|(key, runs)| (key, runs.len())).collect()
}

fn reasons(world: &World, runtime: &Runtime) -> Vec<Option<String>> {
    let runtime = runtime.clone();
    let items = world.run(async move { runtime.inbox().await }).expect("the store answers");
    let why = items.into_iter().filter_map(|item| match item.park.on {
        Blocked::Connection { why, .. } => Some(why.map(|why| why.to_string())),
        _ => None,
    });
    why.collect()
}

#[test]
fn e06_a_kept_connection_is_used_by_the_next_call_without_asking() {
    on_every_store(|world| {
        for declares in [true, false] {
            let git = Git::default();
            let runtime = world.runtime([git.push(declares)]);
            let runs = [(); 2].map(|()| start_as(&world, &runtime, "push", "ada"));
            assert_eq!(wanted(&world, &runtime), [(key("ada"), 2)], "asked once");
            assert_eq!(reasons(&world, &runtime), [None, None]);
            assert_eq!(connect(&world, &runtime, "ada", with(TOKEN)), 2);
            runs.into_iter().for_each(|run| assert_eq!(outcome(&world, &runtime, run).unwrap(), json!("pushed")));
            let run = start_as(&world, &runtime, "push", "ada");
            assert_eq!(outcome(&world, &runtime, run).unwrap(), json!("pushed"));
            assert_eq!(git.sent(), [TOKEN; 3]);
            let (listing, deleting) = (runtime.clone(), runtime.clone());
            let list = world.run(async move { listing.connections(ConnectionsOf::All).await }).unwrap();
            assert_eq!(list.iter().map(|info| (&info.key, info.expires)).collect::<Vec<_>>(), [(&key("ada"), None)]);
            assert!(!format!("{list:?}").contains(TOKEN));
            assert!(world.run(async move { deleting.delete_connection(&key("ada")).await }).unwrap());
            let run = start_as(&world, &runtime, "push", "ada");
            assert_eq!(wanted(&world, &runtime), [(key("ada"), 1)], "a deleted one is asked for again");
            let again = runtime.clone();
            world.run(async move { again.refuse_connection(None, &key("ada"), "no").await }).unwrap();
            assert_eq!(outcome(&world, &runtime, run).unwrap_err().kind(), "denied");
        }
    });
}

#[test]
fn e06_l28_a_principal_neither_uses_nor_wakes_the_connection_of_another() {
    on_every_store(|world| {
        for declares in [true, false] {
            let git = Git::default();
            let runtime = world.runtime([git.push(declares)]);
            let [ada, bob, none] = ["ada", "bob", ""].map(|principal| start_as(&world, &runtime, "push", principal));
            assert_eq!(wanted(&world, &runtime), [(key(""), 1), (key("ada"), 1), (key("bob"), 1)]);
            assert_eq!(connect(&world, &runtime, "ada", with("of-ada")), 1);
            assert_eq!(outcome(&world, &runtime, ada).unwrap(), json!("pushed"));
            assert_eq!(wanted(&world, &runtime), [(key(""), 1), (key("bob"), 1)]);
            let refusing = runtime.clone();
            world.run(async move { refusing.refuse_connection(None, &key("bob"), "never").await }).unwrap();
            assert_eq!(outcome(&world, &runtime, bob).unwrap_err().kind(), "denied");
            assert_eq!(connect(&world, &runtime, "", with("of-none")), 1);
            assert_eq!(outcome(&world, &runtime, none).unwrap(), json!("pushed"));
            assert_eq!(git.sent(), ["of-ada", "of-none"]);
            for principal in ["ada", ""] {
                let (deleting, key) = (runtime.clone(), key(principal));
                assert!(world.run(async move { deleting.delete_connection(&key).await }).unwrap());
            }
        }
    });
}

#[test]
fn e06_a_connection_that_expires_is_asked_for_again() {
    on_every_store(|world| {
        let git = Git::default();
        let runtime = world.runtime([git.push(true)]);
        connect(&world, &runtime, "", Connect { expires_in: Some(HOUR), ..with("first") });
        let run = start_as(&world, &runtime, "push", "");
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!("pushed"));
        world.pass(HOUR);
        let run = start_as(&world, &runtime, "push", "");
        assert_eq!(reasons(&world, &runtime), [Some("the connection has expired".to_owned())]);
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([git.push(true)]);
        world.pass(MOMENT);
        assert_eq!(reasons(&world, &runtime).len(), 1, "also after a restart");
        connect(&world, &runtime, "", with("second"));
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!("pushed"));
        assert_eq!(git.sent(), ["first", "second"]);
    });
}

#[test]
fn e06_a_credential_that_the_provider_rejects_is_asked_for_again_and_not_tried_again() {
    on_every_store(|world| {
        for declares in [true, false] {
            let git = Git::default();
            *git.accepts.lock() = Some("new".to_owned());
            let runtime = world.runtime([git.push(declares)]);
            connect(&world, &runtime, "", with("old"));
            let first = start_as(&world, &runtime, "push", "");
            assert_eq!(reasons(&world, &runtime), [Some("an attempt could not use it".to_owned())]);
            let second = start_as(&world, &runtime, "push", "");
            assert_eq!(git.sent(), ["old"], "the next call does not try it");
            assert_eq!(wanted(&world, &runtime), [(key(""), 2)]);
            assert_eq!(connect(&world, &runtime, "", with("also-old")), 2);
            assert!(matches!(git.sent().len(), 2 | 3), "once for each call that got it before it was rejected");
            assert_eq!(connect(&world, &runtime, "", with("new")), 2);
            for run in [first, second] {
                assert_eq!(outcome(&world, &runtime, run).unwrap(), json!("pushed"));
            }
            let deleting = runtime.clone();
            assert!(world.run(async move { deleting.delete_connection(&key("")).await }).unwrap());
        }
    });
}

fn refreshing(world: &World, git: &Git, declares: bool, refreshes: &Counter, works: bool) -> Config {
    let mut config = world.config([git.push(declares)]);
    let (sim, refreshes) = (world.sim.clone(), refreshes.clone());
    let refresh = move |expired: ExpiredConnection| {
        let (sim, n) = (sim.clone(), refreshes.add());
        async move {
            windlass_core::time::Clock::sleep(&sim, MOMENT).await;
            let old = expired.credential.expose();
            match works {
                true => Ok(Refreshed::new(format!("{old}+{n}")).expires_in(HOUR)),
                false => Err(format!("the token {old} was revoked")),
            }
        }
    };
    config.refresh.insert("git".to_owned(), Arc::new(refresh));
    config
}

#[test]
fn e06_an_expired_connection_is_refreshed_once_for_all_calls() {
    on_every_store(|world| {
        let (git, refreshes) = (Git::default(), Counter::default());
        let runtime = Runtime::new(refreshing(&world, &git, true, &refreshes, true));
        connect(&world, &runtime, "", Connect { expires_in: Some(HOUR), ..with("t") });
        world.pass(HOUR);
        let starting = runtime.clone();
        let runs = world.run(async move {
            let mut runs = Vec::new();
            for _ in 0..3 {
                runs.push(starting.start_call(ToolCall::new("push", json!({}))).await.unwrap());
            }
            runs
        });
        for run in runs {
            assert_eq!(outcome(&world, &runtime, run).unwrap(), json!("pushed"));
        }
        assert_eq!((git.sent(), refreshes.get()), (vec!["t+1".to_owned(); 3], 1));
        assert_eq!(wanted(&world, &runtime), [], "no person was asked");
        world.pass(2 * HOUR);
        let run = start_as(&world, &runtime, "push", "");
        outcome(&world, &runtime, run).unwrap();
        assert_eq!(git.sent()[3], "t+1+2", "with the credential of the last refresh");
    });
}

#[test]
fn e06_a_rejected_credential_is_refreshed_once_and_then_asked_for() {
    on_every_store(|world| {
        let (git, refreshes) = (Git::default(), Counter::default());
        *git.accepts.lock() = Some("good".to_owned());
        let runtime = Runtime::new(refreshing(&world, &git, false, &refreshes, true));
        connect(&world, &runtime, "", with("t"));
        let run = start_as(&world, &runtime, "push", "");
        world.pass(10 * MOMENT);
        assert_eq!((git.sent(), refreshes.get()), (vec!["t".to_owned(), "t+1".to_owned()], 1), "it does not loop");
        assert_eq!(wanted(&world, &runtime), [(key(""), 1)]);
        connect(&world, &runtime, "", with("good"));
        assert_eq!(outcome(&world, &runtime, run).unwrap(), json!("pushed"));
    });
}

#[test]
fn e06_a_failed_refresh_is_the_reason_of_the_question_and_loses_nothing() {
    on_every_store(|world| {
        for declares in [true, false] {
            let (git, refreshes) = (Git::default(), Counter::default());
            let runtime = Runtime::new(refreshing(&world, &git, declares, &refreshes, false));
            connect(&world, &runtime, "", Connect { expires_in: Some(HOUR), ..with(TOKEN) });
            world.pass(HOUR);
            let run = start_as(&world, &runtime, "push", "");
            world.pass(2 * MOMENT);
            let why = "the refresh failed: the token [secret git] was revoked";
            assert_eq!(reasons(&world, &runtime), [Some(why.to_owned())], "the credential is not part of it");
            let store = world.store.clone();
            let kept = world.run(async move { store.connections().connection(key("")).await }).unwrap().unwrap();
            assert_eq!(kept.credential.unwrap().expose(), TOKEN, "the old credential is kept");
            assert_eq!(kept.info.problem.as_deref(), Some(why));
            assert!(git.sent().is_empty());
            connect(&world, &runtime, "", with("new"));
            assert_eq!(outcome(&world, &runtime, run).unwrap(), json!("pushed"));
            let deleting = runtime.clone();
            assert!(world.run(async move { deleting.delete_connection(&key("")).await }).unwrap());
        }
    });
}

#[test]
fn e06_a_refresh_that_takes_too_long_or_panics_has_failed() {
    let world = World::new(Kind::Memory);
    for (panics, expected) in [(true, "it panicked"), (false, "it took longer than 30s")] {
        let mut config = world.another([Git::default().push(true)]);
        let refresh = move |_: ExpiredConnection| async move {
            assert!(!panics, "no");
            std::future::pending::<Result<Refreshed, String>>().await
        };
        config.refresh.insert("git".to_owned(), Arc::new(refresh));
        let runtime = Runtime::new(config);
        connect(&world, &runtime, "", Connect { expires_in: Some(MOMENT), ..with("t") });
        let run = start_as(&world, &runtime, "push", "");
        world.pass(Duration::from_secs(31));
        assert_eq!(reasons(&world, &runtime), [Some(format!("the refresh failed: {expected}"))]);
        let again = runtime.clone();
        world.run(async move { again.refuse_connection(None, &key(""), "no").await }).unwrap();
        assert!(outcome(&world, &runtime, run).is_err());
    }
}

/// Says its credential wherever it can.
fn blabs() -> Vec<Tool> {
    let reads = |call: Call| async move { ToolResult::Ok(call.connection("git").await?.expose().to_owned()) };
    let says = Tool::with_call("says", "says it", move |call: Call, _: Value| async move {
        let token = reads(call.clone()).await?;
        call.progress(&format!("using {token}"));
        let output = windlass::Output::value(json!({"token": token, "in": [format!("Bearer {token}")]}));
        Ok(output.with(windlass::Content::text(format!("it is {token}"))))
    });
    let fails = Tool::with_call("fails", "fails with it", move |call: Call, _: Value| async move {
        let token = reads(call).await?;
        Err::<Value, _>(ToolError::rejected("bad", format!("no {token}")).with_data(json!({"tried": token})))
    });
    let breaks = Tool::with_call("breaks", "breaks with it", move |call: Call, _: Value| async move {
        Err::<Value, _>(ToolError::internal(reads(call).await?))
    });
    let panics = Tool::with_call("panics", "panics with it", move |call: Call, _: Value| async move {
        let token = reads(call).await?;
        if token.is_empty() { Ok(json!(null)) } else { panic!("with {token}") }
    });
    let steps = Tool::durable_fn("steps", "says it in a step", move |mut ctx: Ctx, _: Value| async move {
        let step = ctx.step("read", |call| async move {
            let token = call.connection("git").await?;
            Ok(json!(token.expose()))
        });
        step.await
    });
    let mut tools: Vec<Tool> =
        [says, fails, breaks, panics].into_iter().map(|tool| tool.effect(Effect::Readonly)).collect();
    tools.push(steps);
    tools
}

#[test]
fn e06_e26_a_credential_is_in_no_file_record_export_event_log_or_error() {
    let world = World::new(Kind::Sqlite);
    let file = world.file();
    let log = crate::log::Log::default();
    let runtime = world.runtime(blabs());
    connect(&world, &runtime, "", with(TOKEN));
    let texts = tracing::subscriber::with_default(log.clone(), || {
        let mut texts = Vec::new();
        for tool in ["says", "fails", "breaks", "panics", "steps"] {
            let calling = runtime.clone();
            let outcome = world.run(async move { calling.call(ToolCall::new(tool, json!({}))).await }).unwrap();
            let (run, exporting) = (outcome.run, runtime.clone());
            let export = world.run(async move { exporting.export(run).await }).unwrap();
            texts.extend([format!("{outcome:?} {}", outcome.for_model()), export.to_string()]);
        }
        texts
    });
    assert!(texts[0].contains("Bearer [secret git]") && texts[0].contains("it is [secret git]"), "{}", texts[0]);
    let lines = log.lines();
    assert!(lines.iter().any(|line| line.contains("using [secret git]")), "{lines:?}");
    for text in texts.iter().chain(&lines) {
        assert!(!text.contains(TOKEN), "{text}");
    }
    let change = windlass_core::store::ConnectionChange::Connect {
        credential: Some(Credential::new(TOKEN)),
        expires: None,
        dedupe: None,
    };
    assert!(!format!("{change:?} {} {:?}", Credential::new(TOKEN), with(TOKEN)).contains(TOKEN));
    // Found while the file is open, with its write-ahead log, and after it was closed.
    let is_there = || {
        std::fs::read_dir(file.parent().unwrap()).unwrap().any(|entry| {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            bytes.windows(TOKEN.len()).any(|window| window == TOKEN.as_bytes())
        })
    };
    assert!(!is_there());
    drop(runtime);
    let world = world.restart();
    assert!(!is_there());
    // Without its key, the credential cannot be read, and everything else works.
    let (sealing, store) = (file.with_file_name("test.db-key"), world.store.clone());
    let kept = std::fs::read(&sealing).unwrap();
    std::fs::remove_file(&sealing).unwrap();
    let error = world.run(async move {
        assert_eq!(store.connections().list_connections(ConnectionsOf::All).await.unwrap().len(), 1);
        store.connections().connection(key("")).await.unwrap_err()
    });
    assert!(matches!(&error, StoreError::UnsealableCredential { why, .. } if why.contains("test.db-key")), "{error}");
    let runtime = world.runtime(blabs());
    let run = start_as(&world, &runtime, "says", "");
    assert!(
        reasons(&world, &runtime)[0].as_ref().unwrap().contains("cannot be opened"),
        "a person is asked, with the reason"
    );
    std::fs::write(&sealing, kept).unwrap();
    connect(&world, &runtime, "", with(TOKEN));
    assert!(outcome(&world, &runtime, run).is_ok());
}

#[test]
fn e27_a_session_secret_is_redacted_from_what_an_attempt_returns() {
    on_every_store(|world| {
        let says = Tool::with_call("says", "says it", |call: Call, _: Value| async move {
            let session = call.session().ok_or_else(|| ToolError::failed("no session"))?;
            Ok(json!({"secret": session.secret("token").await?}))
        });
        let runtime = world.runtime([says]);
        let (ada, calling) = (runtime.session("ada"), runtime.clone());
        let outcome = world.run(async move {
            ada.open(None, None).await.unwrap();
            ada.set_secret("token", TOKEN).await.unwrap();
            calling.call(ToolCall::new("says", json!({})).session("ada")).await.unwrap()
        });
        assert_eq!(outcome.value(), Some(&json!({"secret": "[secret token]"})));
    });
}

#[test]
fn e06_what_cannot_be_kept_is_refused_by_name() {
    let world = World::new(Kind::Memory);
    let runtime = world.runtime([]);
    let refused = |provider: &str, principal: Option<&str>, how: Connect| {
        let key = ConnectionKey::new(provider, principal.map(Into::into));
        let runtime = runtime.clone();
        world.run(async move { runtime.connect_with(None, &key, how).await }).unwrap_err()
    };
    assert!(matches!(refused("", None, with("t")), Error::Invalid(why) if why.contains("the name of a provider")));
    assert!(matches!(refused("git", Some(""), with("t")), Error::Invalid(_)));
    assert!(matches!(refused("git", None, with("")), Error::Invalid(why) if why.contains("credential")));
    assert!(matches!(refused("git", None, with(&"x".repeat(20_000))), Error::TooLarge(_)));
    let zero = Connect { expires_in: Some(Duration::ZERO), ..with("t") };
    assert!(matches!(refused("git", None, zero), Error::Invalid(_)));
}
