//! The keys of the bodies of tools: commands, HTTP requests, OpenAPI documents.

use super::forms::{ANY, ENV_NAME, EXIT_CODE, HEADER, MEDIA_TYPE, SIZE};
use super::keys::{Choice, Key, Kind, Section, key};
use super::table::{COUNT, EFFECTS, POLICY_KEYS, TEXT, TEXTS};

pub(crate) static FILES: [Choice; 1] = [Choice { word: "session", doc: "the files of the call's session" }];

pub(crate) static OUTPUT_AS: [Choice; 4] = [
    Choice { word: "auto", doc: "JSON if it is valid JSON, otherwise text" },
    Choice { word: "json", doc: "JSON; other output is a failure" },
    Choice { word: "text", doc: "always text" },
    Choice {
        word: "content",
        doc: "JSON with text, images, audio and files: { \"value\": …, \"content\": [{ \"type\": \"image\", \"media_type\": \
              \"image/png\", \"data\": BASE64 }] }",
    },
];

pub(crate) static EXITS: [Choice; 7] = [
    Choice { word: "ok", doc: "the call succeeded, and the output is its result" },
    Choice { word: "failed", doc: "the call failed" },
    Choice { word: "retry", doc: "nothing was done, so the call may be repeated, even with the effect \"once\"" },
    Choice { word: "unavailable", doc: "the tool is not available now" },
    Choice { word: "invalid_arguments", doc: "the arguments are not valid" },
    Choice { word: "denied", doc: "the call is not permitted" },
    Choice { word: "in_doubt", doc: "the command cannot tell whether it was done" },
];

pub(crate) static LEVELS: [Choice; 3] = [
    Choice { word: "required", doc: "the command runs in its sandbox or not at all" },
    Choice { word: "best_effort", doc: "the command runs in as much of its sandbox as this kernel supports" },
    Choice { word: "off", doc: "the command may do everything that this process may" },
];

static PLAIN: Kind = Kind::String(&ANY);
static EXIT: Kind = Kind::Choice(&EXITS);
static EFFECT: Kind = Kind::Choice(&EFFECTS);

/// The keys of [tool.NAME] for a command.
pub(crate) static COMMAND_KEYS: [Key; 9] = [
    key(
        "command",
        TEXTS,
        "The program and its arguments, without a shell. It reads the arguments of the call as JSON from standard input and \
         prints the result; its standard error goes to the log of the run. A word {args.NAME} is replaced by an argument. \
         WINDLASS_IDEMPOTENCY_KEY in its environment is the same for all attempts of a call.",
    ),
    key(
        "dir",
        TEXT,
        "The folder in which the command runs, and which it may read and write. Default: a temporary folder.",
    ),
    key(
        "files",
        Kind::Choice(&FILES),
        "\"session\": the command runs in a copy of the files of its session, and what it changes is changed in the session \
         together with its result. Such a tool is exclusive in its session. Excludes `dir`.",
    ),
    key(
        "env",
        Kind::Map(&ENV_NAME, &PLAIN),
        "Environment variables of the command besides PATH, HOME, LANG and TMPDIR. ${secret:NAME} is replaced by a secret.",
    ),
    key("output_as", Kind::Choice(&OUTPUT_AS), "The format of the command's output. Default: \"auto\"."),
    key(
        "media_type",
        Kind::String(&MEDIA_TYPE),
        "If set, the command's output is a file of this type, such as \"image/png\": an image, audio or another file. Excludes \
         `output_as`.",
    ),
    key(
        "exits",
        Kind::Map(&EXIT_CODE, &EXIT),
        "The meanings of exit codes: { 3 = \"unavailable\" }. Default: 64 and 65 invalid_arguments, 69 unavailable, 75 retry, \
         77 denied, 130 to 159 as in on_signal, others failed.",
    ),
    key(
        "on_signal",
        Kind::Choice(&EXITS),
        "The meaning of an end by a signal, or with an exit code from 130 to 159, which stands for one. Default: in_doubt with \
         the effect \"once\"; otherwise the call is repeated, or has failed if the command caused the signal, such as SIGSEGV.",
    ),
    key("max_output", Kind::String(&SIZE), "The most that a command may print. Default: 4 MiB."),
];

pub(crate) static SANDBOX: Section = Section {
    keys: &[
        key("level", Kind::Choice(&LEVELS), "Whether a command must run in its sandbox. Default: \"required\"."),
        key(
            "read",
            TEXTS,
            "Files and folders that it may read and execute, besides its own folder and the system's programs.",
        ),
        key("write", TEXTS, "Files and folders that it may read and write."),
        key("network", Kind::Bool, "Whether it may use TCP and UDP. Default: false."),
        key("metadata", Kind::Bool, "Whether it may change modes, owners and times of files. Default: false."),
        key("memory", Kind::String(&SIZE), "The most memory of each of its processes. Default: 4 GiB."),
        key("cpu_seconds", COUNT, "The most CPU seconds of each of its processes. Default: no limit."),
        key("processes", COUNT, "The most processes and threads at once. Default: 64."),
        key("files", COUNT, "The most open files of each of its processes. Default: 256."),
        key("file_size", Kind::String(&SIZE), "The largest file that it may write. Default: 1 GiB."),
    ],
    shared: &[],
};

