//! The table of keys: every key of a config file, the type of its value, and its documentation. No key is documented
//! elsewhere.

use super::forms::{
    ADDRESS, ALLOW, APPROVAL, CONCURRENCY, DURATION, HOST, LOCALE, NOT_EMPTY, ORIGIN, RATE, RETENTION_TIME, SECRET,
    SECRET_NAME, SIZE, TOOL_NAME,
};
use super::keys::{Choice, Key, Kind, Section, key};
use super::table_bodies::{COMMAND_KEYS, HTTP, OPENAPI, RECONCILE, SANDBOX};

pub(crate) const TEXT: Kind = Kind::String(&NOT_EMPTY);
pub(crate) const TEXTS: Kind = Kind::List(&TEXT);
pub(crate) const COUNT: Kind = Kind::Integer { least: 1, most: i64::MAX };

pub(crate) static EFFECTS: [Choice; 3] = [
    Choice { word: "readonly", doc: "changes nothing, and may be repeated at any time" },
    Choice { word: "idempotent", doc: "may be repeated with the same idempotency key" },
    Choice { word: "once", doc: "must not be repeated, unless it is known that it did not happen" },
];

pub(crate) static ON_DOUBT: [Choice; 3] = [
    Choice { word: "ask", doc: "a person settles it" },
    Choice { word: "fail", doc: "the call ends with the error `in_doubt`" },
    Choice { word: "rerun", doc: "the attempt is repeated, which may execute it twice" },
];

pub(crate) static UNATTENDED: [Choice; 2] = [
    Choice { word: "wait", doc: "the call waits until a person looks at the inbox" },
    Choice { word: "deny", doc: "the call ends with the error `denied` at once" },
];

pub(crate) static DURABILITY: [Choice; 2] = [
    Choice { word: "full", doc: "every acknowledged result survives a power cut" },
    Choice {
        word: "relaxed",
        doc: "faster; a power cut may lose the last moments, but a killed process loses nothing",
    },
];

pub(crate) static HINTS: [Choice; 3] = [
    Choice { word: "destructive", doc: "may destroy data for good, and is never retried automatically" },
    Choice { word: "open_world", doc: "exchanges data with the outside world, so its output is marked as untrusted" },
    Choice { word: "long_running", doc: "takes minutes, so its default timeout is one hour" },
];

pub(crate) static DEFERRAL: [Choice; 3] = [
    Choice { word: "auto", doc: "listed as a stub if there are many tools" },
    Choice { word: "never", doc: "always listed in full" },
    Choice { word: "always", doc: "always listed as a stub" },
];

/// The policy of calls: for all tools in `[policy]`, and for one tool in `[tool.NAME]`.
pub(crate) static POLICY_KEYS: [Key; 13] = [
    key("timeout", Kind::String(&DURATION), "The longest time that one attempt may run. Default: one minute."),
    key(
        "deadline",
        Kind::String(&DURATION),
        "The longest time that a call may take, including queueing and retries. Default: no limit.",
    ),
    key("grace", Kind::String(&DURATION), "How long an attempt may take to stop once it is asked to. Default: 50 ms."),
    key(
        "heartbeat",
        Kind::String(&DURATION),
        "An attempt that reports no progress for this long counts as timed out. Default: no limit.",
    ),
    key(
        "retries",
        Kind::Either(&[Kind::Integer { least: 0, most: 100 }, Kind::Table(&RETRIES)]),
        "How often a failed attempt is repeated. Default: only failures that are marked as safe to retry are.",
    ),
    key("on_doubt", Kind::Choice(&ON_DOUBT), "What happens to a call that is in doubt."),
    key(
        "approval",
        Kind::String(&APPROVAL),
        "Which calls need a person's approval: \"never\", \"always\", or a condition in CEL on `args`, `tool`, `session` \
         and `history`. A call needs approval if [policy] or its tool requires it.",
    ),
    key("approval_within", Kind::String(&DURATION), "How long a call waits for its approval. Default: 24 hours."),
    key("grant_valid", Kind::String(&DURATION), "How long an approval is valid. Default: one hour."),
    key(
        "unattended",
        Kind::Choice(&UNATTENDED),
        "What happens to a call that needs approval if the process is not `attended`.",
    ),
    key("output_budget", Kind::String(&SIZE), "How much of an output a model receives at once. Default: 32 KiB."),
    key(
        "loop_limit",
        COUNT,
        "How many identical calls with identical results may follow each other in one body or session before the next is \
         refused. Default: 5.",
    ),
    key("max_depth", COUNT, "How deeply calls may be nested in a run. Default: 32."),
];

