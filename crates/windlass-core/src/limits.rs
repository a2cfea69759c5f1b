//! Every bound the kernel has by default, in one place, each with the reason for its number.

use std::time::Duration;

/// Largest arguments of one call, in bytes of JSON. Models write a few kilobytes; a file's content belongs in an artifact.
pub const ARGUMENT_BYTES: usize = 1 << 20;

/// Deepest nesting of a JSON value: of arguments, outputs, signals and answers. What is taken at this depth can be read back from
/// wherever it is kept. Keeps validation and drops off deep stacks.
pub const VALUE_DEPTH: usize = 128;

/// Deepest nesting of a document, request or answer that has values in it.
pub const DOCUMENT_DEPTH: usize = VALUE_DEPTH + 64;

/// Steps it may take to check a value against a schema, whatever its size, and so many more for each of its bytes. A step is
/// one look of one keyword at one value: 1 to 10 ns as measured, up to 30 where names are looked up in large objects. A check is not
/// interrupted, so that arguments of a few kilobytes hold a thread up for some 10 ms, and the largest there are for some 50 ms, 150 in
/// the worst case. Ordinary ones take hundreds of steps.
pub const CHECK_STEPS: u64 = 1_000_000;

/// See [`CHECK_STEPS`]: ordinary schemas take one or two, with patterns and alternatives.
pub const CHECK_STEPS_PER_BYTE: u64 = 4;

/// Steps up to which a value that does not fit is told in what: what collects the reasons keeps all of them at once.
pub const EXPLAINED_STEPS: u64 = 200_000;

/// Schemas within one another, along values and references, that may look at a value: each takes stack.
pub const CHECK_DEPTH: usize = 1_000;

/// Longest path through a schema and its references: compiling it takes stack for each.
pub const SCHEMA_PATH: usize = 1_000;

/// What one schema may take in memory once it is compiled, as it is estimated: twenty thousand subschemas.
pub const SCHEMA_BYTES: usize = 64 << 20;

/// What each keyword of a subschema is estimated to take, beside patterns and text: twice what was measured.
pub const KEYWORD_BYTES: usize = 1 << 10;

/// Largest pattern of a schema, compiled: enough for a class of characters that is repeated thousands of times.
pub const PATTERN_BYTES: usize = 4 << 20;

/// Ways that are tried to match a pattern that looks around or refers back before it counts as not matched.
pub const BACKTRACKS: usize = 10_000;

/// Most calls in one batch. A model emits tens; more than this is a loop gone wrong.
pub const BATCH_CALLS: usize = 4_096;

/// Deepest nesting of calls. A legitimate tree of tools is a handful deep; recursion without an end is not.
pub const CALL_DEPTH: usize = 32;

/// Attempts in flight at once in one runtime: enough to keep a small machine's sockets busy, few enough to bound memory.
pub const ATTEMPTS_IN_FLIGHT: usize = 256;

/// An attempt's time unless its tool says otherwise; long enough for a slow API, short enough to notice a dead one.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(60);

/// The same for a tool with the long-running hint.
pub const LONG_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3_600);

/// Between the token firing and the attempt being dropped.
pub const CANCEL_GRACE: Duration = Duration::from_millis(50);

/// How long a cancelled durable body may still use its context to clean up.
pub const CLEAN_UP: Duration = Duration::from_secs(30);

/// Longest delay between two attempts of one call, unless the failure asked for more.
pub const RETRY_DELAY_CAP: Duration = Duration::from_secs(60);

/// Deaths of the process with the same path in flight after which a run is held as a crash loop.
pub const CRASH_LOOP: u32 = 3;

/// Attempts after which neither a tool's `reconcile` nor policy repeats what is in doubt any more: a person is asked. More
/// attempts than this that all went missing are no accident.
pub const ATTEMPTS_IN_DOUBT: u32 = 10;

/// Operations of one run. Beyond this a body should continue in a new generation.
pub const RUN_OPERATIONS: u64 = 100_000;

/// Results of one run, in bytes: more than this is read from the store whenever the run is taken up. Beyond it a body should
/// continue in a new generation, and keep large content elsewhere.
pub const RUN_BYTES: usize = 256 << 20;

/// Records a run may buffer before they are sent to the store although nothing waits for them: bounds what a crash makes
/// readonly work repeat, and keeps commits large enough to be cheap.
pub const BUFFERED_RECORDS: usize = 256;

/// How long a run that only waits stays in memory before it is suspended: answers that come at once find it there.
pub const SUSPEND_AFTER: Duration = Duration::from_millis(100);

/// Suspended runs that are taken up in one go when they are due together.
pub const TAKEN_UP_AT_ONCE: usize = 64;

/// The pause between two such goes, in which new calls get their turn.
pub const TAKE_UP_PAUSE: Duration = Duration::from_millis(1);

/// Most such pauses in a row while all attempts there may be are under way: runs that were left must get on too.
pub const TAKE_UP_PATIENCE: usize = 100;

/// Longest time the alarm of suspended runs sleeps without a look at the wall clock, which may have jumped meanwhile: what is
/// overdue then is late by no more than that, and a look costs a microsecond.
pub const ALARM_LOOK: Duration = Duration::from_secs(5);

/// When suspended runs are looked for again after the store could not say which are due.
pub const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// How often a store lets go of what it keeps no longer: rarely enough to cost nothing, often enough that little gathers.
pub const TIDY_EVERY: Duration = Duration::from_secs(60);

