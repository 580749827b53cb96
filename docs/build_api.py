"""Builds the API pages from docstrings: `python docs/build_api.py DIR`; needs `pip install 'fairseq-entmax[docs]'`."""

import sys
import warnings
from pathlib import Path

# What users import. The kernels are an inner part, and importing them needs Triton.
MODULES = [
    "fairseq_entmax",
    "fairseq_entmax.ops",
    "fairseq_entmax.ops.compat",
    "fairseq_entmax.attention",
    "fairseq_entmax.outputs",
    "fairseq_entmax.certificate",
    "fairseq_entmax.criterion",
    "fairseq_entmax.entailment",
    "fairseq_entmax.entailment_task",
    "fairseq_entmax.generator",
    "fairseq_entmax.hub",
    "fairseq_entmax.lstm",
    "fairseq_entmax.transformer",
    "fairseq_entmax.output",
    "fairseq_entmax.plateau",
    "fairseq_entmax.records",
    "fairseq_entmax.report",
    "fairseq_entmax.scoring",
    "fairseq_entmax.task",
]


def build(folder: Path) -> None:
    """Write one HTML page a module to `folder`, which is made if it is not there."""
    import pdoc

    pdoc.render.configure(docformat="google", footer_text="fairseq-entmax")
    skip = "!fairseq_entmax\\.(?!(" + "|".join(name.partition(".")[2] for name in MODULES[1:]) + ")$)"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # a module that cannot be imported would be left out in silence
        warnings.filterwarnings("ignore", module="(hydra|torch)")
        pdoc.pdoc(MODULES[0], skip, output_directory=folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/build_api.py DIR")
    build(Path(sys.argv[1]))
    print(Path(sys.argv[1]) / "index.html")
