//! The keys of what a tool does: commands, requests, OpenAPI documents.

use super::forms::{ANY, APPROVAL, EXIT_CODE, HEADER, SECRET_NAME, SIZE};
use super::keys::{Choice, Key, Kind, Section, key};
use super::table::{COUNT, EFFECTS, TEXT, TEXTS};

pub(crate) static OUTPUT_AS: [Choice; 3] = [
    Choice { word: "auto", doc: "JSON if it is, else text" },
    Choice { word: "json", doc: "JSON; anything else is a failure" },
    Choice { word: "text", doc: "text, whatever it looks like" },
];

pub(crate) static EXITS: [Choice; 3] = [
    Choice { word: "failed", doc: "it failed" },
    Choice { word: "unavailable", doc: "it cannot be done now" },
    Choice { word: "invalid_arguments", doc: "the arguments are wrong" },
];

pub(crate) static COMMAND_KEYS: [Key; 6] = [
    key(
        "command",
        TEXTS,
        "The program and its arguments, without a shell. It gets the call's arguments as JSON on its standard input, and \
         the idempotency key in WINDLASS_IDEMPOTENCY_KEY; what it writes to its standard output is the result.",
    ),
    key("dir", TEXT, "The folder a command runs in. That of this file unless set."),
    key("env", Kind::Map(&SECRET_NAME, &Kind::Text(&ANY)), "What a command has in its environment, besides PATH. ${secret:NAME} stands for a secret."),
    key("output_as", Kind::Choice(&OUTPUT_AS), "What a command's output is. \"auto\" unless set."),
    key("exits", Kind::Map(&EXIT_CODE, &Kind::Choice(&EXITS)), "What exit codes of a command mean: { 75 = \"unavailable\" }. \"failed\" unless set."),
    key("max_output", Kind::Text(&SIZE), "Most a command may write to its standard output."),
];

pub(crate) static SANDBOX: Section = Section {
    keys: &[
        key("read", TEXTS, "Files and folders a command may read, besides its own folder and what every program needs."),
        key("write", TEXTS, "Files and folders it may read and change."),
        key("network", Kind::Bool, "Whether it may use the network. false unless set."),
        key("memory", Kind::Text(&SIZE), "Most memory each of its processes may have."),
        key("cpu_seconds", COUNT, "Most seconds of computing each of its processes may take."),
        key("processes", COUNT, "Most processes at once."),
        key("off", Kind::Bool, "true runs it without a sandbox: it may do whatever this process may."),
    ],
    shared: &[],
};

pub(crate) static HTTP: Section = Section { keys: &HTTP_KEYS, shared: &[] };

static HTTP_KEYS: [Key; 4] = [
    key("method", Kind::Choice(&METHODS), "GET unless set."),
    key("url", TEXT, "Where it goes. Scheme and host are written out; {{args.NAME}} may stand in the path and the query.").required(),
    key("headers", Kind::Map(&HEADER, &Kind::Text(&ANY)), "What it is sent with. ${secret:NAME} stands for a secret."),
    key("body", Kind::Json, "What is sent: a text, or a table that is sent as JSON."),
];

pub(crate) static METHODS: [Choice; 6] = [
    Choice { word: "GET", doc: "asks" },
    Choice { word: "HEAD", doc: "asks for the headers" },
    Choice { word: "POST", doc: "does" },
    Choice { word: "PUT", doc: "replaces" },
    Choice { word: "PATCH", doc: "changes" },
    Choice { word: "DELETE", doc: "removes" },
];

pub(crate) static RECONCILE: Section = Section {
    keys: &[
        key("command", TEXTS, "Gets what the call got; answers {\"happened\": VALUE}, {\"did_not_happen\": true} or {\"unknown\": true}."),
        key("http", Kind::Table(&HTTP), "A request that asks; answers as a command does, unless the conditions say what its answer means."),
    ],
    shared: &[],
};

pub(crate) static OPENAPI: Section = Section {
    keys: &[
        key("file", TEXT, "The document, as JSON or YAML."),
        key("url", TEXT, "The same, fetched when this file is loaded."),
        key("base_url", TEXT, "Where requests go. The first server of the document unless set."),
        key("include", TEXTS, "Only these operations, by operation id; * stands for any letters. All unless set."),
        key("exclude", TEXTS, "Not these."),
        key("effect", Kind::Map(&ANY, &Kind::Choice(&EFFECTS)), "The effect of single operations, instead of what their method says."),
        key("approval", Kind::Text(&APPROVAL), "Which calls need a person's approval."),
        key("headers", Kind::Map(&HEADER, &Kind::Text(&ANY)), "What every request is sent with: { Authorization = \"Bearer ${secret:NAME}\" }."),
    ],
    shared: &[],
};
