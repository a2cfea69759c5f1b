BEGIN TRANSACTION;
CREATE TABLE file (
    openings INTEGER NOT NULL,
    secret   BLOB NOT NULL,
    packed   INTEGER NOT NULL DEFAULT 0,
    clean    INTEGER NOT NULL DEFAULT 1,
    last     INTEGER NOT NULL DEFAULT 0,
    copy     INTEGER NOT NULL DEFAULT 0,
    runs     INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO file VALUES(1,X'8963bd49d193951e1184a84d71bfc43787b1f7bbd7b97331436bfca26f67f959',16,0,24,0,4);
CREATE TABLE workers (
    id    INTEGER PRIMARY KEY,
    until INTEGER NOT NULL
) STRICT;
CREATE TABLE sessions (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;
INSERT INTO sessions VALUES(1,'s');
CREATE TABLE mail (
    run      INTEGER NOT NULL,
    position INTEGER NOT NULL,
    dedupe   TEXT,
    body     TEXT,
    PRIMARY KEY (run, position)
) STRICT, WITHOUT ROWID;
INSERT INTO mail VALUES(3,1,NULL,'{"type":"cancel","by":"ada","reason":"enough"}');
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
) STRICT;
INSERT INTO runs VALUES(1,X'01010101010101010101010101010101','t',5,1,1,0,0,1,1,'{"state":"running"}',NULL,NULL,1,NULL,NULL,NULL,0,0,0,NULL,NULL,0,17,17,NULL,0);
INSERT INTO runs VALUES(2,X'02020202020202020202020202020202','u',5,1,1,0,0,1,4,'{"state":"finished","ending":"ok"}',NULL,'k',NULL,NULL,NULL,NULL,0,0,0,NULL,NULL,0,22,2,0,0);
INSERT INTO runs VALUES(3,X'03030303030303030303030303030303','t',5,1,1,0,1,1,2,'{"state":"suspended","wake":50}',-9223372036854775808,NULL,NULL,NULL,NULL,NULL,0,0,0,NULL,NULL,0,23,1,NULL,0);
CREATE TABLE log (
    position INTEGER PRIMARY KEY,
    run      INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    count    INTEGER NOT NULL,
    previous INTEGER NOT NULL,
    session  INTEGER,
    body     TEXT NOT NULL
, note TEXT) STRICT;
INSERT INTO log VALUES(17,1,16,1,16,1,'{"path":"/","at":0,"event":{"type":"finished","result":{"ok":{"value":16}},"attempts":1,"times":{"queued":0,"running":0,"total":0}}}',NULL);
INSERT INTO log VALUES(18,1,17,1,17,1,'{"path":"/","at":0,"event":{"type":"finished","result":{"ok":{"value":17}},"attempts":1,"times":{"queued":0,"running":0,"total":0}}}',NULL);
INSERT INTO log VALUES(19,1,18,1,18,1,'{"path":"/","at":0,"event":{"type":"finished","result":{"ok":{"value":18}},"attempts":1,"times":{"queued":0,"running":0,"total":0}}}',NULL);
INSERT INTO log VALUES(20,1,19,1,19,1,'{"path":"/","at":0,"event":{"type":"finished","result":{"ok":{"value":19}},"attempts":1,"times":{"queued":0,"running":0,"total":0}}}',NULL);
INSERT INTO log VALUES(21,2,0,1,0,NULL,'{"path":"/","at":0,"event":{"type":"finished","result":{"ok":{"value":"begun"}},"attempts":1,"times":{"queued":0,"running":0,"total":0}}}','["AgICAgICAgICAgICAgICAgAAAAAAAAAA",1,5,"u","k"]');
INSERT INTO log VALUES(22,2,1,1,21,NULL,'{"path":"/","at":0,"event":{"type":"finished","result":{"ok":{"value":"done"}},"attempts":1,"times":{"queued":0,"running":0,"total":0}}}','ok');
INSERT INTO log VALUES(23,3,0,1,0,NULL,'@{"at":0,"event":{"attempts":1,"result":{"ok":{"value":{"$windlass":"b3:159c222ec696b9907c1590ea9942266360a39ed0709f73bef48850a6f4f41cf8"}}},"times":{"queued":0,"running":0,"total":0},"type":"finished"},"path":"/"}',NULL);
INSERT INTO log VALUES(25,1,20,1,20,1,'{"path":"/","at":0,"event":{"type":"finished","result":{"ok":{"value":"refers"}},"attempts":1,"times":{"queued":0,"running":0,"total":0}}}',NULL);
INSERT INTO log VALUES(26,5,0,1,0,NULL,'{"path":"/","at":0,"event":{"type":"finished","result":{"ok":{"value":"born"}},"attempts":1,"times":{"queued":0,"running":0,"total":0}}}','["BQUFBQUFBQUFBQUFBQUFBQAAAAAAAAAA",1,5,"t","young"]');
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
INSERT INTO segments VALUES(8,1,1,0,8,0,1,X'980400002201000100000800f129830000007b2270617468223a222f222c226174223a302c226576656e74223a7b2274797065223a2266696e6973686564222c22726573756c1c00206f6b2200a076616c7565223a307d7d3e00f00174656d707473223a312c2274696d657322006171756575656458007172756e6e696e670c0051746f74616c3900227d0292000f93003c1f319300291f039300421f329300291f049300421f339300291f059300421f349300291f069300421f359300291f079300421f369300291f089300421f3793002360223a307d7d7d');
INSERT INTO segments VALUES(16,9,1,8,8,8,1,X'9e0400002209000100f12d01000000830000007b2270617468223a222f222c226174223a302c226576656e74223a7b2274797065223a2266696e6973686564222c22726573756c1c00f0016f6b223a7b2276616c7565223a387d7d3e00f00174656d707473223a312c2274696d657322006171756575656458007172756e6e696e670c00c2746f74616c223a307d7d7d0a92000f93003c1f39930029170b93001f842601362f31309400291f0c9400431f319400291f0d9400431f329400291f0e9400431f339400291f0f9400431f349400291f109400431f3594002360223a307d7d7d');
CREATE TABLE tombstones (
    key   TEXT PRIMARY KEY,
    run   BLOB NOT NULL,
    since INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO tombstones VALUES('spent',X'04040404040404040404040404040404',0);
CREATE TABLE blobs (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    digest  BLOB UNIQUE,
    size    INTEGER NOT NULL,
    opening INTEGER,
    CHECK ((digest IS NULL) = (opening IS NOT NULL))
) STRICT;
INSERT INTO blobs VALUES(1,X'159c222ec696b9907c1590ea9942266360a39ed0709f73bef48850a6f4f41cf8',20002,NULL);
INSERT INTO blobs VALUES(2,X'e8f29fe1fcd7e8792018984448dbcc4f3b81a0b48ce38394b90d19b22872e913',11,NULL);
CREATE TABLE pieces (
    blob   INTEGER NOT NULL,
    number INTEGER NOT NULL,
    length INTEGER NOT NULL,
    body   BLOB NOT NULL,
    PRIMARY KEY (blob, number)
) STRICT, WITHOUT ROWID;
INSERT INTO pieces VALUES(1,0,20002,X'2f22780100ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff5560787878787822');
INSERT INTO pieces VALUES(2,0,11,X'616e206172746966616374');
CREATE TABLE refs (
    run   INTEGER NOT NULL,
    blob  INTEGER NOT NULL,
    scope TEXT,
    PRIMARY KEY (run, blob)
) STRICT, WITHOUT ROWID;
INSERT INTO refs VALUES(3,1,NULL);
INSERT INTO refs VALUES(1,2,'session:s');
CREATE TABLE claims (
    blob   INTEGER NOT NULL,
    holder TEXT NOT NULL,
    until  INTEGER NOT NULL,
    PRIMARY KEY (blob, holder)
) STRICT, WITHOUT ROWID;
INSERT INTO claims VALUES(2,'run:01010101-0101-0101-0101-010101010101',9223372036854775807);
DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence VALUES('blobs',2);
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
COMMIT;
PRAGMA application_id = 1464615251;
PRAGMA user_version = 6;
