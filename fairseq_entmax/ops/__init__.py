"""Sparse mappings and losses in plain PyTorch; usable without fairseq."""

from .alpha import LearnedAlpha
from .budget import budget
from .linear_loss import linear_entmax_loss
from .loss import TokenLoss, entmax_loss, normmax_loss, token_entmax_loss
from .mapping import entmax, entmax15, sparsemax
from .normmax import normmax
from .structured import fusedmax, oscarmax, pnormmax

__all__ = [
    "LearnedAlpha",
    "TokenLoss",
    "budget",
    "entmax",
    "entmax15",
    "entmax_loss",
    "fusedmax",
    "linear_entmax_loss",
    "normmax",
    "normmax_loss",
    "oscarmax",
    "pnormmax",
    "sparsemax",
    "token_entmax_loss",
]
