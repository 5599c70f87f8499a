"""The pages of docs/ that are made from the code: methods, metrics and what else is registered.

    python -m unlearnbench.pages --out docs        # `make docs` does this before it builds the site

What a page says comes from the registries, the classes and their docstrings; what a method costs is counted, and the
result of a worked example is computed, when the page is made.
"""
