BEGIN TRANSACTION;
CREATE TABLE blobs (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    digest  BLOB UNIQUE,
    size    INTEGER NOT NULL,
    opening INTEGER, sum INTEGER, media_type TEXT,
    CHECK ((digest IS NULL) = (opening IS NOT NULL))
) STRICT;
CREATE TABLE claims (
    blob   INTEGER NOT NULL,
    holder TEXT NOT NULL,
    until  INTEGER NOT NULL, sum INTEGER,
    PRIMARY KEY (blob, holder)
) STRICT, WITHOUT ROWID;
CREATE TABLE file (
    openings INTEGER NOT NULL,
    secret   BLOB NOT NULL,
    packed   INTEGER NOT NULL DEFAULT 0,
    clean    INTEGER NOT NULL DEFAULT 1,
    last     INTEGER NOT NULL DEFAULT 0,
    copy     INTEGER NOT NULL DEFAULT 0,
    runs     INTEGER NOT NULL DEFAULT 0
, shape INTEGER, sum INTEGER) STRICT;
INSERT INTO "file" VALUES(6,X'2E290F4A0AAE9AEE7452ADB8C211C665DC58636326E213FE3847FE5FC8E73020',0,1,0,0,0,3595691699,2277659223);
CREATE TABLE lineage (
    stamp  BLOB NOT NULL,
    before BLOB NOT NULL,
    shared INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO "lineage" VALUES(X'863EF8013C3F0124CB27C9CED4D78047',X'DAECB961C98CF7A1D507D2748D404F48',0);
CREATE TABLE log (
    position INTEGER PRIMARY KEY,
    run      INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    count    INTEGER NOT NULL,
    previous INTEGER NOT NULL,
    session  INTEGER,
    body     TEXT NOT NULL
, note TEXT, sum INTEGER) STRICT;
CREATE TABLE mail (
    run      INTEGER NOT NULL,
    position INTEGER NOT NULL,
    dedupe   TEXT,
    body     TEXT, sum INTEGER,
    PRIMARY KEY (run, position)
) STRICT, WITHOUT ROWID;
CREATE TABLE messages (
    session  INTEGER NOT NULL,
    position INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    author   TEXT NOT NULL,
    cause    TEXT,
    dedupe   TEXT,
    body     TEXT NOT NULL,
    sum      INTEGER NOT NULL,
    PRIMARY KEY (session, position)
) STRICT, WITHOUT ROWID;
INSERT INTO "messages" VALUES(1,1,1795018632643727,'user',NULL,'m1','[{"type":"text","text":"hello"}]',419848414);
INSERT INTO "messages" VALUES(1,2,1795018632738117,'agent',NULL,NULL,'[{"type":"text","text":"ho"}]',2255796037);
CREATE TABLE pieces (
    blob   INTEGER NOT NULL,
    number INTEGER NOT NULL,
    length INTEGER NOT NULL,
    body   BLOB NOT NULL, sum INTEGER,
    PRIMARY KEY (blob, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE places (
    run    INTEGER NOT NULL,
    path   TEXT NOT NULL,
    key    TEXT NOT NULL,
    ticket INTEGER NOT NULL,
    held   INTEGER NOT NULL,
    sum    INTEGER NOT NULL,
    PRIMARY KEY (run, path)
) STRICT, WITHOUT ROWID;
CREATE TABLE refs (
    run   INTEGER NOT NULL,
    blob  INTEGER NOT NULL,
    scope TEXT, sum INTEGER,
    PRIMARY KEY (run, blob)
) STRICT, WITHOUT ROWID;
CREATE TABLE runs (
    id          INTEGER PRIMARY KEY,
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
, mail INTEGER, sum INTEGER, deaths INTEGER NOT NULL DEFAULT 0, principal TEXT, cause TEXT) STRICT;
CREATE TABLE segments (
    position INTEGER PRIMARY KEY,
    first    INTEGER NOT NULL,
    run      INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    count    INTEGER NOT NULL,
    previous INTEGER NOT NULL,
    session  INTEGER,
    body     BLOB NOT NULL
, sum INTEGER) STRICT;
CREATE TABLE session_data (
    session INTEGER NOT NULL,
    secret  INTEGER NOT NULL,
    name    TEXT NOT NULL,
    at      INTEGER NOT NULL,
    value   TEXT NOT NULL,
    sum     INTEGER NOT NULL,
    PRIMARY KEY (session, secret, name)
) STRICT, WITHOUT ROWID;
INSERT INTO "session_data" VALUES(1,0,'cart',1795018632810504,'{"n":2}',2726197822);
CREATE TABLE sessions (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
, title TEXT, owner TEXT, created INTEGER NOT NULL DEFAULT 0, closed INTEGER, reason TEXT, messages INTEGER NOT NULL DEFAULT 0, kept INTEGER NOT NULL DEFAULT 0, sum INTEGER) STRICT;
INSERT INTO "sessions" VALUES(1,'ada','Trip to Rome','ada@example.org',1795018632555451,NULL,NULL,2,1,2327906055);
INSERT INTO "sessions" VALUES(2,'old',NULL,NULL,1795018632889003,1795018632967623,'closed from the command line',0,1,2235392409);
CREATE TABLE tombstones (
    key   TEXT PRIMARY KEY,
    run   BLOB NOT NULL,
    since INTEGER NOT NULL
, sum INTEGER) STRICT, WITHOUT ROWID;
CREATE TABLE verdicts (
    run  INTEGER NOT NULL,
    key  TEXT NOT NULL,
    body TEXT NOT NULL,
    sum  INTEGER NOT NULL,
    PRIMARY KEY (run, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE workers (
    id    INTEGER PRIMARY KEY,
    until INTEGER NOT NULL
) STRICT;
CREATE INDEX workers_by_lease ON workers (until);
CREATE UNIQUE INDEX mail_by_dedupe ON mail (run, dedupe) WHERE dedupe IS NOT NULL;
CREATE INDEX mail_unread ON mail (run, position) WHERE body IS NOT NULL;
CREATE INDEX runs_open ON runs (phase, run) WHERE phase < 4;
CREATE INDEX runs_due ON runs (wake, run) WHERE wake IS NOT NULL;
CREATE INDEX runs_doubted ON runs (run) WHERE doubts IS NOT NULL;
CREATE INDEX runs_inbox ON runs (run) WHERE doubts IS NOT NULL OR asks = 1;
CREATE UNIQUE INDEX runs_by_key ON runs (key) WHERE key IS NOT NULL;
CREATE INDEX runs_by_session ON runs (session, run) WHERE session IS NOT NULL;
CREATE INDEX runs_turns ON runs (session, id) WHERE turn IS NOT NULL;
CREATE INDEX runs_by_parent ON runs (parent_run, run) WHERE parent_run IS NOT NULL;
CREATE INDEX runs_by_tool ON runs (tool, run);
CREATE INDEX log_by_session ON log (session) WHERE session IS NOT NULL;
CREATE INDEX segments_by_session ON segments (session, first) WHERE session IS NOT NULL;
CREATE INDEX runs_ended ON runs (summary, ended) WHERE ended IS NOT NULL;
CREATE INDEX tombstones_by_age ON tombstones (since);
CREATE INDEX blobs_unfinished ON blobs (opening) WHERE digest IS NULL;
CREATE INDEX refs_by_blob ON refs (blob, scope);
CREATE INDEX claims_by_end ON claims (until);
CREATE INDEX runs_by_principal ON runs (principal, run) WHERE principal IS NOT NULL;
CREATE INDEX runs_by_cause ON runs (cause, run) WHERE cause IS NOT NULL;
CREATE INDEX sessions_by_age ON sessions (created, name);
CREATE INDEX sessions_closed ON sessions (closed) WHERE closed IS NOT NULL AND kept = 1;
CREATE UNIQUE INDEX messages_by_dedupe ON messages (session, dedupe) WHERE dedupe IS NOT NULL;
CREATE TRIGGER file_sum AFTER UPDATE OF openings, secret, packed, clean, last, copy, runs, shape ON file WHEN old.sum IS NULL OR old.sum = windlass_sum(old.openings, old.secret, old.packed, old.clean, old.last, old.copy, old.runs, old.shape) BEGIN UPDATE file SET sum = windlass_sum(openings, secret, packed, clean, last, copy, runs, shape) WHERE true; END;
CREATE TRIGGER mail_sum AFTER UPDATE OF run, position, dedupe, body ON mail WHEN old.sum IS NULL OR old.sum = windlass_sum(old.run, old.position, old.dedupe, old.body) BEGIN UPDATE mail SET sum = windlass_sum(new.run, new.position, new.dedupe, new.body) WHERE run = new.run AND position = new.position; END;
CREATE TRIGGER refs_sum AFTER UPDATE OF run, blob, scope ON refs WHEN old.sum IS NULL OR old.sum = windlass_sum(old.run, old.blob, old.scope) BEGIN UPDATE refs SET sum = windlass_sum(new.run, new.blob, new.scope) WHERE run = new.run AND blob = new.blob; END;
CREATE TRIGGER claims_sum AFTER UPDATE OF blob, holder, until ON claims WHEN old.sum IS NULL OR old.sum = windlass_sum(old.blob, old.holder, old.until) BEGIN UPDATE claims SET sum = windlass_sum(new.blob, new.holder, new.until) WHERE blob = new.blob AND holder = new.holder; END;
CREATE TRIGGER runs_sum AFTER UPDATE OF run, tool, created, epoch, opening, worker, orderly, clean, phase, state, wake, key, session, turn, parent_run,
     parent_path, generation, base, examined, doubts, parks, asks, tail, length, ended, summary, mail, deaths, principal,
     cause ON runs WHEN old.sum IS NULL OR old.sum = windlass_sum(old.id, old.run, old.tool, old.created, old.epoch, old.opening, old.worker, old.orderly, old.clean, old.phase, old.state, old.wake, old.key, old.session, (SELECT name FROM sessions WHERE sessions.id = old.session), old.turn, old.parent_run, old.parent_path, old.generation, old.base, old.examined, old.doubts, old.parks, old.asks, old.tail, old.length, old.ended, old.summary, old.mail) + iif(old.deaths = 0, 0, windlass_sum(old.deaths)) + iif(old.principal IS NULL AND old.cause IS NULL, 0, windlass_sum(old.principal, old.cause)) BEGIN UPDATE runs SET sum = windlass_sum(new.id, new.run, new.tool, new.created, new.epoch, new.opening, new.worker, new.orderly, new.clean, new.phase, new.state, new.wake, new.key, new.session, (SELECT name FROM sessions WHERE sessions.id = new.session), new.turn, new.parent_run, new.parent_path, new.generation, new.base, new.examined, new.doubts, new.parks, new.asks, new.tail, new.length, new.ended, new.summary, new.mail) + iif(new.deaths = 0, 0, windlass_sum(new.deaths)) + iif(new.principal IS NULL AND new.cause IS NULL, 0, windlass_sum(new.principal, new.cause)) WHERE id = new.id; END;
CREATE TRIGGER blobs_sum AFTER UPDATE OF digest, size, opening, media_type ON blobs WHEN old.sum IS NULL OR old.sum = windlass_sum(old.digest, old.size, old.opening, old.media_type) BEGIN UPDATE blobs SET sum = windlass_sum(new.digest, new.size, new.opening, new.media_type) WHERE id = new.id; END;
CREATE TRIGGER sessions_sum
     AFTER UPDATE OF name, title, owner, created, closed, reason, messages, kept ON sessions
     WHEN old.sum IS NULL OR old.sum = windlass_sum(old.id, old.name, old.title, old.owner, old.created, old.closed,
                                                    old.reason, old.messages, old.kept)
     BEGIN UPDATE sessions SET sum = windlass_sum(new.id, new.name, new.title, new.owner, new.created, new.closed,
                                                  new.reason, new.messages, new.kept)
           WHERE id = new.id; END;
CREATE VIEW run AS
    SELECT windlass_id(runs.run) AS run, tool, datetime(runs.created / 1000000, 'unixepoch') AS created,
           datetime(ended / 1000000, 'unixepoch') AS ended,
           json_extract(state, '$.state') AS state, key, sessions.name AS session, principal, cause,
           windlass_id(parent_run) AS parent,
           CASE WHEN wake BETWEEN 0 AND 9223372036854775806
                THEN datetime(wake / 1000000, 'unixepoch') END AS wakes, doubts, parks
    FROM runs LEFT JOIN sessions ON sessions.id = runs.session;
CREATE VIEW journal AS
    SELECT windlass_id(runs.run) AS run, piece.seq + record.key AS seq, record.value AS record
    FROM (SELECT run, seq, windlass_lines(body) AS lines FROM segments
          UNION ALL SELECT run, seq, windlass_lines(body) FROM log) AS piece
    JOIN runs ON runs.id = piece.run, json_each(piece.lines) AS record;
DELETE FROM "sqlite_sequence";
PRAGMA application_id = 1464615251;
PRAGMA user_version = 11;
COMMIT;
