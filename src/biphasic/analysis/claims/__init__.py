"""Claims: sentences with checks on a tidy table of scores.

`rows.py` makes the table and selects from it, `table.py` asks questions and answers them,
`check.py` decides, and `claim.py` defines claims of the paper and of users, checks them and shows
the results.
"""

from biphasic.analysis.claims.check import Check, Comparison
from biphasic.analysis.claims.claim import (
    Claim,
    ClaimResult,
    changed_verdicts,
    claim,
    claims_report,
    load_claims,
    paper_claims,
    restated,
)
from biphasic.analysis.claims.rows import bounds, nearest
from biphasic.analysis.claims.table import Table

__all__ = [
    "Check",
    "Claim",
    "ClaimResult",
    "Comparison",
    "Table",
    "bounds",
    "changed_verdicts",
    "claim",
    "claims_report",
    "load_claims",
    "nearest",
    "paper_claims",
    "restated",
]
