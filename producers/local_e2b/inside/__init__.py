"""What runs inside a sandbox, on the standard library alone: it is sent there as source text.

agent.py  the sandbox's first process: spawns commands, reaps, watches limits
files.py  the files API, each operation in a forked child of the agent
"""
