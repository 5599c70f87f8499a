"""4-bit quantisation (NF4, bitsandbytes): does what was forgotten come back when the weights are rounded?"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn
from transformers.pytorch_utils import Conv1D

from unlearnbench.attacks.base import Attack, attacks
from unlearnbench.errors import UserError
from unlearnbench.language_model import LanguageModel
from unlearnbench.models import merge_lora


@attacks.register("4bit", title="4-bit (NF4)", version=1)
class FourBit(Attack):
    """Round every linear layer to 4 bits, block by block; an adapter is merged first, in the precision of the weights.

    The output head is rounded too unless it shares its weights with the embedding, which stays as it is.
    """

    kind: Literal["nf4", "fp4"] = Field("nf4", description="the sixteen values a weight may take")
    block_size: int = Field(64, ge=32, description="weights that share a scale")

    def apply(self, lm: LanguageModel) -> tuple[LanguageModel, dict[str, Any]]:
        """See `Attack.apply`. The record names how many layers and which share of the parameters were rounded."""
        try:
            import bitsandbytes as bnb
        except ImportError as error:
            raise UserError("The attack '4bit' needs bitsandbytes: pip install 'unlearnbench[quant]'.") from error
        lm = merge_lora(lm)
        tied = lm.model.get_output_embeddings() if _is_tied(lm) else None
        rounded = total = layers = 0
        with torch.no_grad():
            for parent in list(lm.modules()):
                for name, layer in list(parent.named_children()):
                    if layer is tied or not isinstance(layer, (nn.Linear, Conv1D)):
                        continue
                    weight = layer.weight.t().contiguous() if isinstance(layer, Conv1D) else layer.weight
                    new = bnb.nn.Linear4bit(
                        weight.shape[1],
                        weight.shape[0],
                        bias=layer.bias is not None,
                        compute_dtype=weight.dtype,
                        quant_type=self.kind,
                    )
                    new.weight = bnb.nn.Params4bit(
                        weight.detach().clone(), requires_grad=False, quant_type=self.kind, blocksize=self.block_size
                    )
                    if layer.bias is not None:
                        new.bias = layer.bias
                    setattr(parent, name, new.to(weight.device))
                    layers += 1
                    rounded += weight.numel()
        if not layers:
            raise UserError("The attack '4bit' found no linear layer to round.")
        total = rounded + sum(p.numel() for p in lm.parameters() if p.dtype.is_floating_point)
        return lm.eval(), {"layers": layers, "share_of_parameters": rounded / total, "head_rounded": tied is None}


def _is_tied(lm: LanguageModel) -> bool:
    head = lm.model.get_output_embeddings()
    return head is not None and head.weight is lm.model.get_input_embeddings().weight
