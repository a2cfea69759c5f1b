//! The table of keys: every key of a config file, what may stand at it, and what it is for. This is the one place where a
//! key is documented.

use super::forms::{
    ADDRESS, ALLOW, APPROVAL, CONCURRENCY, DURATION, HOST, KEPT, LOCALE, ORIGIN, RATE, SECRET, SECRET_NAME, SIZE,
    SOMETHING, TOOL_NAME,
};
use super::keys::{Choice, Key, Kind, Section, key};
use super::table_bodies::{COMMAND_KEYS, HTTP, OPENAPI, RECONCILE, SANDBOX};

pub(crate) const TEXT: Kind = Kind::Text(&SOMETHING);
pub(crate) const TEXTS: Kind = Kind::List(&TEXT);
pub(crate) const COUNT: Kind = Kind::Integer { least: 1, most: i64::MAX };

pub(crate) static EFFECTS: [Choice; 3] = [
    Choice { word: "readonly", doc: "changes nothing and may be repeated freely" },
    Choice { word: "idempotent", doc: "may be repeated with the same idempotency key" },
    Choice { word: "once", doc: "must not be repeated unless it is known not to have happened" },
];

pub(crate) static ON_DOUBT: [Choice; 3] = [
    Choice { word: "ask", doc: "a person settles it" },
    Choice { word: "fail", doc: "the call ends with the error `in_doubt`" },
    Choice { word: "rerun", doc: "it is attempted again, for tools whose owner prefers twice to never" },
];

pub(crate) static UNATTENDED: [Choice; 2] = [
    Choice { word: "wait", doc: "it waits, because somebody may look later" },
    Choice { word: "deny", doc: "it ends `denied` at once" },
];

pub(crate) static DURABILITY: [Choice; 2] = [
    Choice { word: "full", doc: "what was answered survives a power cut" },
    Choice { word: "relaxed", doc: "faster; a power cut may lose the last moments, a killed process loses nothing" },
];

pub(crate) static HINTS: [Choice; 3] = [
    Choice { word: "destructive", doc: "may destroy what cannot be restored, and is never retried by itself" },
    Choice { word: "open_world", doc: "talks to the world outside, so its output is marked untrusted" },
    Choice { word: "long_running", doc: "takes minutes, so the timeout is an hour unless set" },
];

pub(crate) static DEFERRAL: [Choice; 3] = [
    Choice { word: "auto", doc: "a stub where there are many tools" },
    Choice { word: "never", doc: "always listed in full" },
    Choice { word: "always", doc: "always a stub" },
];

/// What governs calls, for all tools in `[policy]` and for one in `[tool.NAME]`.
pub(crate) static POLICY_KEYS: [Key; 13] = [
    key("timeout", Kind::Text(&DURATION), "Longest one attempt may run. One minute unless set."),
    key(
        "deadline",
        Kind::Text(&DURATION),
        "Longest a call may take in all, with queueing and retries. None unless set.",
    ),
    key("grace", Kind::Text(&DURATION), "How long an attempt that was asked to stop may still take. 50 ms unless set."),
    key("heartbeat", Kind::Text(&DURATION), "An attempt that has not been heard of for this long counts as timed out."),
    key(
        "retries",
        Kind::Either(&[Kind::Integer { least: 0, most: 100 }, Kind::Table(&RETRIES)]),
        "How often a failed attempt is repeated. Only failures that say it is safe are unless set.",
    ),
    key("on_doubt", Kind::Choice(&ON_DOUBT), "What becomes of a call of which nobody knows whether it happened."),
    key(
        "approval",
        Kind::Text(&APPROVAL),
        "Which calls need a person's approval: \"never\", \"always\", or a condition in CEL on `args`, `tool`, `session` \
         and `history`. What [policy] and a tool ask for adds up.",
    ),
    key("approval_within", Kind::Text(&DURATION), "How long a call waits for its approval. 24 hours unless set."),
    key("grant_valid", Kind::Text(&DURATION), "How long an approval is valid once given. One hour unless set."),
    key("unattended", Kind::Choice(&UNATTENDED), "What becomes of a call that needs approval where nobody attends."),
    key("output_budget", Kind::Text(&SIZE), "How much of one output a model is shown at once. 32 KiB unless set."),
    key(
        "loop_limit",
        COUNT,
        "Identical calls with identical results in a row, of one body or one session, before the next is refused. 5 unless set.",
    ),
    key("max_depth", COUNT, "How deep in a run a call may stand. 32 unless set."),
];

