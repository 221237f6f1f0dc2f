"""From records on disk to tables, figures and a report, without torch."""
