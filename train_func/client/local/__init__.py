"""Jobs as processes of this machine: the worker's program and environment are those of a cluster."""
