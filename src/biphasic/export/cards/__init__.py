"""Model cards: content and provenance of a model."""
