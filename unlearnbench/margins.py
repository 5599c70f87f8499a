"""The restricted margin of MASC (arXiv:2606.02920), its hinges, the continuation cut and the violation rate.

Shared by the method's loss, the `violation` stop rule, which any method can take, and the metrics.

For answer token y_t with logits z, and a set S_t of alternative tokens that never holds y_t:

    m_t = beta z(y_t) - log sum_{v in S_t} exp(beta z(v))                 (form `tempered`, the paper's)
    m_t = z(y_t) - (1 / beta) log sum_{v in S_t} exp(beta z(v))           (form `smoothmax`)

A token violates when m_t > tau = log(rho / (1 - rho)): it then holds more than the share rho against its alternatives.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unlearnbench.errors import UserError

Form = Literal["tempered", "smoothmax"]


def tau_of(rho: float) -> float:
    """The margin above which the target token holds more than the share `rho` against its alternatives: logit(rho)."""
    return math.log(rho / (1 - rho))


def rho_of(tau: float) -> float:
    """The share that a margin stands for, the inverse of `tau_of`: sigmoid(tau)."""
    return 1 / (1 + math.exp(-tau))


# -- alternatives and margins ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rivals:
    """Alternative tokens per position: ids [..., K], and which of them count, bool [..., K] (at least one does)."""

    tokens: Tensor
    kept: Tensor


def rivals(logits: Tensor, targets: Tensor, k: int, within: float | None = None) -> Rivals:
    """The k most likely tokens other than the target, from logits [..., V], targets [...]; at most V - 1.

    `within`: only those whose logit lies at most that far below the best alternative's.
    """
    logits = logits.detach()
    values, tokens = logits.topk(min(k + 1, logits.shape[-1]), dim=-1)
    kept = tokens != targets.unsqueeze(-1)
    kept[..., k:] &= ~kept[..., :k].all(-1, keepdim=True)  # the target is not among the first k: one too many
    if within is not None:
        best = values.masked_fill(~kept, -torch.inf).amax(-1, keepdim=True)
        kept &= values >= best - within
    return Rivals(tokens, kept)


def margin(target: Tensor, alternatives: Tensor, beta: float = 1.0, form: Form = "tempered") -> Tensor:
    """The margin [...] from the target's logits [...] and its alternatives' [..., K]; -inf: not an alternative.

    Log-probabilities do as well as logits: a shift of both changes nothing.
    """
    aggregate = torch.logsumexp(beta * alternatives, dim=-1)
    return beta * target - aggregate if form == "tempered" else target - aggregate / beta


@dataclass(frozen=True)
class Margin:
    """A margin with its settings; the alternatives are the k best tokens of the policy's `own` or the `reference`."""

    k: int = 10
    beta: float = 1.0
    alternatives: Literal["own", "reference"] = "own"
    within: float | None = None
    form: Form = "tempered"

    def __call__(self, logits: Tensor, targets: Tensor, reference_logits: Tensor | None = None) -> Tensor:
        """Margins [...] of targets [...] under logits [..., V]; only `logits` get a gradient."""
        ranked = logits if self.alternatives == "own" else reference_logits
        if ranked is None:
            raise UserError("The margin takes its alternatives from the reference, but no reference is there.")
        chosen = rivals(ranked, targets, self.k, self.within)
        scores = logits.gather(-1, chosen.tokens).masked_fill(~chosen.kept, -torch.inf)
        return margin(logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1), scores, self.beta, self.form)


# -- penalties -------------------------------------------------------------------------------------------------


def buffered_hinge(margins: Tensor, tau: float, eta: float) -> Tensor:
    """max(0, m - (tau - eta)) / eta: at least 1 where a token violates, 0 from eta below the threshold on."""
    return torch.relu(margins - (tau - eta)) / eta


def hinge(margins: Tensor, tau: float) -> Tensor:
    """max(0, m - tau)."""
    return torch.relu(margins - tau)


def sigmoid_hinge(margins: Tensor, tau: float, softness: float) -> Tensor:
    """sigmoid((m - tau) / softness) max(0, m - tau); the sigmoid has a gradient too."""
    return torch.sigmoid((margins - tau) / softness) * torch.relu(margins - tau)


# -- the continuation: which answer tokens are active ----------------------------------------------------------


def continuation(mask: Tensor, ratios: Tensor, min_prefix: int, min_suffix: int) -> Tensor:
    """The answer tokens after a cut, bool [B, L], from the answer mask [B, L] and the cut ratios (B,).

    With n answer tokens the first floor(ratio n) are left out, clipped to [min_prefix, n - min_suffix]; an answer
    shorter than min_prefix + min_suffix counts whole.
    """
    n = mask.sum(1)
    cut = torch.floor(ratios.to(mask.device) * n).long()
    cut = torch.minimum(cut.clamp(min=min_prefix), n - min_suffix)
    cut = torch.where(n < min_prefix + min_suffix, 0, cut)
    order = mask.cumsum(1) - 1  # 0 for the first answer token of a row
    return mask & (order >= cut.unsqueeze(1))


def spread(unit: Sequence[float], cut: tuple[float, float]) -> Tensor:
    """Cut ratios (B,) from numbers in [0, 1]: lo + u (hi - lo)."""
    low, high = cut
    return low + torch.tensor(unit, dtype=torch.float64) * (high - low)


def fixed_unit(source: int, window: int = 0, salt: int = 0) -> float:
    """A number in [0, 1] for a row: the low 32 bits of three products xor-ed, over 2^32 - 1 (the authors' formula)."""
    # The products are small for small numbers: neighbouring rows get nearly the same cut.
    mixed = ((source + 1) * 1000003) ^ ((window + 1) * 9176) ^ ((salt + 1) * 2654435761)
    return (mixed & 0xFFFFFFFF) / 0xFFFFFFFF


def drawn_unit(seed: int, row_id: str, step: int) -> float:
    """A pseudo-random number in [0, 1) for a row at a step, whatever the batch and the process."""
    digest = hashlib.blake2b(f"{seed}:{step}:{row_id}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


# -- rates -----------------------------------------------------------------------------------------------------


def violation_rate(margins: Tensor, tau: float, active: Tensor) -> Tensor:
    """Share of active tokens with margin > tau, per row (B,), from margins, active [B, L]; nan where none is active."""
    return ((margins > tau) & active).sum(-1) / active.sum(-1)


def log_reproduction_bound(rate: float, mean_length: float, rho: float) -> float:
    """Proposition 1 in log-probability: an answer of which at most the share `rate` of its active tokens violates is
    reproduced word for word with probability at most rho^((1 - rate) n). Holds for beta = 1; n = active tokens."""
    return (1 - rate) * mean_length * math.log(rho)
