"""The data: read, judged, divided, tokenised once."""
