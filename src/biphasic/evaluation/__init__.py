"""Evaluation and fine-tuning of encoders outside of studies."""
