"""The model a run starts from: found, judged, loaded."""
