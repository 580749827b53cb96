"""Sparse mappings and losses in plain PyTorch; usable without fairseq."""

from .loss import TokenLoss, entmax_loss, token_entmax_loss
from .mapping import entmax, entmax15, sparsemax
from .structured import fusedmax, oscarmax, pnormmax

__all__ = [
    "TokenLoss",
    "entmax",
    "entmax15",
    "entmax_loss",
    "fusedmax",
    "oscarmax",
    "pnormmax",
    "sparsemax",
    "token_entmax_loss",
]
