"""Plans: everything that a study trains and scores, before it runs."""
