"""From a recipe to a state: optimizer, schedule, loop, checkpoints and ledger."""
