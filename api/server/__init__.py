"""`rollbook serve`: one process that owns the book and answers for it (serving.py).

owner.py      the book, its projector, where it stands    snapshot.py     copies of its file
reading.py    one consistent look at the book             as_of.py        the book as it was
desk.py       from a question to an answer                answers.py      kept by position
pages.py      filters and pages                           places.py       positions as text
rows.py       models of rows, from the views              posted.py      facts as JSON, checked
conflicts.py  facts under an id that the book has
access.py     the token       problems.py  errors         settings.py     [serve]
sql_guard.py sql_functions.py  which SQL only reads       sealed.py       a DuckDB that can't
sql_pool.py sql_child.py       /sql                       quack.py quack_child.py
reports.py trajectories.py groups.py accounts.py facts.py stream.py sql.py operation.py
                               the endpoints
"""
