"""Zero-shot retrieval with sentence-transformers alone: no prompts, no training."""

from __future__ import annotations

from protocol import parse_options, run
from retrieval import load_model, read_texts, search


def main() -> None:
    options = parse_options(__doc__, is_trained=False)
    texts = read_texts(options.data, query="{text}", document="{title} {text}")
    model = load_model(options)
    run(options, None, lambda: search(model, texts, options))


if __name__ == "__main__":
    main()
