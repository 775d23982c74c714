"""A seeded simulator: the raw facts of a run at any scale, drawn from distributions.

    plan.py       what a run is like: distributions, resources, spans
    published.py  plans that reproduce a published run's figures
    attempt.py    one attempt: its facts, and where it was when
    teller.py     facts with derived ids, in simulated time
    room.py       who starts when: concurrency and sandbox slots
    samples.py    what a monitor would have seen of engines and pools
    training.py   what a trainer would have said of its steps
    run.py        a whole run, as drafts
    write.py      drafts into a log, each once
    copies.py     one encoded run as many, for benchmarks

Invariant: raw facts only. What a judge, an assembler or a report would say of them (judgements,
group decisions, batches, accounts) is left to these, or the simulator would be asked whether it
agrees with itself. So a simulated step names no batch.
"""
