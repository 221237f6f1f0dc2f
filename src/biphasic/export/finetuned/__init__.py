"""Fine-tuned models as folders that work without biphasic."""
