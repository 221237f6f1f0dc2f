"""How a forward pass is computed, and where."""
