"""What client and workers tell each other, and where it lies in the store: typed data of both sides."""
