"""`python -m fairseq_entmax report`: what a model did, as one HTML page and pictures.

Nothing here needs fairseq or torch.
"""

from .build import build_report

__all__ = ["build_report"]
