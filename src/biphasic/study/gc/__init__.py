"""What a store holds that no study needs, and deleting it."""