/// The least pause between two slices of that, in which commits get their turn.
pub const TIDY_PAUSE: Duration = Duration::from_millis(5);

/// Records a watcher reads from the store at a time: enough to catch up quickly, few enough to hold.
pub const WATCH_PAGE: usize = 256;

/// Records of its first page, which tells how large they are: a watcher that never takes the second one costs little.
pub const WATCH_FIRST_PAGE: usize = 8;

/// Looks into the store for a page, the first of them for a small part of it: records that turn out to be large are not read in
/// vain.
pub const WATCH_READS: usize = 16;

/// Most records of one such look.
pub const WATCH_READ_MOST: usize = 32;

/// Bytes of records a watcher holds until they are taken, or one record. Doubled with each page that is taken, up to
/// [`WATCH_BYTES_MOST`]: a thousand watchers that take nothing fit into memory, and one that does need not ask the store for every
/// few records.
pub const WATCH_BYTES: usize = 32 << 10;

/// See [`WATCH_BYTES`].
pub const WATCH_BYTES_MOST: usize = 256 << 10;

/// What attempts and bodies say while they run is kept this far for a watcher that is busy; then the oldest is forgotten.
pub const LIVE_KEPT: usize = 64;

/// Runs of a session whose past a watcher remembers; what it forgot it reads again.
pub const STORIES_KEPT: usize = 256;

/// Bytes of arguments it remembers with them; beyond that the largest of the others is forgotten first.
pub const STORIES_BYTES: usize = 1 << 20;

/// Most activities in one trace: more than a person reads.
pub const TRACE_ACTIVITIES: usize = 10_000;

/// How far an explanation follows runs that wait for one another.
pub const EXPLAINED_DEPTH: usize = 8;

/// Shortest lease of a worker: a pause of a busy machine must not look like a death.
pub const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// How often a worker looks for what other workers wrote, at least: a cancellation reaches a run that another worker drives within
/// two of these.
pub const LOOK_AROUND: Duration = Duration::from_secs(1);
/// How often a watcher looks for what another worker wrote: soon enough for a person who looks on.
pub const WATCH_LOOK: Duration = Duration::from_secs(1);

/// How long one poll of a body may take before the watchdog names it. A well-behaved body yields within microseconds.
pub const WATCHDOG: Duration = Duration::from_secs(2);

/// Longest text of an error that a record, a model or an API sees: a few screens, which is more than any error that helps.
pub const ERROR_BYTES: usize = 4_096;

/// Bytes of an output that a model sees at once, unless its tool says otherwise: some ten thousand tokens, which a context
/// can bear a few times, and more than most outputs have.
pub const OUTPUT_BUDGET: usize = 32 << 10;

/// Toolboxes with more tools than this list deferrable tools as stubs.
pub const STUB_ABOVE: usize = 40;

/// How long an orderly shutdown waits for attempts in flight; a supervisor's patience is usually 30 seconds.
pub const DRAIN: Duration = Duration::from_secs(10);

/// How often it looks whether they are done.
pub const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// Longest expression of a policy. A condition people can review fits in a line or two.
pub const EXPRESSION_BYTES: usize = 1_024;

/// Deepest nesting of brackets and conditions in an expression. Its parser takes up to 200 KiB of stack for each, and has a
/// stack of 16 MiB.
pub const EXPRESSION_NESTING: usize = 32;

/// Deepest tree of an expression: as many operators in a row, each of which may take 64 KiB of stack.
pub const EXPRESSION_DEPTH: usize = 64;

/// Loops within one another in an expression: each item of the arguments against each call of the history takes two.
pub const EXPRESSION_LOOPS: usize = 2;

/// Values in a variable an expression loops over. Evaluation holds up the call, so it must be over in well under a second.
pub const EXPRESSION_NODES: u64 = 20_000;

/// Values an expression may look at in all, counting a variable each time it is named.
pub const EXPRESSION_STEPS: u64 = 500_000;

/// How long a call waits for its approval unless policy says otherwise: until the same time tomorrow.
pub const APPROVAL_WITHIN: Duration = Duration::from_secs(24 * 3_600);

/// How long a grant is valid once given: longer than a queue, shorter than the memory of who gave it.
pub const GRANT_VALID: Duration = Duration::from_secs(3_600);

/// How often a body or a session may make the same call with the same result, with nothing new in between, before the next one is
/// refused. A person would have stopped at the third time; some polling is patient, so a little more.
pub const LOOP_LIMIT: u32 = 5;

/// Bytes of an artifact that are moved at a time: few enough to hold a few hundred of them, enough that the cost of moving
/// is in the bytes.
pub const ARTIFACT_PIECE: usize = 256 << 10;

/// Largest artifact, unless the runtime says otherwise. Larger things have a home of their own, and an address.
pub const ARTIFACT_BYTES: u64 = 1 << 30;

/// How long an artifact that nobody refers to is kept, beyond the attempt that may still come to: longer than any commit
/// takes, short enough that what failed attempts left does not pile up.
pub const ARTIFACT_GRACE: Duration = Duration::from_secs(3_600);

/// Pieces that are collected in one go: some megabytes, for which a commit waits a few milliseconds.
pub const ARTIFACT_SWEEP: usize = 32;
