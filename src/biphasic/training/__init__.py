"""Trains states from recipes: optimizer, schedule, loop, checkpoints and ledger."""
