"""Inputs of a study: text, tasks and pretrained models."""
