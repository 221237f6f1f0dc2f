"""Job graphs: scheduling, worker processes and progress, independent of studies."""

TRIES = 3  # Attempts per job after transient failures.