pub(crate) static RETRIES: Section = Section {
    keys: &[
        key("times", Kind::Integer { least: 0, most: 100 }, "The number of retries after the first attempt.")
            .required(),
        key(
            "base",
            Kind::String(&DURATION),
            "The delay after the first failure; it doubles with each further one. Default: 500 ms.",
        ),
        key("cap", Kind::String(&DURATION), "The longest delay. Default: one minute."),
    ],
    shared: &[],
};

pub(crate) static ROOT: Section = Section {
    keys: &[
        key("server", Kind::Table(&SERVER), "The server's address and its allowed clients. A change needs a restart."),
        key("store", Kind::Table(&STORE), "The database file. A change needs a restart."),
        key("retention", Kind::Table(&RETENTION), "How long finished runs are kept. A change needs a restart."),
        key(
            "policy",
            Kind::Table(&POLICY),
            "The default policy of all calls; a tool can override it. A change needs a restart.",
        ),
        key("limits", Kind::Table(&LIMITS), "Limits of the process as a whole. A change needs a restart."),
        key(
            "secrets",
            Kind::Map(&SECRET_NAME, &Kind::String(&SECRET)),
            "References to secrets: NAME = \"env:VARIABLE\", \"file:PATH\", \"session:NAME\" (of the call's session) or \"connection:PROVIDER\" (of its principal). Other keys use a secret as ${secret:NAME}. It is \
             read again for every call, and never printed.",
        ),
        key(
            "webhook",
            Kind::Table(&WEBHOOK),
            "A webhook that is called when a person is needed. A change needs a restart.",
        ),
        key("net", Kind::Table(&NET), "Which addresses tools may reach over the network."),
        key("standard", Kind::Table(&STANDARD), "The standard tools that are switched on."),
        key("tool", Kind::Map(&TOOL_NAME, &Kind::Table(&TOOL)), "A tool: [tool.NAME]. Models call it by NAME."),
        key(
            "layer",
            Kind::Map(&TOOL_NAME, &Kind::Table(&LAYER)),
            "A subset of the tools: [layer.NAME]. A call is made through a layer with `layer` in the request, with `--layer`, or \
             with a token that is bound to the layer. The layer also applies to all calls made by such a call, and survives \
             restarts.",
        ),
        key(
            "openapi",
            Kind::Map(&TOOL_NAME, &Kind::Table(&OPENAPI)),
            "Tools from an OpenAPI document, one per operation: [openapi.NAME]. Each tool is named NAME_operation.",
        ),
    ],
    shared: &[],
};

pub(crate) static STANDARD_TOOLS: [Choice; 1] =
    [Choice { word: "read_output", doc: "a model reads on in an output that was too long to be shown at once" }];

pub(crate) static STANDARD: Section =
    Section { keys: &[key("tools", Kind::List(&Kind::Choice(&STANDARD_TOOLS)), "Their names.")], shared: &[] };

pub(crate) static LAYER: Section = Section {
    keys: &[
        key(
            "hide",
            Kind::List(&Kind::String(&TOOL_NAME)),
            "The tools that are not in the layer; all others are. Excludes `only`.",
        ),
        key(
            "only",
            Kind::List(&Kind::String(&TOOL_NAME)),
            "The tools that are in the layer; no others are. Excludes `hide`.",
        ),
    ],
    shared: &[],
};

