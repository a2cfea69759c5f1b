//! Every default limit of the kernel, each with the reason for its number.

use std::time::Duration;

/// Largest arguments of one call, in bytes of JSON. Models write a few kilobytes; a file's content belongs in an artifact.
pub const ARGUMENT_BYTES: usize = 1 << 20;

/// Deepest nesting of a JSON value: of arguments, outputs, signals and answers. A value that is accepted at this depth
/// can be read back from every store. Bounds the stack that validating and dropping a value needs.
pub const VALUE_DEPTH: usize = 128;

/// Deepest nesting of a document, request or response that contains values.
pub const DOCUMENT_DEPTH: usize = VALUE_DEPTH + 64;

/// Steps that checking a value against a schema may take, regardless of its size; [`CHECK_STEPS_PER_BYTE`] are added
/// for each byte. A step is one keyword applied to one value: 1 to 10 ns as measured, up to 30 ns where names are
/// looked up in large objects. A check is not interrupted, so arguments of a few kilobytes occupy a thread for about 10
/// ms at most, and the largest arguments for about 50 ms, or 150 ms in the worst case. Ordinary arguments take hundreds
/// of steps.
pub const CHECK_STEPS: u64 = 1_000_000;

/// See [`CHECK_STEPS`]. Ordinary schemas with patterns and alternatives take one or two steps per byte.
pub const CHECK_STEPS_PER_BYTE: u64 = 4;

/// Steps up to which a failed check explains each violation. Beyond that it only reports the failure, because all
/// explanations are in memory at once.
pub const EXPLAINED_STEPS: u64 = 200_000;

/// Nested schemas, along values and references, that may apply to a value. Each takes stack.
pub const CHECK_DEPTH: usize = 1_000;

/// Longest path through a schema and its references. Compiling takes stack for each step of the path.
pub const SCHEMA_PATH: usize = 1_000;

/// Estimated memory of one compiled schema: about twenty thousand subschemas.
pub const SCHEMA_BYTES: usize = 64 << 20;

/// Estimated memory of each keyword of a subschema, without patterns and text: twice the measured value.
pub const KEYWORD_BYTES: usize = 1 << 10;

/// Largest compiled pattern of a schema: enough for a character class that is repeated thousands of times.
pub const PATTERN_BYTES: usize = 4 << 20;

/// Backtracking steps of a pattern with look-around or back-references before it counts as not matched.
pub const PATTERN_BACKTRACKS: usize = 10_000;

/// Most calls in one batch. A model emits tens; more than this indicates a loop.
pub const BATCH_CALLS: usize = 4_096;

/// Largest provider metadata of one call, in bytes of JSON. Encrypted reasoning of a model takes tens of kilobytes.
pub const METADATA_BYTES: usize = 256 << 10;

/// Runs of a session whose calls a condition on `history` can look at. Of a session with more runs nothing is known, so that
/// such a condition asks: the calls that were left out could be the ones it is about. Reading this many takes tens of
/// milliseconds, and is done only for conditions that mention `history`.
pub const HISTORY_RUNS: usize = 1_000;

/// Longest principal and longest cause of a run, in characters. Identifiers are shorter; both are indexed.
pub const ATTRIBUTION_CHARS: usize = 255;

/// Deepest nesting of calls. A legitimate tree of tools is a handful deep; endless recursion is not.
pub const CALL_DEPTH: usize = 32;

/// Attempts in flight at once in one runtime: enough to keep a small machine's sockets busy, few enough to bound memory.
pub const ATTEMPTS_IN_FLIGHT: usize = 256;

/// The timeout of an attempt unless its tool sets one: long enough for a slow API, short enough to notice a dead one.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(60);

/// The same for a tool with the long-running hint.
pub const LONG_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3_600);

/// The time between the cancellation of an attempt and the moment it is dropped.
pub const CANCEL_GRACE: Duration = Duration::from_millis(50);

/// How long a cancelled durable body may still use its context to clean up.
pub const CLEAN_UP: Duration = Duration::from_secs(30);

/// Longest delay between two attempts of one call, unless the failure asked for a longer one.
pub const RETRY_DELAY_CAP: Duration = Duration::from_secs(60);

