"""Imports inside the package point one way: operations, then models, then decoding, then the task."""

import ast
from pathlib import Path

import fairseq_entmax

PACKAGE = Path(fairseq_entmax.__file__).parent

# Each module may import from its own row and from the rows above it.
LAYERS = [
    ["ops"],
    [
        "checkpoints",
        "compat_fairseq",
        "entailment_data",
        "generation_checks",
        "mappings",
        "plateau",
        "resume",
        "scoring",
    ],
    ["output"],
    ["attention", "fused_steps", "output_layer", "recurrence"],
    ["criterion"],
    ["lstm_options", "lstm", "transformer_attention", "transformer_options", "transformer"],
    ["entailment"],
    ["certificate", "constraints", "ensemble"],
    ["search_state", "search", "beam", "diverse", "exact_search"],
    ["hypotheses", "stock", "reference_scorer", "generator"],
    ["records", "outputs", "hub"],
    ["task", "entailment_task"],
    ["doctor", "options", "__main__", "__init__"],
]
LEVEL = {name: level for level, row in enumerate(LAYERS) for name in row}


def imported_modules(path):
    """Names of this package's modules that a file imports, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            yield from [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]


def test_every_module_has_its_layer_and_imports_point_one_way():
    files = sorted(PACKAGE.glob("*.py"))
    assert {path.stem for path in files} | {"ops"} == set(LEVEL)
    wrong = [
        f"{path.stem} imports {name}"
        for path in files
        for name in imported_modules(path)
        if LEVEL.get(name, 0) > LEVEL[path.stem]  # what is no module is a name of the package itself
    ]
    assert wrong == []


def test_operations_import_nothing_above_them():
    for path in sorted((PACKAGE / "ops").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                assert not any(alias.name.split(".")[0] in ("fairseq", "fairseq_entmax") for alias in node.names), path
            if isinstance(node, ast.ImportFrom):
                assert node.level < 2 and (node.module or "").split(".")[0] not in ("fairseq", "fairseq_entmax"), path
