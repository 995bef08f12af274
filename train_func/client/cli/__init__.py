"""The commands of ``python -m train_func``: what a Job does in a notebook, for people, programs and agents."""

from train_func.client.cli.commands import main as main
