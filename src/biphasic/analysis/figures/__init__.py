"""Figures: a specification and frames of models and values become a `Chart`, which `draw` draws.

- `chart`: specifications, and the data of a figure; its colours and styles are in `palette.py` of
  the base.
- `catalog`: the figures of scores, in the order of the paper.
- `runs`: figures of losses and learning rates; `tuning`: those of a tuning.
- `strips`: one row per model.
- `draw`: draws a chart with matplotlib, and gives a figure as bytes.
"""
