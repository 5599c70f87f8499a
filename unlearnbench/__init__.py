"""unlearnbench: compare methods that make a language model forget chosen training data."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"

# A source checkout keeps methods/, metrics/ and experiments/ beside this folder: make them importable as
# unlearnbench.methods and so on without installation.
_root = Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").is_file() and (_root / "methods" / "__init__.py").is_file():
    __path__.append(str(_root))
