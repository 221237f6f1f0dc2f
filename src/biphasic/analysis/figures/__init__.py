"""Figures: specifications and frames of scores or losses become a `Chart`, which `draw` draws.

- `chart`: the data of a figure; its colours and styles are in `palette.py` of the base.
- `catalog`: the figures of scores as specifications, and all figures of the paper in its order.
- `runs`, `tuning`: figures of losses and learning rates.
- `draw`: draws a chart with matplotlib, and gives a figure as bytes.
- `strips`: one row per arm.
"""
