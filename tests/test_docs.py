"""The pages in `docs`: every command on them runs, every option exists, every link leads somewhere, pictures are small.

The blocks of bash and Python on a page run one after the other in one folder, on a toy corpus, with shortened training.
A line before a block says otherwise: `<!-- not run: why -->`, or `<!-- tested: WHERE -->` when another test runs it.
"""

import argparse
import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import commands
import pytest
import torch

from fairseq_entmax.__main__ import main
from fairseq_entmax.output import ALPHA_KEY

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
SMALL = "--encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-hidden-size 16 --decoder-hidden-size 16 --lr 0.01"
SHORTER = {
    "train": [*SMALL.split(), "--max-epoch", "2", "--cpu", "--num-workers", "0", "--seed", "1"],
    "generate": ["--cpu", "--num-workers", "0"],
    "interactive": ["--cpu"],
}


def blocks(page):
    """(line number, marker, language, code) of each block of bash or Python on a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found, start = [], None
    for i, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = i
            continue
        language = lines[start][3:].strip()
        marker = next((text for text in reversed(lines[:start]) if text.strip()), "")
        if language in ("bash", "sh", "shell", "console", "python"):
            marker = re.fullmatch(r"<!-- (.*) -->", marker)
            found.append((start + 1, marker and marker.group(1), language, "\n".join(lines[start + 1 : i])))
        start = None
    assert start is None, f"{page}: a block that does not end"
    return found


def run_bash(code):
    """Runs commands in the current folder: fairseq's and ours in this process, all others by bash."""
    code = code.replace('"$(python -m fairseq_entmax user-dir)"', shlex.quote(commands.USER_DIR))
    for line in code.replace("\\\n", " ").splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        before, _, last = line.rpartition(" | ")
        typed = subprocess.run(["bash", "-c", before], capture_output=True, text=True, check=True).stdout
        words = shlex.split(last)
        with mock.patch.object(sys, "stdin", io.StringIO(typed)):
            run_words(words, last)


def run_words(words, line):
    if words[0].startswith("fairseq-"):
        command = words[0][len("fairseq-") :]
        print(commands.run(command, *words[1:], *SHORTER.get(command, [])))
    elif words[:3] == ["python", "-m", "fairseq_entmax"]:
        assert main(words[3:]) == 0
    else:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        subprocess.run(["bash", "-euo", "pipefail", "-c", line], check=True, env={**os.environ, "PATH": path})


@pytest.fixture(scope="module")
def loaded(corpus, trained):
    """`models` and a `sample`, which Python code on the pages takes as given."""
    from fairseq import checkpoint_utils

    from fairseq_entmax.outputs import decoding_task

    task = decoding_task(corpus)
    models, _ = checkpoint_utils.load_model_ensemble([str(trained)], task=task)
    lines = [task.source_dictionary.encode_line(text, add_if_not_exist=False).long() for text in ("a b c", "d e")]
    dataset = task.build_dataset_for_inference(lines, [len(line) for line in lines])
    return models, dataset.collater([dataset[0], dataset[1]])


@pytest.fixture
def workshop(tmp_path, trained, monkeypatch):
    """A folder with the text and data that the pages speak of."""
    monkeypatch.chdir(tmp_path)
    for folder in ("text", "data"):
        commands.write_corpus(tmp_path / folder, {"train": 150, "valid": 10, "test": 10}, shortest=3, longest=9)
    checkpoint = torch.load(trained, map_location="cpu")
    # As a fork would have saved it that changed fairseq's criterion in place.
    del checkpoint["task_state"][ALPHA_KEY]
    checkpoint["cfg"]["criterion"] = {"_name": "label_smoothed_cross_entropy", "label_smoothing": 0.1}
    torch.save(checkpoint, tmp_path / "checkpoint.pt")
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_runs(page, corpus, workshop, loaded, capsys):
    namespace = dict(zip(("models", "sample"), loaded))
    for line, marker, language, code in blocks(page):
        if marker and re.match(r"(not run|tested|test|ci): ", marker):
            continue
        if "other.jsonl" in code:  # a second run
            shutil.copy("certificates.jsonl", "other.jsonl")
        try:
            if language == "python":
                exec(compile(code, f"{page.name}:{line}", "exec"), namespace)
            else:
                run_bash(code)
        except (Exception, SystemExit) as error:
            printed = "".join(capsys.readouterr())[-2000:]
            pytest.fail(f"{page.name}, line {line}: {type(error).__name__}: {error}\n{code}\n{printed}")
    if page.stem == "guide":
        check_guide(workshop)
    if page.stem == "migrating":
        check_converted(workshop / "converted.pt", corpus)


def check_guide(folder):
    """What the guide promises lies there."""
    assert "\u2581" in (folder / "data" / "train.src").read_text(encoding="utf-8")  # pieces
    assert len(commands.records(folder / "certificates.jsonl")) == 10
    assert "candidates" in commands.records(folder / "certificates.jsonl")[0]["hypotheses"][0]
    for made in ("report/index.html", "report/images/support.png", "comparison/images/sentence-0-tree.svg"):
        assert (folder / made).stat().st_size > 1000
    assert "word_accuracy" in (folder / "train.jsonl").read_text()