/// Deaths of the process with the same operation in flight after which the run is held as a crash loop.
pub const CRASH_LOOP: u32 = 3;

/// Attempts after which neither a tool's `reconcile` nor policy repeats an attempt in doubt, and a person is asked.
/// That many attempts in doubt are not an accident.
pub const ATTEMPTS_IN_DOUBT: u32 = 10;

/// Operations of one run. A body that needs more should continue in a new generation.
pub const RUN_OPERATIONS: u64 = 100_000;

/// Bytes of results in one run. The results are read from the store whenever the run is taken up. A body that needs
/// more should continue in a new generation and keep large content elsewhere.
pub const RUN_BYTES: usize = 256 << 20;

/// Records that a run may buffer before they are sent to the store although nothing waits for them. This bounds the
/// readonly work that is repeated after a crash, and keeps commits large enough to be cheap.
pub const BUFFERED_RECORDS: usize = 256;

/// How long a run that only waits stays in memory before it is suspended. Answers that arrive quickly find it there.
pub const SUSPEND_AFTER: Duration = Duration::from_millis(100);

/// Due runs that are claimed in one request.
pub const CLAIM_BATCH: usize = 64;

/// The pause between two such requests, in which new calls get their turn.
pub const TAKE_UP_PAUSE: Duration = Duration::from_millis(1);

/// Most such pauses in a row while all attempt permits are in use. The runs that are due must make progress too.
pub const TAKE_UP_PAUSES: usize = 100;

/// Longest sleep of the timer for suspended runs without checking the wall clock, which may have jumped. An overdue run
/// is late by at most this, and a check costs a microsecond.
pub const CLOCK_CHECK: Duration = Duration::from_secs(5);

/// The delay before due runs are looked for again after the store failed.
pub const STORE_RETRY: Duration = Duration::from_secs(5);

/// How often a store deletes what its retention no longer keeps: rarely enough to cost nothing, often enough that
/// little accumulates.
pub const TIDY_EVERY: Duration = Duration::from_secs(60);

/// The shortest pause between two slices of that deletion, in which commits get their turn.
pub const TIDY_PAUSE: Duration = Duration::from_millis(5);

/// Records a watcher reads from the store at a time: enough to catch up quickly, few enough to hold.
pub const WATCH_PAGE: usize = 256;

/// Records of a watcher's first page, from which it learns how large they are. A watcher that reads no second page
/// costs little.
pub const WATCH_FIRST_PAGE: usize = 8;

/// Store reads per page. The first of them fetch a small part each, so that records that turn out to be large are not
/// read in vain.
pub const WATCH_READS: usize = 16;

/// Most records of one such read.
pub const WATCH_READ_RECORDS: usize = 32;

/// Bytes of records that a watcher holds until they are taken, or one record if that is larger. The limit doubles with
/// each page that is taken, up to [`WATCH_BYTES_MAX`]: a thousand watchers that take nothing fit into memory, and a
/// busy one does not ask the store for every few records.
pub const WATCH_BYTES: usize = 32 << 10;

/// See [`WATCH_BYTES`].
pub const WATCH_BYTES_MAX: usize = 256 << 10;

/// Live messages of attempts and bodies that are kept for a busy watcher. Beyond that the oldest is dropped.
pub const LIVE_ACTIVITIES: usize = 64;

/// Runs of a session whose history a watcher keeps in memory. Older ones are read again.
pub const WATCH_HISTORIES: usize = 256;

/// Bytes of arguments kept with those histories. Beyond that, the largest of the others is dropped first.
pub const WATCH_HISTORY_BYTES: usize = 1 << 20;

/// Most activities in one trace: more than a person reads.
pub const TRACE_ACTIVITIES: usize = 10_000;
/// Bytes of values that a trace shows; further values are left out.
pub const TRACE_VALUE_BYTES: usize = 4 << 20;

/// How many runs that wait for one another an explanation follows.
pub const EXPLAINED_DEPTH: usize = 8;

