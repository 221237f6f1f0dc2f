"""A corpus built from its sources: selected, mixed, tokenised, checked."""
