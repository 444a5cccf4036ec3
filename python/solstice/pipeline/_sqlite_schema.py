"""The tables of the embedded queue, and why each is as it is."""

VERSION = 3

# A message's id is the number of its topic and, in the lower bits, its position there. So a topic's messages lie
# together and in order by one integer: to find, append and remove them costs half of what a key of two columns does.
POSITION_BITS = 40

SCHEMA = """
-- Facts about the job that are written once: the version of this schema, the plan of stages.
CREATE TABLE facts (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- What a stage has produced. The counters are kept by the transactions that produce, because counting rows costs
-- more the longer the queue is, and because the messages are removed once everybody has settled them.
-- Positions count from 1 without a hole, so `produced` is also the highest.
CREATE TABLE topics (
    number           INTEGER PRIMARY KEY,
    topic            TEXT NOT NULL UNIQUE,
    produced         INTEGER NOT NULL DEFAULT 0,
    produced_bytes   INTEGER NOT NULL DEFAULT 0,
    produced_records INTEGER NOT NULL DEFAULT 0,
    ended            INTEGER NOT NULL DEFAULT 0
);

-- The log: appended at the end and taken in order, so that a take is one look-up at any length.
-- `settled_by` counts the groups that are through with a message; when all are, it is removed with its payload.
CREATE TABLE messages (
    id          INTEGER PRIMARY KEY,
    payload_key TEXT NOT NULL,
    settled_by  INTEGER NOT NULL DEFAULT 0,
    body        TEXT NOT NULL
);

-- One cursor per group, a position: everything up to it was taken at least once. What was taken and not settled is in
-- `inflight`, so `cursor - settled - dead` is the number in flight.
CREATE TABLE groups (
    number          INTEGER PRIMARY KEY,
    topic           INTEGER NOT NULL REFERENCES topics,
    grp             TEXT NOT NULL,
    cursor          INTEGER NOT NULL DEFAULT 0,
    settled         INTEGER NOT NULL DEFAULT 0,
    settled_bytes   INTEGER NOT NULL DEFAULT 0,
    settled_records INTEGER NOT NULL DEFAULT 0,
    dead            INTEGER NOT NULL DEFAULT 0,
    dead_bytes      INTEGER NOT NULL DEFAULT 0,
    UNIQUE (topic, grp)
);

-- What workers hold. A row without an owner waits for its retry at `lease_until`; one with an owner may be taken over
-- after it. `attempt` grows with every delivery and so tells two deliveries to the same worker apart.
-- No index by owner: every split would pay for it, and who asks by owner, to renew leases, reads a short table.
CREATE TABLE inflight (
    grp         INTEGER NOT NULL REFERENCES groups,
    id          INTEGER NOT NULL,
    owner       TEXT,
    attempt     INTEGER NOT NULL,
    failures    INTEGER NOT NULL,
    lease_until REAL NOT NULL,
    PRIMARY KEY (grp, id)
) WITHOUT ROWID;
CREATE INDEX inflight_by_lease ON inflight (grp, lease_until);

-- Given up, with the message itself: its row in `messages` may go, its payload stays.
CREATE TABLE dead_letters (
    topic       TEXT NOT NULL,
    grp         TEXT NOT NULL,
    id          INTEGER NOT NULL,
    payload_key TEXT NOT NULL,
    body        TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    error       TEXT NOT NULL,
    traceback   TEXT NOT NULL,
    at          REAL NOT NULL,
    PRIMARY KEY (id, grp)
) WITHOUT ROWID;

-- Everybody who writes payloads: a Spark task attempt or a worker. To make something visible, the row must be there;
-- removing it fences the writer, after which its files that no message names can be deleted without a race.
-- `hidden_bytes` is what it has stored and not made visible: those who write wait when all together is too much.
CREATE TABLE writers (
    writer       TEXT PRIMARY KEY,
    stage        TEXT NOT NULL,
    lease_until  REAL NOT NULL,
    hidden_bytes INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX writers_by_stage ON writers (stage);

-- What a batch write is made of. A resumed one has to match, or its partitions would be other rows.
CREATE TABLE batches (
    stage              TEXT NOT NULL,
    batch_id           TEXT NOT NULL,
    fingerprint        TEXT NOT NULL,
    partitions         INTEGER NOT NULL,
    target_split_bytes INTEGER NOT NULL,
    PRIMARY KEY (stage, batch_id)
) WITHOUT ROWID;

-- The visible partitions of a batch. The key decides between two attempts at a partition: the first one wins.
CREATE TABLE completions (
    stage     TEXT NOT NULL,
    batch_id  TEXT NOT NULL,
    partition INTEGER NOT NULL,
    splits    INTEGER NOT NULL,
    PRIMARY KEY (stage, batch_id, partition)
) WITHOUT ROWID;

-- The last visible micro-batch of a stream and the query that wrote it: Spark repeats a batch after a crash, and it
-- must not be taken twice; a query that starts at 0 again under the same name must not be ignored.
CREATE TABLE streams (
    stage      TEXT NOT NULL,
    stream_id  TEXT NOT NULL,
    query_id   TEXT NOT NULL,
    last_batch INTEGER NOT NULL,
    PRIMARY KEY (stage, stream_id)
) WITHOUT ROWID;

-- Output files that are committed, written in the transaction that settled their input. Until `done`, somebody has to
-- see to it that they get their final names.
CREATE TABLE prepared (
    stage     TEXT NOT NULL,
    split_id  TEXT NOT NULL,
    owner     TEXT NOT NULL,
    temporary TEXT NOT NULL,
    final     TEXT NOT NULL,
    PRIMARY KEY (stage, split_id)
) WITHOUT ROWID;
"""