/// Shortest lease of a worker. A pause of a busy machine must not look like a death.
pub const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// Longest interval at which a worker polls for what other workers wrote. A cancellation reaches a run that another
/// worker drives within two of these.
pub const WORKER_POLL: Duration = Duration::from_secs(1);
/// How often a watcher polls for what another worker wrote: soon enough for a person who watches.
pub const WATCH_POLL: Duration = Duration::from_secs(1);

/// How long one poll of a body may take before the watchdog reports it. A well-behaved body yields within microseconds.
pub const WATCHDOG: Duration = Duration::from_secs(2);

/// Longest error text in a record, for a model, or in the API: a few screens, which is more than any helpful error
/// needs.
pub const ERROR_BYTES: usize = 4_096;

/// Bytes of an output that a model sees at once, unless its tool sets another budget. That is about ten thousand
/// tokens: a context can hold a few of them, and most outputs are smaller.
pub const OUTPUT_BUDGET: usize = 32 << 10;

/// Toolboxes with more tools than this list deferrable tools as stubs.
pub const STUB_ABOVE: usize = 40;

/// How many tools that a source found but does not list are kept for each mounted source. The schemas of a tool take some
/// kilobytes; further tools are found again for each call.
pub const UNLISTED_KEPT: usize = 4096;

/// How long a clean shutdown waits for attempts in flight. Supervisors usually wait 30 seconds.
pub const DRAIN: Duration = Duration::from_secs(10);

/// How often the shutdown checks whether they are done.
pub const DRAIN_POLL: Duration = Duration::from_millis(10);

/// Longest expression of a policy. A condition people can review fits in a line or two.
pub const EXPRESSION_BYTES: usize = 1_024;

/// Deepest nesting of brackets and conditions in an expression. The parser takes up to 30 KiB of stack for each level.
pub const EXPRESSION_NESTING: usize = 32;

/// Deepest tree of an expression. A row of operators is that deep, and each may take 4 KiB of stack.
pub const EXPRESSION_DEPTH: usize = 64;

/// Nested loops in an expression. Comparing each item of the arguments with each call of the history takes two.
pub const EXPRESSION_LOOPS: usize = 2;

/// Values in a variable that an expression loops over. The call waits for the evaluation, so it must take well under a
/// second.
pub const EXPRESSION_NODES: u64 = 20_000;

/// Values that an expression may read in total. A variable, and the item of a loop, count each time they are named.
pub const EXPRESSION_STEPS: u64 = 500_000;

/// Longest refresh of a connection: one request to a provider, or one command.
pub const CONNECTION_REFRESH: Duration = Duration::from_secs(30);

/// How long a call waits for its approval unless policy sets another time: until the same time tomorrow.
pub const APPROVAL_WITHIN: Duration = Duration::from_secs(24 * 3_600);

/// How long a grant is valid: longer than a call queues, short enough that the person who gave it remembers why.
pub const GRANT_VALID: Duration = Duration::from_secs(3_600);

/// How often a body or a session may make the same call with the same result, with nothing new in between, before the
/// next one is refused. A person would stop at the third time; patient polling needs a little more.
pub const LOOP_LIMIT: u32 = 5;

/// Unfinished runs of a store from which on new work is refused, unless configured.
pub const UNFINISHED_RUNS: u64 = 10_000;

/// Number of different calls among which a repetition is noticed. Models usually repeat cycles of two or three calls.
pub const LOOP_WINDOW: usize = 8;

/// How long the last outcome of a session counts towards a loop.
pub const LOOP_MEMORY: Duration = Duration::from_secs(600);

/// Bytes of an artifact that are moved at a time: small enough to hold a few hundred pieces in memory, large enough
/// that the fixed cost per piece does not matter.
pub const ARTIFACT_PIECE: usize = 256 << 10;

/// Largest artifact, unless the runtime sets another limit. Larger content belongs into storage of its own, with its
/// address passed on.
pub const ARTIFACT_BYTES: u64 = 1 << 30;

/// How long an unreferenced artifact is kept, in addition to the time of the attempt that may still refer to it: longer
/// than any commit takes, short enough that leftovers of failed attempts do not accumulate.
pub const ARTIFACT_GRACE: Duration = Duration::from_secs(3_600);

/// Pieces that are collected at a time: some megabytes, which delay a commit by a few milliseconds.
pub const ARTIFACT_SWEEP: usize = 32;

