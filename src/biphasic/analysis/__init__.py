"""Analysis of records: tables, figures and reports, without torch."""
