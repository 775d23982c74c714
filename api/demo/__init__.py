"""The demo: the whole loop on one machine, every part of it real.

plan.py       what was asked for, where it lies, and how far it has come
children.py   the command line of each part; services.py  of the servers among them
run.py        the order of things: services, evaluation, training, evaluation
progress.py   what the log says while it runs: a fold
display.py    that, on a terminal or as lines
summary.py    the accounts at the end, from the book's views, as one object
accounts.py   the same as tables; page.py  as docs/DEMO.md
"""
