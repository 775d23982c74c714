"""An E2B-compatible server for a developer's machine: the unmodified e2b SDK works against it.

__main__.py    the process: folder, lock, socket, signals
launch.py      starts and stops it as a child process
app.py         routes together: control.py, envd.py, envd_files.py; server.py what they share
store.py       slots, the queue for them, the sandboxes' time
box.py         one sandbox; channel.py its socket, process.py a command's output
isolation.py   bubblewrap's arguments; bundle.py what starts inside
inside/        the sandbox's first process and the files API
templates.py   what a new sandbox holds
faults.py      which request meets which fault; fault_log.py the account of them
connect_wire.py, settings.py, leftovers.py
"""
