"""Job graphs: scheduling, worker processes and progress, independent of studies."""