def check_converted(path, data):
    import fairseq_entmax
    from fairseq_entmax.output import output_alpha

    assert [output_alpha(model) for model in fairseq_entmax.load(str(path), data=str(data)).models] == [1.5]


def anchors(page):
    """Names of a page's headings, as they are in addresses."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_links_lead_somewhere_and_pictures_are_small(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith(("http:", "https:")):
            continue
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        assert path.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(path), f"{page.name}: {target}"
        if path.suffix in (".png", ".svg"):
            assert path.stat().st_size < 200_000, f"{page.name}: {target}"


@pytest.fixture(scope="module")
def known_options():
    """Every long option of fairseq's commands, of its registered parts, and of ours."""
    from fairseq import options, registry, tasks
    from fairseq.dataclass.utils import gen_parser_from_dataclass
    from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY

    from fairseq_entmax.__main__ import _parser

    parsers = [options.get_training_parser(), options.get_generation_parser(), options.get_preprocessing_parser()]
    parsers += [options.get_interactive_generation_parser(), options.get_validation_parser()]
    parsers += [sub for action in _parser()._subparsers._group_actions for sub in action.choices.values()]
    parts = [part for kind in registry.REGISTRIES.values() for part in kind["registry"].values()]
    parts += [*tasks.TASK_REGISTRY.values(), *MODEL_REGISTRY.values(), *ARCH_MODEL_REGISTRY.values()]
    for part in parts:
        parser = argparse.ArgumentParser(add_help=False, conflict_handler="resolve", allow_abbrev=False)
        with contextlib.suppress(Exception):  # parts of fairseq that need what is not installed
            if getattr(part, "__dataclass", None) is not None:
                gen_parser_from_dataclass(parser, getattr(part, "__dataclass")())  # noqa: B009
            elif hasattr(part, "add_args"):
                part.add_args(parser)
        parsers.append(parser)
    return {name for parser in parsers for action in parser._actions for name in action.option_strings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_every_option_that_is_named_exists(page, known_options):
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"(?m)^.*(pip install|pip uninstall|\w+\.sh|prepare_\w+\.py|benchmarks/).*$", "", text)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]+", text))
    assert named - known_options - OTHERS == set()


# Options of the recipes, of torch's launcher and of hydra.
OTHERS = {"--help", "--softmax", "--quick", "--wheel", "--tables"}
OTHERS |= {"--dist"}  # of pytest, in the README
OTHERS |= {"--nproc_per_node", "--nnodes", "--node_rank", "--master_addr", "--master_port"}
OTHERS |= {"--config-dir", "--config-name"}
OTHERS |= {"--alpha", "--loss-alpha", "--eval-levenshtein"}  # of a fork that one can come from


def test_figures_appear_in_progress_bar_tensorboard_and_json(corpus, tmp_path, monkeypatch):
    """What the guide says of logging, with a writer that keeps what TensorBoard would get."""
    from fairseq.logging import progress_bar

    written = {}

    class Writer:
        def __init__(self, folder):
            self.subset = Path(folder).name

        def add_text(self, *args):
            pass

        def add_scalar(self, name, value, step):
            written.setdefault(self.subset, {})[name] = value

        def flush(self):
            pass

        close = flush

    monkeypatch.setattr(progress_bar, "SummaryWriter", Writer)
    monkeypatch.setattr(progress_bar, "_tensorboard_writers", {})
    figures = {"loss", "token_accuracy", "support", "gold_outside", "attention_alpha"}
    decoded = {"word_accuracy", "edit_distance", "complete", "optimal"}
    options = ["--tensorboard-logdir", tmp_path / "tb", "--eval-accuracy", "--learn-attention-alpha"]
    options += ["--log-interval", 2]
    (entry,) = commands.train(corpus, tmp_path / "run", *options)
    assert figures | decoded <= set(written["valid"]) and figures <= set(written["train"]) & set(written["train_inner"])
    assert {f"valid_{name}" for name in figures | decoded} <= set(entry)

    shown = io.StringIO()  # the bar that is drawn over itself in a terminal
    shown.isatty = lambda: True
    with contextlib.redirect_stderr(shown):
        commands.train(corpus, tmp_path / "bar", "--log-format", "tqdm", "--log-interval", 2)
    assert re.search(r"support=[\d.]+, gold_outside=[\d.]+", shown.getvalue()), shown.getvalue()[-500:]


def test_every_module_that_registers_a_name_has_an_api_page():
    modules = (ROOT / "docs" / "build_api.py").read_text()
    for path in (ROOT / "fairseq_entmax").glob("*.py"):
        if re.search(r"^@register_", path.read_text(), re.M):
            assert f'"fairseq_entmax.{path.stem}"' in modules, path.name


def test_api_pages_are_built_from_the_docstrings(tmp_path):
    pytest.importorskip("pdoc", reason="pip install 'fairseq-entmax[docs]'")
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "build_api.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "fairseq_entmax" / "ops.html").read_text(encoding="utf-8")
    assert "entmax_loss" in page and "label_smoothing" in page
    assert not (tmp_path / "fairseq_entmax" / "ops" / "kernels.html").exists()
    assert 'id="load"' in (tmp_path / "fairseq_entmax" / "hub.html").read_text(encoding="utf-8")
