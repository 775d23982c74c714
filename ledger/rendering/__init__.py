"""What is written from the fact classes: schemas, tables, calls, the reference page."""
