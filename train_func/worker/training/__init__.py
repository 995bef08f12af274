"""The training: one plan for all ranks, the Trainer that follows it, the audit, and loops of one's own."""
