"""Parts of `producers/sandbox.py` and `producers/sandbox_pool.py`.

settings.py   what can be set
calls.py      deadlines and limits around the SDK's calls
command.py    a command as it is sent, and its outputs (pure)
run.py        one command, until none of its processes is left
evidence.py   what is known about a sandbox when it fails
owner.py      whose a sandbox is, by its metadata
backend.py    create, kill, list
custody.py    what may be up on our account, until it is certainly dead
check.py      whether sandboxes can be had at all
"""
