//! The programs of the README and of the chapters, compiled and run.

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../docs/start.md")]
struct Start;

#[cfg(doctest)]
#[doc = include_str!("../../docs/tools.md")]
struct Tools;

#[cfg(doctest)]
#[doc = include_str!("../../docs/promise.md")]
struct Promise;

#[cfg(doctest)]
#[doc = include_str!("../../docs/config.md")]
struct Config;

#[cfg(doctest)]
#[doc = include_str!("../../docs/people.md")]
struct People;

#[cfg(doctest)]
#[doc = include_str!("../../docs/principals.md")]
struct Principals;

#[cfg(doctest)]
#[doc = include_str!("../../docs/connections.md")]
struct Connections;

#[cfg(doctest)]
#[doc = include_str!("../../docs/operating.md")]
struct Operating;

#[cfg(doctest)]
#[doc = include_str!("../../docs/http.md")]
struct Http;

#[cfg(doctest)]
#[doc = include_str!("../../docs/testing.md")]
struct Testing;

#[cfg(doctest)]
#[doc = include_str!("../../docs/limits.md")]
struct Limits;

#[cfg(doctest)]
#[doc = include_str!("../../docs/questions.md")]
struct Questions;

#[cfg(doctest)]
#[doc = include_str!("../../docs/agent-backend.md")]
struct AgentBackend;

#[cfg(doctest)]
#[doc = include_str!("../../docs/attributes.md")]
struct Attributes;

#[cfg(doctest)]
#[doc = include_str!("../../docs/scripts.md")]
struct Scripts;

#[cfg(doctest)]
#[doc = include_str!("../../docs/bodies.md")]
struct Bodies;

#[cfg(doctest)]
#[doc = include_str!("../../docs/outputs.md")]
struct Outputs;

#[cfg(doctest)]
#[doc = include_str!("../../docs/overload.md")]
struct Overload;

#[cfg(doctest)]
#[doc = include_str!("../../docs/runs.md")]
struct Runs;

#[cfg(doctest)]
#[doc = include_str!("../../docs/sessions.md")]
struct Sessions;

#[cfg(doctest)]
#[doc = include_str!("../../docs/session-tools.md")]
struct SessionTools;

#[cfg(doctest)]
#[doc = include_str!("../../docs/turns.md")]
struct Turns;

#[cfg(doctest)]
#[doc = include_str!("../../docs/files.md")]
struct Files;
