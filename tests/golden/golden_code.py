"""The code of each part as it is now, and the version that stands for it."""

from biphasic.numerics import Part, bytes_digest, code_digest, read_part
from biphasic.tasks.protocol import FINETUNING_VERSION
from biphasic.training.lineage import NUMERICS_VERSION

PART_VERSIONS: dict[Part, int] = {
    "pretraining": NUMERICS_VERSION,
    "finetuning": FINETUNING_VERSION,
}


def code_now(part: Part) -> tuple[str, str]:
    """Return the hash of a part's bytes and that of its code, both computed."""
    texts = read_part(part)
    return bytes_digest(texts), code_digest(texts)
