"""Replay: a run that a file records, repeated elsewhere and compared to the bit."""
