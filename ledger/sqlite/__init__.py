"""The parts of `ledger.sqlite_log`."""
