"""Training of recipes: optimizer, schedule, loop, checkpoints and ledger."""