pub(crate) static RETRIES: Section = Section {
    keys: &[
        key("times", Kind::Integer { least: 0, most: 100 }, "How often, after the first attempt.").required(),
        key(
            "base",
            Kind::Text(&DURATION),
            "The delay after the first failure; it doubles with each. 500 ms unless set.",
        ),
        key("cap", Kind::Text(&DURATION), "The longest delay. One minute unless set."),
    ],
    shared: &[],
};

pub(crate) static ROOT: Section = Section {
    keys: &[
        key("server", Kind::Table(&SERVER), "Where and for whom the server answers. A change needs a restart."),
        key("store", Kind::Table(&STORE), "Where runs are kept. A change needs a restart."),
        key("retention", Kind::Table(&RETENTION), "How long finished runs are kept. A change needs a restart."),
        key(
            "policy",
            Kind::Table(&POLICY),
            "What governs every call, unless its tool says otherwise. A change needs a restart.",
        ),
        key("limits", Kind::Table(&LIMITS), "Bounds on the process as a whole. A change needs a restart."),
        key(
            "secrets",
            Kind::Map(&SECRET_NAME, &Kind::Text(&SECRET)),
            "Where secrets are kept: NAME = \"env:VARIABLE\" or \"file:PATH\". Used elsewhere as ${secret:NAME}; read anew \
             for every call, and never shown.",
        ),
        key("webhook", Kind::Table(&WEBHOOK), "Who is told when a person is needed. A change needs a restart."),
        key("net", Kind::Table(&NET), "What tools may reach over the network."),
        key("tool", Kind::Map(&TOOL_NAME, &Kind::Table(&TOOL)), "A tool: [tool.NAME]. Models call it by NAME."),
        key(
            "layer",
            Kind::Map(&TOOL_NAME, &Kind::Table(&LAYER)),
            "A view of the tools: [layer.NAME]. Calls are made through it with `layer` in a request, `--layer` or a token that \
             is bound to it; it counts for everything below such a call too, also after a restart.",
        ),
        key(
            "openapi",
            Kind::Map(&TOOL_NAME, &Kind::Table(&OPENAPI)),
            "Tools from an OpenAPI document, one for each operation: [openapi.NAME]. Each tool is called NAME_operation.",
        ),
    ],
    shared: &[],
};

pub(crate) static LAYER: Section = Section {
    keys: &[
        key("hide", Kind::List(&Kind::Text(&TOOL_NAME)), "The tools that do not show; all others do. Or `only`."),
        key("only", Kind::List(&Kind::Text(&TOOL_NAME)), "The tools that show; no others do. Or `hide`."),
    ],
    shared: &[],
};

pub(crate) static SERVER: Section = Section {
    keys: &[
        key(
            "listen",
            Kind::Text(&ADDRESS),
            "Address and port. 127.0.0.1:7117 unless set; any but a loopback address needs tokens.",
        ),
        key(
            "allowed_hosts",
            Kind::List(&Kind::Text(&HOST)),
            "Names in the Host header that are answered besides its own.",
        ),
        key(
            "allowed_origins",
            Kind::List(&Kind::Text(&ORIGIN)),
            "Web pages that may call it. None but its own unless set.",
        ),
    ],
    shared: &[],
};

pub(crate) static STORE: Section = Section {
    keys: &[
        key("file", TEXT, "The database file. windlass.db beside this file unless set."),
        key("durability", Kind::Choice(&DURABILITY), "What a power cut may lose. \"full\" unless set."),
        key("shared", Kind::Bool, "Whether other programs may read the file while it is open. false unless set."),
    ],
    shared: &[],
};

pub(crate) static RETENTION: Section = Section {
    keys: &[
        key("full", Kind::Text(&KEPT), "How long a finished run keeps its journal. 30 days unless set."),
        key("summary", Kind::Text(&KEPT), "How long its summary is kept after that. 180 days unless set."),
        key("keys", Kind::Text(&KEPT), "How long its idempotency key stays taken after that. 180 days unless set."),
    ],
    shared: &[],
};

pub(crate) static POLICY: Section = Section {
    keys: &[
        key("attended", Kind::Bool, "Whether somebody is there to be asked. false unless set."),
        key("connected", TEXTS, "Providers that every session is connected to; see `connection` of a tool."),
        key("locale", Kind::Text(&LOCALE), "The language people are told things in. \"en\" unless set."),
    ],
    shared: &[&POLICY_KEYS],
};

