"""Making pairs of texts: from files, tasks and documents, without the texts of evaluation tasks."""
