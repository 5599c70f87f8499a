"""Numbers printed in papers, as data: see README.md beside this file, and `unlearnbench.report.printed`."""
