"""Rules that objectives and optimizers keep, ours and plugins alike, as tests that anybody runs."""
