//! The log: narration, hidden failures with their whole chain, spans around attempts.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Metadata, Subscriber};
use windlass::inbox::Settlement;
use windlass::{Effect, Path, ToolCall, ToolError};
use windlass_core::time::{Clock, Timestamp};

use crate::world::{Kind, World, on_every_store, tool};

/// Records every event and every span as text.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// What was logged so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut line = Line(format!("span {}", attributes.metadata().name()));
        attributes.record(&mut line);
        let mut lines = self.0.lock();
        lines.push(line.0);
        Id::from_u64(lines.len() as u64)
    }

    fn record(&self, _: &Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The log of one call.
fn logged(tool: windlass::Tool, args: Value) -> Vec<String> {
    let log = Log::default();
    let world = World::new(Kind::Memory);
    let runtime = world.runtime([tool]);
    tracing::subscriber::with_default(log.clone(), || {
        world.run(async move { runtime.call(ToolCall::new("t", args)).await.unwrap() })
    });
    log.0.lock().clone()
}

#[test]
fn e12_the_start_and_end_of_a_call_are_narrated() {
    let narrated = tool("t", |_| async { Ok(1) }).effect(Effect::Readonly);
    let lines = logged(
        narrated.with(|spec| spec.about.narration.add("en", "Reading {path}", "Read {path}")),
        json!({"path": "AGENTS.md"}),
    );
    let told: Vec<_> = lines.iter().filter(|line| line.starts_with("INFO")).collect();
    assert!(told[0].contains("message=Reading AGENTS.md") && told[1].contains("message=Read AGENTS.md"), "{lines:?}");
}

#[derive(Debug)]
struct Layer(&'static str, Option<Box<Layer>>);

impl std::fmt::Display for Layer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Layer {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.1.as_deref().map(|layer| layer as _)
    }
}

#[test]
fn e03_an_internal_error_is_logged_with_its_whole_source_chain() {
    let failing = tool("t", |_| async {
        let inner = Layer("connection refused", Some(Box::new(Layer("password=hunter2", None))));
        Err::<(), _>(ToolError::from(Layer("cannot charge", Some(Box::new(inner)))))
    });
    let lines = logged(failing, json!({}));
    let error = lines.iter().find(|line| line.starts_with("ERROR")).expect("it is logged");
    assert!(error.contains("cannot charge: connection refused: password=hunter2"), "{error}");
    assert!(error.contains("correlation="), "{error}");
}

#[test]
fn l24_a_panic_is_logged_with_its_message() {
    let lines = logged(tool("t", |_| async { if true { panic!("at the disco") } else { Ok(()) } }), json!({}));
    assert!(lines.iter().any(|line| line.starts_with("ERROR") && line.contains("at the disco")), "{lines:?}");
}

#[test]
fn every_attempt_has_a_span() {
    let lines = logged(tool("t", |_| async { Ok(1) }), json!({}));
    let span = lines.iter().find(|line| line.starts_with("span attempt")).expect("a span");
    assert!(span.contains("path=/") && span.contains("name=\"t\"") && span.contains("number=1"), "{span}");
}

#[test]
fn w01_a_doubt_is_logged_once() {
    on_every_store(|world| {
        let log = Log::default();
        let acts = || tool("act", |_| async { Err::<(), _>(ToolError::in_doubt("the line went dead")) });
        let runtime = world.runtime([acts()]);
        let run = tracing::subscriber::with_default(log.clone(), || {
            let run = runtime.start_unconfirmed(ToolCall::new("act", json!({}))).unwrap();
            world.pass(Duration::from_secs(1));
            run
        });
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([acts()]);
        tracing::subscriber::with_default(log.clone(), || {
            world.run(async move {
                runtime.recover().await.unwrap();
                runtime.settle(run, &Path::root(), Settlement::GiveUp, "ada", "lost").await.unwrap();
                runtime.attach(run).await.unwrap();
            });
        });
        let lines = log.0.lock().clone();
        let doubts: Vec<_> = lines.iter().filter(|line| line.contains("message=in doubt")).collect();
        assert_eq!(doubts.len(), 1, "{doubts:?}");
        assert!(
            doubts[0].starts_with("WARN") && doubts[0].contains("could not tell: the line went dead"),
            "{doubts:?}"
        );
    });
}

/// A clock on which every sleep takes twice as long, as on a busy machine.
struct LateClock(windlass_core::testing::Sim);

impl Clock for LateClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn ticks(&self) -> u64 {
        self.0.ticks()
    }

    fn sleep(&self, duration: Duration) -> futures_util::future::BoxFuture<'static, ()> {
        self.0.sleep(2 * duration)
    }
}

#[test]
fn w01_a_shutdown_says_what_it_waits_for_and_stops_when_it_said() {
    on_every_store(|world| {
        let log = Log::default();
        let endless = || tool("endless", |_| std::future::pending::<windlass::ToolResult<()>>());
        let mut config = world.config([endless()]);
        config.clock = Arc::new(LateClock(world.sim.clone()));
        let runtime = windlass_core::Runtime::new(config);
        let start = runtime.clone();
        let run = world.run(async move { start.start_call(ToolCall::new("endless", json!({}))).await.unwrap() });
        world.pass(Duration::from_secs(1));
        let began = world.sim.ticks();
        let closing = runtime.clone();
        tracing::subscriber::with_default(log.clone(), || {
            world.run(async move { closing.shutdown(Duration::from_secs(10)).await.unwrap() });
        });
        let took = Duration::from_nanos(world.sim.ticks() - began);
        assert!(took >= Duration::from_secs(10) && took < Duration::from_millis(10_100), "{took:?}");
        let lines = log.0.lock().clone();
        let warned = |words: &str| {
            let said = |line: &&String| line.contains(words) && line.contains(&run.to_string());
            assert_eq!(lines.iter().filter(said).count(), 1, "{words}: {lines:?}");
        };
        warned("the shutdown waits up to 10 s for attempts in flight");
        warned("the shutdown drops attempts in flight");
        drop(runtime);
        let world = world.restart();
        let runtime = world.runtime([endless()]);
        let doubts = world.run(async move {
            runtime.recover().await.unwrap();
            runtime.doubts().await.unwrap()
        });
        assert_eq!(doubts[0].1.why(), "a shutdown interrupted the attempt");
    });
}