pub(crate) static LIMITS: Section = Section {
    keys: &[
        key("in_flight", COUNT, "Most attempts at once, of all tools. 256 unless set."),
        key("artifact", Kind::Text(&SIZE), "Largest artifact that is stored. 1 GiB unless set."),
        key("drain", Kind::Text(&DURATION), "How long a shutdown waits for attempts in flight. 10 s unless set."),
    ],
    shared: &[],
};

pub(crate) static WEBHOOK: Section = Section {
    keys: &[
        key("url", TEXT, "Gets a POST whenever something comes into the inbox.").required(),
        key("secret", TEXT, "Signs each request: \"${secret:NAME}\", of at least 16 bytes.").required(),
    ],
    shared: &[],
};

pub(crate) static NET: Section = Section {
    keys: &[
        key(
            "allow",
            Kind::List(&Kind::Text(&ALLOW)),
            "What HTTP tools may reach although it is not on the open internet: \"intranet.example\", \"127.0.0.1:8080\", \
             \"10.0.0.0/8\". Nothing unless set.",
        ),
        key(
            "ports",
            Kind::List(&Kind::Integer { least: 1, most: 65_535 }),
            "The only ports they may reach. All unless set.",
        ),
        key("authorities", TEXTS, "Files of certificates, in PEM, that are believed beside the system's."),
        key("connect", Kind::Text(&DURATION), "Longest a connection may take. 10 s unless set."),
        key("max_answer", Kind::Text(&SIZE), "Largest answer that is read. 8 MiB unless set."),
        key("redirects", Kind::Integer { least: 0, most: 20 }, "Most redirections that are followed. 5 unless set."),
    ],
    shared: &[],
};

/// What [tool.NAME] has besides its body and its policy.
pub(crate) static TOOL: Section = Section {
    keys: &[
        key("description", TEXT, "What the tool does, for the model that decides whether to call it.").required(),
        key("title", TEXT, "Its name for people. NAME unless set."),
        key(
            "sandbox",
            Kind::Table(&SANDBOX),
            "What a command may touch. Unless set: its folder, the system's programs, no network.",
        ),
        key("http", Kind::Table(&HTTP), "The request a call makes. {args.NAME} in it stands for an argument."),
        key(
            "input",
            Kind::Json,
            "What the tool takes. Short: { city = \"string: Where\", days = \"integer?\", unit = [\"c\", \"f\"] }, with types \
             string, secret, integer, number, boolean, object and any, [] for lists of them and ? for what may be left out. \
             Or a JSON Schema, with type = \"object\". Nothing unless set.",
        ),
        key("output", Kind::Json, "What the tool returns, written like `input`. Anything unless set."),
        key(
            "effect",
            Kind::Choice(&EFFECTS),
            "What repeating a call means. \"once\" unless set; for http, by method: GET and HEAD are readonly, PUT and \
             DELETE idempotent.",
        ),
        key(
            "concurrency",
            Kind::Text(&CONCURRENCY),
            "Which calls may overlap: \"parallel\", \"exclusive\" in their session, or one at a time by a key such as \
             \"args.account\". \"auto\" unless set: readonly tools are parallel, others exclusive.",
        ),
        key("rate", Kind::Text(&RATE), "Most attempts started per second; the rest wait."),
        key("in_flight", COUNT, "Most attempts of this tool at once."),
        key("connection", TEXT, "The provider a session must be connected to before the tool can be called."),
        key(
            "reconcile",
            Kind::Table(&RECONCILE),
            "How to find out whether an interrupted call happened: a command or a request that changes nothing.",
        ),
        key(
            "narration",
            Kind::Map(&LOCALE, &Kind::Table(&NARRATION)),
            "What people are told while it runs, by locale. {NAME} stands for an argument.",
        ),
        key("hints", Kind::List(&Kind::Choice(&HINTS)), "What a caller should know besides the effect."),
        key("tags", TEXTS, "Selects tools in listings and conditions."),
        key("deferral", Kind::Choice(&DEFERRAL), "Whether it may be listed without its schema. \"auto\" unless set."),
        key("background", Kind::Bool, "Whether it may be started without anyone waiting for it. true unless set."),
        key("version", TEXT, "The tool's own version, kept with every call."),
        key(
            "aliases",
            Kind::List(&Kind::Text(&TOOL_NAME)),
            "Earlier names of this tool, under which runs may know it.",
        ),
    ],
    shared: &[&COMMAND_KEYS, &POLICY_KEYS],
};

pub(crate) static NARRATION: Section = Section {
    keys: &[
        key("start", TEXT, "When a call begins: \"Looking up {city}\".").required(),
        key("end", TEXT, "When it has ended well.").required(),
        key("failure", TEXT, "When it has failed."),
    ],
    shared: &[],
};
