"""Claims: sentences with checks, answered from a tidy table of scores.

`table.py` makes the table, `levels.py` says which rows are meant, `questions.py` asks, `check.py`
decides, `claim.py` has the claims of the paper and of people, `report.py` and `render.py` write.
"""

from biphasic.analysis.claims.check import Check
from biphasic.analysis.claims.claim import Claim, Table, claim, load_claims, paper_claims
from biphasic.analysis.claims.levels import bounds, nearest
from biphasic.analysis.claims.questions import Comparison
from biphasic.analysis.claims.report import ClaimResult, changed_verdicts, claims_report, restated

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
