CREATE TABLE file (openings INTEGER NOT NULL, secret BLOB NOT NULL) STRICT;
INSERT INTO file (openings, secret) VALUES (0, randomblob(32));

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
    asks        INTEGER NOT NULL DEFAULT 0
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

CREATE TABLE log (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    run      INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    session  INTEGER,
    body     TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX log_by_run ON log (run, seq);
CREATE INDEX log_by_session ON log (session) WHERE session IS NOT NULL;

CREATE TABLE mail (
    run      INTEGER NOT NULL,
    position INTEGER NOT NULL,
    dedupe   TEXT,
    body     TEXT,
    PRIMARY KEY (run, position)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX mail_by_dedupe ON mail (run, dedupe) WHERE dedupe IS NOT NULL;
CREATE INDEX mail_unread ON mail (run, position) WHERE body IS NOT NULL;

INSERT INTO sessions (id, name) VALUES (1, 's');
INSERT INTO runs (id, run, tool, created, epoch, opening, worker, orderly, phase, state, session, wake) VALUES
    (1, x'01010101010101010101010101010101', 't', 5, 1, 0, 0, 0, 1, '{"state":"running"}', 1, NULL),
    (2, x'02020202020202020202020202020202', 't', 6, 3, 0, 0, 1, 2, '{"state":"suspended","wake":50}', 1, 50),
    (3, x'03030303030303030303030303030303', 't', 7, 1, 0, 0, 1, 0, '{"state":"queued"}', NULL, -9223372036854775808);
INSERT INTO log (position, run, seq, session, body)
    SELECT 2 * n + 1, 1, n, 1, json_object('path', '/', 'at', n, 'event', json_object('type', 'entered')) FROM
    (WITH RECURSIVE count(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM count WHERE n < 9) SELECT n FROM count);
INSERT INTO log (position, run, seq, session, body)
    SELECT 2 * n + 2, 2, n, 1, json_object('path', '/', 'at', n, 'event', json_object('type', 'entered')) FROM
    (WITH RECURSIVE count(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM count WHERE n < 4) SELECT n FROM count);
INSERT INTO mail (run, position, dedupe, body)
    VALUES (2, 1, 'k', NULL), (2, 2, NULL, '{"type":"cancel","by":"ada","reason":"enough"}');
DELETE FROM log WHERE position = 19;
PRAGMA application_id = 1464615251;
PRAGMA user_version = 1;