pub(crate) static SERVER: Section = Section {
    keys: &[
        key(
            "listen",
            Kind::String(&ADDRESS),
            "Address and port. Any other than a loopback address requires tokens. Default: 127.0.0.1:7117.",
        ),
        key("allowed_hosts", Kind::List(&Kind::String(&HOST)), "Further names that are accepted in the Host header."),
        key(
            "allowed_origins",
            Kind::List(&Kind::String(&ORIGIN)),
            "Origins of web pages that may call the server. Default: only its own.",
        ),
    ],
    shared: &[],
};

pub(crate) static STORE: Section = Section {
    keys: &[
        key("file", TEXT, "The database file. Default: windlass.db in the folder of this file."),
        key("durability", Kind::Choice(&DURABILITY), "What a power cut may lose. Default: \"full\"."),
        key("shared", Kind::Bool, "Whether other programs may read the file while it is open. Default: false."),
    ],
    shared: &[],
};

pub(crate) static RETENTION: Section = Section {
    keys: &[
        key("full", Kind::String(&RETENTION_TIME), "How long the journal of a finished run is kept. Default: 30 days."),
        key("summary", Kind::String(&RETENTION_TIME), "How long its summary is kept after that. Default: 180 days."),
        key(
            "keys",
            Kind::String(&RETENTION_TIME),
            "How long its idempotency key is kept after that. Default: 180 days.",
        ),
        key(
            "sessions",
            Kind::String(&RETENTION_TIME),
            "How long a closed session keeps its messages, data and secrets. Default: 30 days.",
        ),
    ],
    shared: &[],
};

pub(crate) static POLICY: Section = Section {
    keys: &[
        key("attended", Kind::Bool, "Whether a person is available to answer. Default: false."),
        key("connected", TEXTS, "Providers that every session is connected to; see `connection` in [tool.NAME]."),
        key("locale", Kind::String(&LOCALE), "The language of texts for people. Default: \"en\"."),
    ],
    shared: &[&POLICY_KEYS],
};

pub(crate) static LIMITS: Section = Section {
    keys: &[
        key("in_flight", COUNT, "The most attempts of all tools at once. Default: 256."),
        key(
            "unfinished_runs",
            COUNT,
            "Unfinished runs of the file from which on new calls are refused. Default: 10000.",
        ),
        key(
            "breaker_failures",
            COUNT,
            "Failed attempts in a row at one target after which no attempt is made for a while. Default: 5.",
        ),
        key("breaker_open", Kind::String(&DURATION), "How long no attempt is made then. Default: 30 s."),
        key(
            "breaker_successes",
            COUNT,
            "Successful attempts, one at a time, after which all are made again. Default: 2.",
        ),
        key("artifact", Kind::String(&SIZE), "The largest artifact that is stored. Default: 1 GiB."),
        key("file", Kind::String(&SIZE), "The largest file of a session. Default: 100 MiB."),
        key("session_files", Kind::String(&SIZE), "The size of all files of a session. Default: 500 MiB."),
        key("session_file_count", COUNT, "The most files and directories of a session. Default: 10000."),
        key("drain", Kind::String(&DURATION), "How long a shutdown waits for attempts in flight. Default: 10 s."),
        key(
            "session_runs",
            Kind::Integer { least: 1, most: 10_000 },
            "The most unfinished runs of a session that sets no limit of its own. Default: 100.",
        ),
    ],
    shared: &[],
};

pub(crate) static WEBHOOK: Section = Section {
    keys: &[
        key("url", TEXT, "The URL that receives a POST for every new inbox item.").required(),
        key("secret", TEXT, "The secret that signs each request: \"${secret:NAME}\", at least 16 bytes.").required(),
    ],
    shared: &[],
};

