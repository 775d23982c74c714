"""The live page at `/`: what a person sees of a served book.

home.py        the page itself, the way in with a token, its scripts and styles
panels.py      what each panel asks of the book, with the SQL that was asked
alerts.py      what is over its threshold just now
sql/           one query for each panel
templates/     the shell; it names no run and no figure
static/        one script for each panel, and one style sheet; no build step
"""
