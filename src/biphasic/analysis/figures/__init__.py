"""Figures: functions turn scores or records into a `Chart` (plain data); `draw` draws any chart.

- `chart`: the data of a figure; its colours and styles are in `palette.py` of the base.
- `choose`: selects the models of a figure of scores, and makes its chart.
- `factors`, `progress`, `rates`, `losses`, `tuning`: the figures.
- `catalog`: all figures of the paper, in its order.
- `draw`: draws a chart with matplotlib, and gives a figure as bytes.
- `strips`: one row per arm, as HTML in the report and as a figure.
"""
