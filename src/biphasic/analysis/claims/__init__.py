"""Claims: sentences with checks on a tidy table of scores.

`rows.py` makes the table and `levels.py` selects from it, `table.py` has the questions,
`question.py` and `extreme.py` answer them, `check.py` decides, `claim.py` defines claims of the
paper and of users, `report.py` and `render.py` write results.
"""

from biphasic.analysis.claims.check import Check, Comparison
from biphasic.analysis.claims.claim import Claim, claim, load_claims, paper_claims
from biphasic.analysis.claims.levels import bounds, nearest
from biphasic.analysis.claims.report import ClaimResult, changed_verdicts, claims_report, restated
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
