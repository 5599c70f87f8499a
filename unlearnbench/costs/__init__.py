"""What an experiment will cost: FLOPs, seconds and memory of each stage, before anything runs (docs/cost-model.md)."""

from __future__ import annotations

from unlearnbench.costs.estimate import Estimate, Estimator
from unlearnbench.costs.hardware import MACHINES, Machine, machine

__all__ = ["MACHINES", "Estimate", "Estimator", "Machine", "machine"]
