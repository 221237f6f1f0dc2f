"""Text, and a tokenizer for it, that are the same on every machine and with every library.

Words are drawn from our own streams (numpy's generators may change), and the tokenizer is written
down, not trained.
"""

from string import ascii_lowercase

from tokenizers import Tokenizer, models, pre_tokenizers

from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.seeds import stream, uniforms

_TEXT = (
    "the array of rows holds tokens and their weights returns a copy unless axis is given where "
    "each value was read from memory in order model layer shape dtype "
    "stream index window default gradient"
)
FILLERS = _TEXT.split()
KEYWORDS = ("cat", "dog", "anna", "smith", "paris", "who", "query", "document")
VOCAB_SIZE = 8192
"""So large that the logits of a step are taken in several blocks."""
_SPECIAL = {"bos": "[CLS]", "eos": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
_UNKNOWN = "[UNK]"
_NUM_SPELLED = 5  # the last fillers are no tokens
_MOST_DRAWS = 50_000


class Draws:
    """Random numbers that only a name decides."""

    def __init__(self, name: str) -> None:
        self._values = iter(uniforms(stream(f"golden-{name}", 0), _MOST_DRAWS).tolist())

    def below(self, bound: int) -> int:
        """Return one of 0 to `bound - 1`."""
        return int(next(self._values) * bound)

    def words(self, fewest: int, most: int) -> list[str]:
        """Return words of which seven in ten follow from the one before: there is much to learn."""
        place, words = self.below(len(FILLERS)), []
        for _ in range(fewest + self.below(most - fewest + 1)):
            follows = self.below(10) < 7
            place = (7 * place + 3) % len(FILLERS) if follows else self.below(len(FILLERS))
            words.append(FILLERS[place])
        return words


def documents(name: str, count: int) -> list[tuple[str, str]]:
    """Return (id, text) pairs; every eighth document is longer than a row."""
    draws = Draws(name)
    return [
        (f"{name}/{number}", " ".join(draws.words(1, 30) if number % 8 else draws.words(60, 90)))
        for number in range(count)
    ]


def tokenizer() -> TextTokenizer:
    """Return a WordPiece of our words and of letters, filled up with entries that no text has."""
    words = (*FILLERS[:-_NUM_SPELLED], *KEYWORDS)
    pieces = [*_SPECIAL.values(), _UNKNOWN, *words]
    pieces += [letter for letter in ascii_lowercase if letter not in words]
    pieces += [f"##{letter}" for letter in ascii_lowercase]
    pieces += [f"[unused{number}]" for number in range(VOCAB_SIZE - len(pieces))]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    wordpiece = Tokenizer(models.WordPiece(vocabulary, unk_token=_UNKNOWN))
    wordpiece.pre_tokenizer = pre_tokenizers.Whitespace()
    return TextTokenizer(wordpiece, _SPECIAL)
