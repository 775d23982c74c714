"""The assembler's decisions, pure: facts in, what to append out.

    settings.py      what it is told; canonical JSON and its digest
    cut.py           the log's clock, and all that a decision depends on beside its facts
    reading.py       records of the log -> the run's state
    run_state.py     the fold of one run's facts: groups, queue, batches, leases
    group_state.py   the fold of one group's facts
    token_index.py   payload digest -> where it lies in topic `tokens`
    leases.py        which producers live; timers.py: when to look again at which group
    versions.py      policy versions; steps.py: groups by step
    context.py       what a decision depends on, and what it can say
    decide.py        group state -> hold, or close it; members.py: who votes, what becomes of it
    batching.py      queue of decided groups -> the next batch, and what is dropped
    plan.py          run state -> what to append at one cut; publish.py: that as facts
    low_water.py     where a restart has to read from

`consumers/assembler.py` does the reading and appending, `consumers/batches.py` packs a batch, and
`consumers/replay_batches.py` decides again at the recorded cuts.

How it fits together

State is a fold of what was read, and of nothing else. What the assembler appends counts once it is
read back; until then it decides nothing. So a life without a break, a restart and a replay are the
same fold, and a recorded decision is authoritative because it is simply read.

A round is one cut: the positions read, the log's clock, the newest policy version, the settings.
`plan` looks at the groups that something happened to, and everything that it finds goes into the
log in one fenced append, the batch with it.

A group is decided once when it closes: `batch`, `evaluated` or `dropped`. One that was decided for
a batch waits in the queue. It leaves the queue into one batch, or by a second and last decision,
`dropped` (stale, orphaned_version, over_sampled, refused), with the members of the first and no
advantages. Of a group's decisions the last one counts; of a batch's groups none has a second one.

A refill is asked for by a fact, `refill_requested`: the slot, the attempt to be replaced, which
refill it is, and by when the answer has to come. Whoever runs the group starts an attempt whose
`replaces` names the other. The group waits until the slot has a valid attempt, its refills are used
up, whoever opened the group is dead, or its deadline has passed. The judgement that the request
rests on is recorded with it.

Time closes what facts don't: a lease for producers that fell silent, a deadline for groups. It goes
by the log's clock, and only once the log was read to its end for a whole lease (`cut.LogClock`).

Judgement waits `evidence_wait_s` behind an error that would be the policy's fault, since errors of
its peers may still come and excuse it. The evidence is written out in `trajectory_judged`, and a
replay takes it from there.

A batch is put together when there are groups for it and fewer than `max_untaken_batches` wait for
the trainer; a group is decided for a batch while fewer than `max_untaken_groups` wait. Beyond that,
complete groups stay pending, and everything else goes on.
"""
