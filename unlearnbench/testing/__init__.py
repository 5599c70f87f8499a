"""Public helpers for testing methods and metrics: tiny models of every architecture, rows, and the conformance
suite.
"""