/// Longest name of a session, and of a value or secret in it, in characters: more than any identifier needs.
pub const SESSION_NAME: usize = 255;

/// Longest title of a session, in characters. A title is one line.
pub const SESSION_TITLE: usize = 300;

/// Largest content of one message of a session, in bytes of JSON. A long text fits; a file belongs in an artifact.
pub const MESSAGE_BYTES: usize = 256 << 10;

/// Most messages of one session. Each turn reads a few of the latest; a conversation that is longer should be continued
/// in another session.
pub const SESSION_MESSAGES: u64 = 100_000;

/// Most messages that are read at once, which bounds the memory of a reader.
pub const MESSAGE_PAGE: usize = 1_000;

/// Largest value in a session's data, in bytes of JSON. It is recorded whenever a body reads it.
pub const SESSION_VALUE_BYTES: usize = 64 << 10;

/// Most values of one session, and most secrets. They are listed at once.
pub const SESSION_ENTRIES: u64 = 1_000;

/// Most names in the choice of tools of one session, and in one change of it.
pub const SESSION_TOOLS: usize = 1_000;

/// Largest secret of a session, in bytes: enough for a key or a certificate.
pub const SECRET_BYTES: usize = 16 << 10;

/// Most unfinished runs of one session, unless the runtime or the session sets another limit. A session has one turn at
/// a time and a few runs beside it; more than this indicates that its work is not done.
pub const SESSION_RUNS: u64 = 100;

/// Largest such limit. The runs of a session are counted whenever one is created.
pub const SESSION_RUNS_MAX: u64 = 10_000;

/// Longest name of a model, and longest id of a turn, in characters.
pub const SESSION_LABEL: usize = 255;

/// Bytes of JSON that count as one token in the estimate of a session's context. Texts of most languages have three to
/// five bytes per token; the model's own tokenizer is not known here.
pub const TOKEN_BYTES: u64 = 4;

/// Longest reason, cause or dedupe key that is kept with a session, in characters.
pub const SESSION_NOTE: usize = 255;

/// Longest name of a session file, in bytes: the limit of the file systems that command tools use.
pub const SESSION_FILE_NAME: usize = 255;

/// Longest path of a session file, in bytes. Below the 4,096 bytes that Linux allows, also inside a private directory.
pub const SESSION_PATH_BYTES: usize = 1_024;

/// Deepest path of a session file, in names. Deeper trees are found in no project that people wrote.
pub const SESSION_PATH_DEPTH: usize = 64;

/// Largest session file, in bytes, unless the runtime sets another limit.
pub const SESSION_FILE_BYTES: u64 = 100 << 20;

/// Bytes of all files of a session, unless the runtime sets another limit.
pub const SESSION_FILES_BYTES: u64 = 500 << 20;

/// Files and directories of a session, unless the runtime sets another limit. They are counted whenever one is added,
/// which takes about a millisecond.
pub const SESSION_FILES: u64 = 10_000;

/// Bytes at the start of a file in which a NUL byte means that it is not text.
pub const TEXT_PROBE: usize = 8 << 10;

/// Most files that are listed at once, which bounds the memory of a reader.
pub const FILE_PAGE: usize = 1_000;

/// Matches that a search in files returns unless the caller sets another number, and the most that it returns.
pub const GREP_MATCHES: usize = 200;
/// See [`GREP_MATCHES`].
pub const GREP_MATCHES_MAX: usize = 1_000;

/// Bytes of files that one search looks at. A search is not interrupted for long: a piece takes about a millisecond.
pub const GREP_BYTES: u64 = 64 << 20;

/// Bytes of a line that are searched, and characters of it that a match shows.
pub const GREP_LINE_BYTES: usize = 64 << 10;
/// See [`GREP_LINE_BYTES`].
pub const GREP_LINE_SHOWN: usize = 500;

/// Largest compiled pattern of a search in files, and longest pattern in bytes.
pub const GREP_PATTERN_SIZE: usize = 1 << 20;
/// See [`GREP_PATTERN_SIZE`].
pub const GREP_PATTERN_BYTES: usize = 1_024;
