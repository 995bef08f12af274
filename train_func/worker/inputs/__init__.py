"""Inputs: found, brought to this machine, read, fingerprinted, kept in its cache."""
