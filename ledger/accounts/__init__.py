"""What is asked of a book, over the rows of its views: intervals, comparisons, alerts, reports.

Arithmetic is pure (`intervals.py`, `paired.py`, `compare.py`, `quality.py`). `outcomes.py`,
`sides.py`, `compare_quality.py`, `alerts.py` and `reports.py` also run the queries that it is over.
"""
