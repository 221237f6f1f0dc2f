"""Tables of pages in docs/ that tests compute again."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


def table_rows(page: str, marker: str) -> list[str]:
    """Return the rows of the table after a marker, without its head."""
    pattern = rf"<!-- {marker} -->\n\n(?:[^\n]*\n){{2}}(.*?)\n<!-- end -->"
    found = re.search(pattern, (DOCS / page).read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found[1].splitlines()
