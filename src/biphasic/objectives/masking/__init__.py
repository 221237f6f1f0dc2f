"""Masking: token selection and replacement."""
