"""The contract of an attack."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from unlearnbench.language_model import LanguageModel
from unlearnbench.registry import Registry

attacks: Registry = Registry("attack", package="unlearnbench.attacks")


class Attack(BaseModel):
    """Frozen options of an attack."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    registered_name: ClassVar[str] = ""
    version: ClassVar[int] = 1

    def apply(self, lm: LanguageModel) -> tuple[LanguageModel, dict[str, Any]]:
        """The attacked model (`lm` may be changed in place) and what was done, for the record. Raises when nothing
        was.
        """
        raise NotImplementedError
