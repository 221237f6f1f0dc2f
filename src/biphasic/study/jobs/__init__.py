"""The jobs that compute: tokenise, train, fine-tune."""
