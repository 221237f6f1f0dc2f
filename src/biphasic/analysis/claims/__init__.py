"""Claims as data: sentences with checks, answered from a table of scores.

`language.py` is what a file may say; `rows.py`, `narrow.py` and `values.py` make the table that is
asked; `answers.py` asks; `verdict.py` decides; `report.py` writes it for people.
"""

from biphasic.analysis.claims.language import Claim
from biphasic.analysis.claims.load import claims_schema, load_claims, paper_claims
from biphasic.analysis.claims.report import (
    CheckResult,
    ClaimResult,
    ComparisonResult,
    changed_verdicts,
    claims_report,
    restated,
)

__all__ = [
    "CheckResult",
    "Claim",
    "ClaimResult",
    "ComparisonResult",
    "changed_verdicts",
    "claims_report",
    "claims_schema",
    "load_claims",
    "paper_claims",
    "restated",
]
