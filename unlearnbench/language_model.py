"""`LanguageModel`: the one module that is prepared for devices, and through which every forward pass goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unlearnbench.errors import UserError

#: Architectures whose logits are exactly `head(decoder(x))`, so that the head can run on chosen positions only. All
#: others (soft-capped or scaled logits, recurrent models) take the plain path: full logits, then the positions.
HEAD_IS_LAST = frozenset({"llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox", "phi3", "gptj", "opt", "olmo2"})


class _Reached(Exception):
    """The wanted hidden layer is computed; the layers above it are not needed."""

    def __init__(self, hidden: Tensor):
        self.hidden = hidden


@dataclass(frozen=True)
class Reader:
    """Look at the logits of chosen positions piece by piece, so that they never exist all at once.

    `index` (N,) counts positions through the batch, b * T + t; `read` is called with logits [n, V] (n <= `chunk`) and
    the number of the first of them in `index`.
    """

    index: Tensor
    read: Callable[[Tensor, int], None]
    chunk: int


class LanguageModel(nn.Module):
    """A causal language model whose forward takes the positions, or the hidden layer, that are wanted.

    Wrappers (DDP, FSDP, LoRA, quantised layers) keep their hooks because nothing calls a submodule around this forward.
    """

    def __init__(self, hf: nn.Module):
        super().__init__()
        self.hf = hf

    @property
    def model(self) -> Any:
        """The transformers model itself, under a PEFT wrapper if there is one."""
        return self.hf.get_base_model() if hasattr(self.hf, "get_base_model") else self.hf

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def head_path(self) -> str:
        """`positions` (the head runs on wanted positions only) or `plain`: fixed by the architecture, recorded."""
        return "positions" if self.config.model_type in HEAD_IS_LAST else "plain"

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder's blocks. Raises `UserError` when the architecture has no list of them."""
        decoder = self.model.get_decoder()
        for name in ("layers", "h", "blocks"):
            blocks = getattr(decoder, name, None)
            if isinstance(blocks, nn.ModuleList):
                return blocks
        raise UserError(
            f"No list of decoder layers in a '{self.config.model_type}' model (looked for layers, h, blocks)."
        )

    def layer_index(self, layer: int | float) -> int:
        """The index of a block: an int is one already, a float in (0, 1] the share of the blocks up to it."""
        count = len(self.layers)
        index = layer if isinstance(layer, int) else max(1, round(layer * count)) - 1
        if not 0 <= index < count:
            raise UserError(
                f"There is no decoder layer {layer}: the model has {count}, numbered from 0 to {count - 1}."
            )
        return index

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor | None = None,
        positions: Tensor | None = None,
        hidden_layer: int | float | None = None,
        reader: Reader | None = None,
    ) -> Tensor:
        """Logits [B, T, V]; with `positions` [B, L] only those [B, L, V]; with `hidden_layer` its output [B, T, D].

        Half-precision logits are returned in float32. Blocks above `hidden_layer` are not computed. With a `reader`
        the logits go to it and an empty tensor comes back.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "use_cache": False}
        if position_ids is not None:
            inputs["position_ids"] = position_ids
        if hidden_layer is not None:
            return self._hidden(self.layer_index(hidden_layer), inputs)
        if reader is not None:
            return self._read(inputs, reader)
        if positions is not None and self.head_path == "positions":
            hidden = self.model.get_decoder()(**inputs)[0]
            wanted = hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
            return _at_least_float32(self.model.get_output_embeddings()(wanted))
        logits = _at_least_float32(self.hf(**inputs).logits)
        if positions is None:
            return logits
        return logits.gather(1, positions.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))

    def _read(self, inputs: dict[str, Any], reader: Reader) -> Tensor:
        if self.head_path == "positions":
            states, head = self.model.get_decoder()(**inputs)[0], self.model.get_output_embeddings()
        else:
            states, head = self.hf(**inputs).logits, nn.Identity()
        wanted = states.flatten(0, 1)
        for first in range(0, len(reader.index), reader.chunk):
            piece = wanted[reader.index[first : first + reader.chunk]]
            reader.read(_at_least_float32(head(piece)), first)
        return states.new_empty(0)

    def _hidden(self, layer: int, inputs: dict[str, Any]) -> Tensor:
        def stop(_module: nn.Module, _args: Any, output: Any) -> None:
            raise _Reached(output[0] if isinstance(output, tuple) else output)

        handle = self.layers[layer].register_forward_hook(stop)
        try:
            self.model.get_decoder()(**inputs)
        except _Reached as reached:
            return reached.hidden
        finally:
            handle.remove()
        raise RuntimeError(f"decoder layer {layer} was not run")


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


@contextmanager
def evaluating(lm: nn.Module, inference: bool = False) -> Iterator[None]:
    """Eval mode without gradients (`inference`: in inference mode); the mode of every submodule is restored."""
    modes = [(module, module.training) for module in lm.modules()]
    lm.eval()
    try:
        with torch.inference_mode() if inference else torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
