"""One optimizer step: rows, passes, gradients, update."""