pub(crate) static METHODS: [Choice; 7] = [
    Choice { word: "GET", doc: "reads" },
    Choice { word: "HEAD", doc: "reads the headers" },
    Choice { word: "OPTIONS", doc: "reads the supported methods" },
    Choice { word: "POST", doc: "executes or creates" },
    Choice { word: "PUT", doc: "replaces" },
    Choice { word: "PATCH", doc: "changes" },
    Choice { word: "DELETE", doc: "removes" },
];

static HTTP_KEYS: [Key; 8] = [
    key("method", Kind::Choice(&METHODS), "The method. Default: GET."),
    key(
        "url",
        TEXT,
        "The URL. Scheme and host are fixed; {args.NAME} may occur in the path and in values of the query.",
    )
    .required(),
    key(
        "headers",
        Kind::Map(&HEADER, &PLAIN),
        "Headers. {args.NAME} is replaced by an argument, ${secret:NAME} by a secret, {key} by the idempotency key.",
    ),
    key(
        "body",
        Kind::Json,
        "The body, sent as JSON. Strings in it may contain the same placeholders as headers; a string that is only {args.NAME} \
         is replaced by the argument with its type.",
    ),
    key("form", Kind::Map(&ANY, &PLAIN), "The fields of a form, sent instead of a body."),
    key(
        "show_headers",
        Kind::List(&Kind::String(&HEADER)),
        "If set, the result has the status, these headers and the body, instead of the body alone.",
    ),
    key("key_header", Kind::String(&HEADER), "The header with the idempotency key. Default: Idempotency-Key."),
    key(
        "connection_on_401",
        TEXT,
        "The provider that a person has to connect if the server answers 401. The call waits for that, and sends the \
         request again. Default: a 401 ends the call with the error `denied`.",
    ),
];

pub(crate) static HTTP: Section = Section { keys: &HTTP_KEYS, shared: &[] };

pub(crate) static REPORTED: [Choice; 1] =
    [Choice { word: "reported", doc: "the response body says so, in the format of a reconcile command" }];

pub(crate) static RECONCILE: Section = Section {
    keys: &[
        key(
            "command",
            TEXTS,
            "A program that reads the same input as the call, changes nothing, and prints {\"happened\": VALUE}, \
             {\"did_not_happen\": true} or {\"unknown\": true}. It runs like the tool's own command.",
        ),
        key(
            "http",
            Kind::Table(&HTTP),
            "A request that changes nothing; {key} in it is replaced by the idempotency key of the call.",
        ),
        key(
            "happened_when",
            Kind::Either(&[Kind::List(&Kind::Integer { least: 100, most: 599 }), Kind::Choice(&REPORTED)]),
            "The statuses of the response which mean that the call happened, with the body as its result; or \"reported\" if the \
             body says so, in the format of a reconcile command. Default: [200].",
        ),
        key(
            "did_not_happen_when",
            Kind::List(&Kind::Integer { least: 100, most: 599 }),
            "The statuses which mean that the call did not happen. Default: [404].",
        ),
    ],
    shared: &[],
};

pub(crate) static DEPRECATED: [Choice; 2] = [
    Choice { word: "skip", doc: "they are left out" },
    Choice { word: "mark", doc: "they are tools that are marked as deprecated" },
];

pub(crate) static OPENAPI: Section = Section {
    keys: &[
        key("file", TEXT, "The document: OpenAPI 3.0 or 3.1, as JSON or YAML."),
        key(
            "url",
            TEXT,
            "The URL of the document, which is fetched when this file is loaded, under the rules of [net].",
        ),
        key("base_url", TEXT, "The base URL of requests. Default: the first server of the document."),
        key("variables", Kind::Map(&ANY, &PLAIN), "Values of the server's variables. Default: those in the document."),
        key(
            "include",
            TEXTS,
            "Only these operations: by operation id, \"GET /path\" or \"tag:NAME\"; * matches any text. Default: all.",
        ),
        key("exclude", TEXTS, "Not these operations, written in the same way."),
        key("deprecated", Kind::Choice(&DEPRECATED), "What happens to deprecated operations. Default: \"skip\"."),
        key("prefix", Kind::String(&ANY), "The prefix of all tool names. Default: \"NAME_\"."),
        key(
            "security",
            Kind::Map(&ANY, &PLAIN),
            "The credential of each security scheme of the document: a token, a key, or user:password, as \"${secret:NAME}\".",
        ),
        key("effect", Kind::Map(&ANY, &EFFECT), "The effects of single operations, by tool name. Default: by method."),
        key("tags", TEXTS, "Tags of all tools, in addition to those of the document."),
    ],
    shared: &[&POLICY_KEYS],
};
