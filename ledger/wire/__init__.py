"""Facts as bytes, and back. `ledger.avro` is the door."""
