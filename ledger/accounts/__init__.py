"""What is asked of a book, over the rows of its views: intervals, comparisons, alerts, reports.

Everything but `outcomes.py` and `reports.py`, which run queries, is pure.
"""
