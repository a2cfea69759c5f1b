//! The keys of what a tool does: commands, requests, OpenAPI documents.

use super::forms::{ANY, ENV_NAME, EXIT_CODE, HEADER, SIZE};
use super::keys::{Choice, Key, Kind, Section, key};
use super::table::{COUNT, EFFECTS, POLICY_KEYS, TEXT, TEXTS};

pub(crate) static OUTPUT_AS: [Choice; 3] = [
    Choice { word: "auto", doc: "JSON if it can be read as that, else text" },
    Choice { word: "json", doc: "JSON; anything else is a failure" },
    Choice { word: "text", doc: "text, whatever it looks like" },
];

pub(crate) static EXITS: [Choice; 7] = [
    Choice { word: "ok", doc: "it worked, and its output counts" },
    Choice { word: "failed", doc: "it failed" },
    Choice { word: "retry", doc: "it did nothing, and may be tried again, also if it acts once" },
    Choice { word: "unavailable", doc: "it cannot work now" },
    Choice { word: "invalid_arguments", doc: "the arguments are wrong" },
    Choice { word: "denied", doc: "it may not do that" },
    Choice { word: "in_doubt", doc: "it may have been done, and the command cannot tell" },
];

pub(crate) static LEVELS: [Choice; 3] = [
    Choice { word: "required", doc: "it is kept to its sandbox, or it is not run" },
    Choice { word: "best_effort", doc: "it is kept to it as far as this kernel can" },
    Choice { word: "off", doc: "it may do whatever this process may" },
];

static PLAIN: Kind = Kind::Text(&ANY);
static EXIT: Kind = Kind::Choice(&EXITS);
static EFFECT: Kind = Kind::Choice(&EFFECTS);

/// What [tool.NAME] has if it is a command.
pub(crate) static COMMAND_KEYS: [Key; 7] = [
    key(
        "command",
        TEXTS,
        "The program and its arguments, without a shell. It gets the arguments of the call as JSON on its standard input, and \
         what it prints is the result; its standard error goes to the log of the run. A word {args.NAME} stands for an \
         argument. WINDLASS_IDEMPOTENCY_KEY in its environment is the same for all attempts of a call.",
    ),
    key(
        "dir",
        TEXT,
        "The folder a command runs in, and may read and write. A temporary one, gone when it ends, unless set.",
    ),
    key(
        "env",
        Kind::Map(&ENV_NAME, &PLAIN),
        "What a command has in its environment besides PATH, HOME, LANG and TMPDIR. ${secret:NAME} stands for a secret.",
    ),
    key("output_as", Kind::Choice(&OUTPUT_AS), "What a command prints. \"auto\" unless set."),
    key(
        "exits",
        Kind::Map(&EXIT_CODE, &EXIT),
        "What exit codes of a command mean: { 3 = \"unavailable\" }. Unless set: 64 and 65 invalid_arguments, 69 unavailable, \
         75 retry, 77 denied, 130 to 159 as on_signal says, others failed.",
    ),
    key(
        "on_signal",
        Kind::Choice(&EXITS),
        "What it means if a command is ended by a signal, or by one of the codes 130 to 159, which stand for one. Unless set: \
         in_doubt if it acts once; otherwise it is repeated, or has failed if it did it to itself, as with SIGSEGV.",
    ),
    key("max_output", Kind::Text(&SIZE), "Most a command may print. 4 MiB unless set."),
];

pub(crate) static SANDBOX: Section = Section {
    keys: &[
        key("level", Kind::Choice(&LEVELS), "Whether a command is kept to its sandbox. \"required\" unless set."),
        key(
            "read",
            TEXTS,
            "Files and folders it may read and execute from, besides its own folder and the system's programs.",
        ),
        key("write", TEXTS, "Files and folders it may read and write."),
        key("network", Kind::Bool, "Whether it may use TCP and UDP. false unless set."),
        key("metadata", Kind::Bool, "Whether it may change modes, owners and times of files. false unless set."),
        key("memory", Kind::Text(&SIZE), "Most memory of each of its processes. 4 GiB unless set."),
        key("cpu_seconds", COUNT, "Most seconds of computing of each of its processes."),
        key("processes", COUNT, "Most processes and threads at once. 64 unless set."),
        key("files", COUNT, "Most open files of each of its processes. 256 unless set."),
        key("file_size", Kind::Text(&SIZE), "Largest file it may write. 1 GiB unless set."),
    ],
    shared: &[],
};

