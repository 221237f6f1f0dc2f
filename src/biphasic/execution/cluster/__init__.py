"""Running jobs on clusters through Parsl."""
