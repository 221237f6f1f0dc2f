"""Making pairs of texts: from files, tasks and documents, without the texts that judge models."""
