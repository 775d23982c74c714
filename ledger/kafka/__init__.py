"""The parts of `ledger.kafka_log`; only `client.py` imports kafka-python."""
