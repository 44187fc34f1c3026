"""One self-contained HTML page about a run or an experiment: it opens offline and loads nothing."""
