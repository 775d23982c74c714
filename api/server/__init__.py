"""`rollbook serve`: one process that owns the book and answers for it.

owner.py       the book, its projector, where it stands      snapshot.py  copies of its file
reading.py     one consistent look at the book               as_of.py     the book as it was
answers.py     answers kept by position                      pages.py     filters and pages
rows.py        rows as typed models, from the views          problems.py  errors
access.py      the token                                     settings.py  [serve]
sql_guard.py   which SQL only reads                          sealed.py    a DuckDB that can't
sql_pool.py, sql_child.py      /sql                          quack.py, quack_child.py
reports.py trajectories.py groups.py accounts.py facts.py stream.py operation.py   the endpoints
"""
