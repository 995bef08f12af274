"""Processes of this machine: their trees, locks between them, calls that end in time, failpoints of tests."""
