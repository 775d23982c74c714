"""The parts of `ledger.recorder`: from a caller's queue to the log or the spool."""
