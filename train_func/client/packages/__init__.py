"""Packages of the workers: what their image holds, what a function lacks there, and the wheels that bring it."""
