"""Metadata and dependencies. Reads the version as text, so that nothing has to be installed before the package."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent

REPORT = ["matplotlib>=3.6", "Jinja2>=3"]
DOCS = ["pdoc>=14"]
SUMMARISATION = ["rouge-score>=0.1.2"]
MOSES = ["sacremoses>=0.1"]


def read_version() -> str:
    text = (ROOT / "fairseq_entmax" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if found is None:
        raise RuntimeError('fairseq_entmax/__init__.py has no line like: __version__ = "1.2.3"')
    return found.group(1)


def read_readme() -> str:
    readme = ROOT / "README.md"
    return readme.read_text(encoding="utf-8") if readme.exists() else ""


setup(
    name="fairseq-entmax",
    version=read_version(),
    description="Sparse sequence-to-sequence models for fairseq: entmax attention, losses and a certified beam search",
    long_description=read_readme(),
    long_description_content_type="text/markdown",
    license="MIT",
    license_files=["LICENSE"],
    packages=find_packages(include=["fairseq_entmax", "fairseq_entmax.*"]),
    package_data={"fairseq_entmax.report": ["page.html", "page.css", "page.js"]},
    python_requires=">=3.9,<3.13",
    install_requires=[
        "torch>=1.12",
        "numpy; python_version>='3.11'",
        "numpy<1.24; python_version<'3.11'",  # fairseq 0.12.2 uses names that later ones do not have
        # The released fairseq does not import on Python 3.11 and later; ve-fairseq is the same package repaired.
        "ve-fairseq==0.12.3; python_version>='3.11'",
        "hydra-core>=1.3.2,<1.4; python_version>='3.11'",  # ve-fairseq sets no upper bound, and 1.4 breaks it
        "fairseq==0.12.2; python_version<'3.11'",
        "sacrebleu>=2,<3",
        "sentencepiece",
    ],
    extras_require={
        "test": [
            "pytest>=7",
            "pytest-xdist>=3",
            "hypothesis>=6",
            "ruff==0.17.6",
            "entmax==1.3",
            # The kernels are tested in its interpreter; they need torch 2.4.
            "triton>=3.6; platform_system=='Linux' and python_version>='3.11'",
            *REPORT,
            *DOCS,
            *SUMMARISATION,
            *MOSES,
        ],
        "triton": ["triton>=3.6; platform_system=='Linux'"],
        "report": REPORT,
        "docs": DOCS,
        # For recipes: ROUGE, and the tokens and casing of Moses that papers score.
        "summarisation": SUMMARISATION,
        "moses": MOSES,
    },
    classifiers=[
        "License :: OSI Approved :: MIT License",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.9",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
