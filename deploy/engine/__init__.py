"""The real SGLang server on this machine: installed, started and stopped.

install.py      what `rollbook engine install` does; requirements*.txt
server.py       EngineServer: one server over one data directory
command.py      its command line and environment, with and without a GPU
guard.py        the process above it: no server survives the one that it belongs to
cpu/            on the server's PYTHONPATH where there is no GPU
tiny_model.py   a tiny random Qwen3, for tests and demonstrations
"""
