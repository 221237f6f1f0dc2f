"""Jobs: tokenise a corpus, train, fine-tune."""
