"""Settings of the built-in methods beyond their presets that change what is computed."""

from __future__ import annotations

from typing import Any

CUT = {"min_prefix": 2, "min_suffix": 2}  #: the tiny answers are shorter than MASC's defaults, and count whole

#: without these a difference does not show in tiny answers that are known by heart
START: dict[str, dict[str, Any]] = {"masc": CUT, "simnpo": {"beta": 0.1}}

MORE: dict[str, list[dict[str, Any]]] = {
    "masc": [
        CUT,
        {"cut": None},
        {"cuts": "fixed", **CUT},
        {"cut": (0.5, 0.5), **CUT},
        {"alternatives": "reference", "within": 1.0, "k": 3},
        {"form": "smoothmax", "beta": 2.0},
        {"penalty": "hinge"},
        {"penalty": "sigmoid", "softness": 0.5},
        {"tau": 1.0},
    ],
    "pdu": [{"epsilon": 0.5, "retain": "kl"}, {"primal_dual": False}],
}
