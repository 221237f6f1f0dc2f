"""Claims: sentences with checks on a tidy table of scores.

`table.py` makes the table and selects rows, `ask.py` has the questions, `questions.py` and
`extreme.py` answer them, `check.py` decides, `claim.py` defines claims of the paper and of users,
`report.py` and `render.py` write results.
"""

from biphasic.analysis.claims.ask import Table
from biphasic.analysis.claims.check import Check
from biphasic.analysis.claims.claim import Claim, claim, load_claims, paper_claims
from biphasic.analysis.claims.questions import Comparison
from biphasic.analysis.claims.report import ClaimResult, changed_verdicts, claims_report, restated
from biphasic.analysis.claims.table import bounds, nearest

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
