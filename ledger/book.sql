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

-- One row per run that any fact is of. Runs that name the same group or batch are kin, and so are
-- those that are kin of one: they have one id in common, the lowest. Likewise those that asked or
-- sampled the same engine, beside those that are kin by names.
CREATE TABLE run_facts (
    run_id UUID NOT NULL,
    facts BIGINT NOT NULL,
    last_log_time TIMESTAMPTZ NOT NULL,
    kin_by_names UUID NOT NULL,
    kin_by_engines UUID NOT NULL
);

-- One row per group or batch, and run whose facts name it.
CREATE TABLE run_names (
    name UUID NOT NULL,
    run_id UUID NOT NULL
);

-- One row per engine and run that asked or sampled it.
CREATE TABLE run_engines (
    engine VARCHAR NOT NULL,
    run_id UUID NOT NULL
);

-- One row per incarnation of a producer: what numbers the book has of its facts, as
-- producer_numbers.sql counts them.
CREATE TABLE producer_numbers (
    incarnation UUID NOT NULL,
    producer VARCHAR NOT NULL,
    first_run UUID NOT NULL,
    last_run UUID NOT NULL,
    last_log_time TIMESTAMPTZ NOT NULL,
    last_seq BIGINT NOT NULL,
    numbers BIGINT NOT NULL,
    total HUGEINT NOT NULL,
    squares HUGEINT NOT NULL
);

-- One row per account and run whose rows are kept, in table `kept_` and the account's view: they
-- were made of so many facts of the run and its kin, by this code.
CREATE TABLE kept_accounts (
    account VARCHAR NOT NULL,
    run_id UUID NOT NULL,
    facts BIGINT NOT NULL,
    made_by VARCHAR NOT NULL
);