pub(crate) static METHODS: [Choice; 7] = [
    Choice { word: "GET", doc: "asks" },
    Choice { word: "HEAD", doc: "asks for the headers" },
    Choice { word: "OPTIONS", doc: "asks what may be asked" },
    Choice { word: "POST", doc: "does" },
    Choice { word: "PUT", doc: "replaces" },
    Choice { word: "PATCH", doc: "changes" },
    Choice { word: "DELETE", doc: "removes" },
];

static HTTP_KEYS: [Key; 7] = [
    key("method", Kind::Choice(&METHODS), "GET unless set."),
    key(
        "url",
        TEXT,
        "Where it goes. Scheme and host are written out; {args.NAME} may stand in the path and in values of the query.",
    )
    .required(),
    key(
        "headers",
        Kind::Map(&HEADER, &PLAIN),
        "What it is sent with. {args.NAME} stands for an argument, ${secret:NAME} for a secret, {key} for the idempotency key.",
    ),
    key(
        "body",
        Kind::Json,
        "What is sent as JSON. Every text in it may have places; one that is {args.NAME} and nothing else becomes the argument \
         itself, with its type.",
    ),
    key("form", Kind::Map(&ANY, &PLAIN), "What is sent as a form, instead of a body."),
    key(
        "show_headers",
        Kind::List(&Kind::Text(&HEADER)),
        "Returns status, these headers and the body, instead of the body alone.",
    ),
    key("key_header", Kind::Text(&HEADER), "The header that carries the idempotency key. Idempotency-Key unless set."),
];

pub(crate) static HTTP: Section = Section { keys: &HTTP_KEYS, shared: &[] };

pub(crate) static TOLD: [Choice; 1] =
    [Choice { word: "told", doc: "the answer says so, in the words a reconciling command uses" }];

pub(crate) static RECONCILE: Section = Section {
    keys: &[
        key(
            "command",
            TEXTS,
            "A program that gets what the call got, changes nothing, and prints {\"happened\": VALUE}, \
             {\"did_not_happen\": true} or {\"unknown\": true}. It runs as the tool's own command does.",
        ),
        key(
            "http",
            Kind::Table(&HTTP),
            "A request that changes nothing; {key} in it is the key the call was made under.",
        ),
        key(
            "happened_when",
            Kind::Either(&[Kind::List(&Kind::Integer { least: 100, most: 599 }), Kind::Choice(&TOLD)]),
            "With which status of its answer it happened, and the body is the result; or \"told\": the answer says so, in the \
             words of a command. [200] unless set.",
        ),
        key(
            "did_not_happen_when",
            Kind::List(&Kind::Integer { least: 100, most: 599 }),
            "With which status it did not happen. [404] unless set.",
        ),
    ],
    shared: &[],
};

pub(crate) static DEPRECATED: [Choice; 2] =
    [Choice { word: "skip", doc: "they are left out" }, Choice { word: "mark", doc: "they are tools, and say so" }];

pub(crate) static OPENAPI: Section = Section {
    keys: &[
        key("file", TEXT, "The document, of OpenAPI 3.0 or 3.1, as JSON or YAML."),
        key("url", TEXT, "The same, fetched when this file is loaded, under the rules of [net]."),
        key("base_url", TEXT, "Where requests go. The first server of the document unless set."),
        key("variables", Kind::Map(&ANY, &PLAIN), "Values of the server's variables, instead of their defaults."),
        key(
            "include",
            TEXTS,
            "Only these operations: by operation id, by \"GET /path\", or by \"tag:NAME\"; * stands for anything. All unless set.",
        ),
        key("exclude", TEXTS, "Not these, written the same way."),
        key("deprecated", Kind::Choice(&DEPRECATED), "What becomes of deprecated operations. \"skip\" unless set."),
        key("prefix", Kind::Text(&ANY), "What the name of every tool begins with. \"NAME_\" unless set."),
        key(
            "security",
            Kind::Map(&ANY, &PLAIN),
            "The credential of each security scheme of the document: a token, a key, or user:password, as \"${secret:NAME}\".",
        ),
        key(
            "effect",
            Kind::Map(&ANY, &EFFECT),
            "The effect of single operations, by tool name, instead of what their method says.",
        ),
        key("tags", TEXTS, "Tags of every tool, besides those of the document."),
    ],
    shared: &[&POLICY_KEYS],
};
