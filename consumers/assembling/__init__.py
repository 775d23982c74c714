"""The assembler's decisions, pure: facts in, what to append out.

    settings.py     what it is told; canonical JSON and its digest
    cut.py          the log's clock, and all that a decision depends on beside its facts
    token_index.py  payload digest -> where it lies in topic `tokens`
    group_state.py  the fold of one group's facts
    decide.py       group state -> hold, or who votes and what becomes of the group
    batching.py     queue of decided groups -> the next batch, what is dropped, what waits for room
    run_state.py    the fold of one run's facts: groups, queue, batches, versions, leases
    plan.py         run state -> what to append now
    low_water.py    where a restart has to read from
    publish.py      plan -> facts and payloads
    again.py        decide again at recorded cuts, and compare

`consumers/assembler.py` does the reading and appending.
"""
