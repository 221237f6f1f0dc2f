"""Encoders fine-tuned on tasks outside of any study: scored, or kept."""
