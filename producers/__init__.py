"""Who writes: the agent loop and its engine and sandbox clients, tasks, and the monitor.

rollout.py    groups of attempts, a limit on those in flight        facts: group_opened
agent.py      one attempt from task to reward                       trajectory_*, tool_call_*
turns.py      one request to the engine, tried again where it fails  turn_*
engine.py     the client of one SGLang server; engine_pool.py: of several
sandbox*.py   sandboxes through the e2b SDK                         sandbox_*
tasks/        what is attempted: micro_repair, SWE-bench style instances
local_e2b/    an E2B-compatible server for a developer's machine
monitor.py    engines and pools, sampled                            engine_sampled, pool_sampled
"""
