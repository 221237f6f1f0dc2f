"""How far a study is, while it runs and afterwards."""
