"""Alerts: what a person should hear of a job without looking at it. The lead decides them: it hears the whole group."""
