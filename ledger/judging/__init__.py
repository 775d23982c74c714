"""Parts of judgement: what is observed, what peers say, and the numbered rule sets."""