pub(crate) static NET: Section = Section {
    keys: &[
        key(
            "allow",
            Kind::List(&Kind::String(&ALLOW)),
            "Addresses outside the public internet that HTTP tools may reach: \"intranet.example\", \"127.0.0.1:8080\", \
             \"10.0.0.0/8\". Default: none.",
        ),
        key(
            "ports",
            Kind::List(&Kind::Integer { least: 1, most: 65_535 }),
            "The only ports that they may reach. Default: all.",
        ),
        key("authorities", TEXTS, "PEM files of certificates that are trusted in addition to those of the system."),
        key("connect", Kind::String(&DURATION), "The longest time that connecting may take. Default: 10 s."),
        key("max_answer", Kind::String(&SIZE), "The largest response that is read. Default: 8 MiB."),
        key("redirects", Kind::Integer { least: 0, most: 20 }, "The most redirects that are followed. Default: 5."),
    ],
    shared: &[],
};

/// The keys of [tool.NAME] besides its body and its policy.
pub(crate) static TOOL: Section = Section {
    keys: &[
        key("description", TEXT, "What the tool does. Models decide by it whether to call the tool.").required(),
        key("title", TEXT, "Its name for people. Default: NAME."),
        key(
            "sandbox",
            Kind::Table(&SANDBOX),
            "What a command may access. Default: its folder and the system's programs, but no network.",
        ),
        key(
            "http",
            Kind::Table(&HTTP),
            "The HTTP request that a call makes. {args.NAME} in it is replaced by an argument.",
        ),
        key(
            "input",
            Kind::Json,
            "The arguments. Short form: { city = \"string: Where\", days = \"integer?\", unit = [\"c\", \"f\"] }, with the types \
             string, secret, integer, number, boolean, object and any; append [] for a list and ? for an optional argument. \
             Or a JSON Schema with type = \"object\". Default: no arguments.",
        ),
        key("output", Kind::Json, "The result, written like `input`. Default: any value."),
        key(
            "effect",
            Kind::Choice(&EFFECTS),
            "Whether a call may be repeated. Default: \"once\"; for http by method: GET and HEAD are readonly, PUT and DELETE \
             idempotent.",
        ),
        key(
            "concurrency",
            Kind::String(&CONCURRENCY),
            "Which calls may run at the same time: \"parallel\", \"exclusive\" in their session, or one at a time per key such as \
             \"args.account\". Default: \"auto\", with which readonly tools are parallel and others exclusive.",
        ),
        key("rate", Kind::String(&RATE), "The most attempts that start per second; further ones wait."),
        key("in_flight", COUNT, "The most attempts of this tool at once."),
        key(
            "breaker",
            TEXT,
            "The target whose circuit breaker its attempts go through; tools with the same target share it. \"off\": none. \
             Default: the host and port of an HTTP request; none for a command.",
        ),
        key("connection", TEXT, "The provider to which a session must be connected before the tool can be called."),
        key(
            "reconcile",
            Kind::Table(&RECONCILE),
            "How to find out whether an interrupted call happened: a command or an HTTP request that changes nothing.",
        ),
        key(
            "narration",
            Kind::Map(&LOCALE, &Kind::Table(&NARRATION)),
            "Texts for people about a call, by locale. {NAME} is replaced by an argument, {NAME|basename} by the last part of a \
             path, {NAME|host} by the host of a URL. Default: texts made of the title.",
        ),
        key("hints", Kind::List(&Kind::Choice(&HINTS)), "Further properties of the tool."),
        key("tags", TEXTS, "Tags by which listings and conditions select tools."),
        key("deferral", Kind::Choice(&DEFERRAL), "Whether it may be listed without its schema. Default: \"auto\"."),
        key("background", Kind::Bool, "Whether a run may start it without waiting for its result. Default: true."),
        key("version", TEXT, "The tool's own version, recorded with every call."),
        key(
            "aliases",
            Kind::List(&Kind::String(&TOOL_NAME)),
            "Earlier names of this tool, which recorded runs may still use.",
        ),
    ],
    shared: &[&COMMAND_KEYS, &POLICY_KEYS],
};

pub(crate) static NARRATION: Section = Section {
    keys: &[
        key("start", TEXT, "When a call starts: \"Looking up {city}\".").required(),
        key("end", TEXT, "When the call has succeeded.").required(),
        key("waiting", TEXT, "When the call waits for an approval, a connection or an answer."),
        key("failure", TEXT, "When the call has failed."),
    ],
    shared: &[],
};
