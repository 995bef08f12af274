"""Alerts: events of a job that a person should hear of. The lead decides them, because it hears the whole group."""
