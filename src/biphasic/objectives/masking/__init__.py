"""Which tokens are masked, and by what."""
