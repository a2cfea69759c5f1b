CREATE TABLE file (
    openings INTEGER NOT NULL,
    secret   BLOB NOT NULL,
    packed   INTEGER NOT NULL DEFAULT 0,
    clean    INTEGER NOT NULL DEFAULT 1,
    last     INTEGER NOT NULL DEFAULT 0,
    copy     INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE workers (
    id    INTEGER PRIMARY KEY,
    until INTEGER NOT NULL
) STRICT;
CREATE INDEX workers_by_lease ON workers (until);
CREATE TABLE sessions (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;
CREATE TABLE runs (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    run         BLOB NOT NULL UNIQUE,
    tool        TEXT NOT NULL,
    created     INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    opening     INTEGER NOT NULL,
    worker      INTEGER NOT NULL,
    orderly     INTEGER NOT NULL,
    clean       INTEGER NOT NULL DEFAULT 1,
    phase       INTEGER NOT NULL,
    state       TEXT NOT NULL,
    wake        INTEGER,
    key         TEXT,
    session     INTEGER,
    turn        INTEGER,
    parent_run  BLOB,
    parent_path TEXT,
    generation  INTEGER NOT NULL DEFAULT 0,
    base        INTEGER NOT NULL DEFAULT 0,
    examined    INTEGER NOT NULL DEFAULT 0,
    doubts      TEXT,
    parks       TEXT,
    asks        INTEGER NOT NULL DEFAULT 0,
    tail        INTEGER NOT NULL DEFAULT 0,
    length      INTEGER NOT NULL DEFAULT 0,
    ended       INTEGER,
    summary     INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX runs_open ON runs (phase, run) WHERE phase < 4;
CREATE INDEX runs_driven ON runs (worker, run) WHERE phase = 1;
CREATE INDEX runs_due ON runs (wake, run) WHERE wake IS NOT NULL;
CREATE INDEX runs_doubted ON runs (run) WHERE doubts IS NOT NULL;
CREATE INDEX runs_inbox ON runs (run) WHERE doubts IS NOT NULL OR asks = 1;
CREATE UNIQUE INDEX runs_by_key ON runs (key) WHERE key IS NOT NULL;
CREATE INDEX runs_by_session ON runs (session, run) WHERE session IS NOT NULL;
CREATE INDEX runs_turns ON runs (session, id) WHERE turn IS NOT NULL;
CREATE INDEX runs_by_parent ON runs (parent_run, run) WHERE parent_run IS NOT NULL;
CREATE INDEX runs_by_tool ON runs (tool, run);
CREATE TABLE mail (
    run      INTEGER NOT NULL,
    position INTEGER NOT NULL,
    dedupe   TEXT,
    body     TEXT,
    PRIMARY KEY (run, position)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX mail_by_dedupe ON mail (run, dedupe) WHERE dedupe IS NOT NULL;
CREATE INDEX mail_unread ON mail (run, position) WHERE body IS NOT NULL;
CREATE TABLE log (
    position INTEGER PRIMARY KEY,
    run      INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    count    INTEGER NOT NULL,
    previous INTEGER NOT NULL,
    session  INTEGER,
    body     TEXT NOT NULL
) STRICT;
CREATE INDEX log_by_session ON log (session) WHERE session IS NOT NULL;
CREATE TABLE segments (
    position INTEGER PRIMARY KEY,
    first    INTEGER NOT NULL,
    run      INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    count    INTEGER NOT NULL,
    previous INTEGER NOT NULL,
    session  INTEGER,
    body     BLOB NOT NULL
) STRICT;
CREATE INDEX segments_by_session ON segments (session, first) WHERE session IS NOT NULL;
CREATE INDEX runs_ended ON runs (summary, ended) WHERE ended IS NOT NULL;
CREATE TABLE tombstones (
    key   TEXT PRIMARY KEY,
    run   BLOB NOT NULL,
    since INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX tombstones_by_age ON tombstones (since);
CREATE TABLE blobs (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    digest  BLOB UNIQUE,
    size    INTEGER NOT NULL,
    opening INTEGER,
    CHECK ((digest IS NULL) = (opening IS NOT NULL))
) STRICT;
CREATE INDEX blobs_unfinished ON blobs (opening) WHERE digest IS NULL;
CREATE TABLE pieces (
    blob   INTEGER NOT NULL,
    number INTEGER NOT NULL,
    length INTEGER NOT NULL,
    body   BLOB NOT NULL,
    PRIMARY KEY (blob, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE refs (
    run   INTEGER NOT NULL,
    blob  INTEGER NOT NULL,
    scope TEXT,
    PRIMARY KEY (run, blob)
) STRICT, WITHOUT ROWID;
CREATE INDEX refs_by_blob ON refs (blob, scope);
CREATE TABLE claims (
    blob   INTEGER NOT NULL,
    holder TEXT NOT NULL,
    until  INTEGER NOT NULL,
    PRIMARY KEY (blob, holder)
) STRICT, WITHOUT ROWID;
CREATE INDEX claims_by_end ON claims (until);
CREATE VIEW run AS
    SELECT windlass_id(runs.run) AS run, tool, datetime(created / 1000000, 'unixepoch') AS created,
           datetime(ended / 1000000, 'unixepoch') AS ended,
           json_extract(state, '$.state') AS state, key, sessions.name AS session, windlass_id(parent_run) AS parent,
           CASE WHEN wake BETWEEN 0 AND 9223372036854775806
                THEN datetime(wake / 1000000, 'unixepoch') END AS wakes, doubts, parks
    FROM runs LEFT JOIN sessions ON sessions.id = runs.session;
CREATE VIEW journal AS
    SELECT windlass_id(runs.run) AS run, piece.seq + record.key AS seq, record.value AS record
    FROM (SELECT run, seq, windlass_lines(body) AS lines FROM segments
          UNION ALL SELECT run, seq, windlass_lines(body) FROM log) AS piece
    JOIN runs ON runs.id = piece.run, json_each(piece.lines) AS record;

INSERT INTO file (openings, secret) VALUES (1, randomblob(32));
INSERT INTO sessions (id, name) VALUES (1, 's');
INSERT INTO runs (id, run, tool, created, epoch, opening, worker, orderly, phase, state, key, session, wake, tail, length)
VALUES
    (1, x'01010101010101010101010101010101', 't', 5, 1, 1, 0, 0, 1, '{"state":"running"}', NULL, 1, NULL, 0, 0),
    (4, x'04040404040404040404040404040404', 'u', 6, 3, 1, 0, 1, 2, '{"state":"suspended","wake":50}', 'k', NULL, 50, 2, 1);
-- The runs up to here were purged.
UPDATE sqlite_sequence SET seq = 9 WHERE name = 'runs';
INSERT INTO log (position, run, seq, count, previous, session, body) VALUES
    (1, 1, 0, 1, 0, 1, '{"path":"/","at":1,"event":{"type":"entered"}}'),
    (2, 4, 0, 1, 0, NULL, '{"path":"/","at":2,"event":{"type":"entered"}}'),
    (3, 1, 1, 1, 1, 1, '{"path":"/","at":3,"event":{"type":"entered"}}');
INSERT INTO mail (run, position, dedupe, body) VALUES (4, 1, NULL, '{"type":"cancel","by":"ada","reason":"enough"}');
PRAGMA application_id = 1464615251;
PRAGMA user_version = 3;
