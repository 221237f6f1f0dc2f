"""Tasks as token sequences: loss and scores of each kind."""
