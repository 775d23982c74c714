-- The book's own accounts, beside the tables of facts (tables.sql).

-- One row per property of the book: what it was built with and from.
CREATE TABLE book_meta (
    name VARCHAR NOT NULL,
    value VARCHAR NOT NULL
);

-- One row per partition of topic `events`: the offset of the next record to read. Written in the
-- transaction of the rows it stands for, so that a crash repeats or loses nothing.
CREATE TABLE positions (
    topic VARCHAR NOT NULL,
    log_partition INTEGER NOT NULL,
    next_offset BIGINT NOT NULL
);

-- One row per event id that was derived (not a UUID of version 7): the same source may be recorded
-- again by any producer.
CREATE TABLE derived_ids (
    event_id UUID NOT NULL,
    fact VARCHAR NOT NULL
);

-- One row per record that was delivered again and counts once.
CREATE TABLE duplicates (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    fact VARCHAR NOT NULL,
    event_id UUID NOT NULL,
    incarnation UUID NOT NULL,
    producer_seq BIGINT NOT NULL
);

-- One row per record that is no fact the book can take, with the reason.
CREATE TABLE quarantine (
    topic VARCHAR NOT NULL,
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    reason VARCHAR NOT NULL,  -- undecodable, unknown_schema, misplaced, conflict
    detail VARCHAR NOT NULL,  -- value, rule and place
    event_id UUID,  -- this and the next two: null when it could not be read
    incarnation UUID,
    producer_seq BIGINT,
    key VARCHAR NOT NULL,
    size_bytes BIGINT NOT NULL,
    value BLOB NOT NULL  -- the record's first 256 KiB
);
