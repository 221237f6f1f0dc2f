"""From a study's settings to everything that it trains and scores, before anything runs."""
