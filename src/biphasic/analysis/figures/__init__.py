"""Figures: a function from scores or records to a `Chart`, which is data; one function draws all.

- `chart`: what a figure shows, before anything is drawn; `palette`: its colours and styles.
- `choose`: which models stand in one figure of scores, and the chart that they make.
- `factors`, `progress`, `rates`, `losses`, `tuning`: the figures themselves.
- `catalog`: all figures of the paper, in its order.
- `draw`: a chart as a matplotlib figure, from the parts in `frame`; `render`: a figure as bytes.
- `strips`: a row per arm, in the report as HTML and beside it as a figure.
"""
