"""`python -m fairseq_entmax`: what its help says, and mistakes that no other file has."""

import shutil
from pathlib import Path

import pytest
import torch

from fairseq_entmax.__main__ import COMMANDS, main


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_says_in_its_help_what_it_does(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    usage, about, *_ = capsys.readouterr().out.split("\n\n")
    assert (
        stop.value.code == 0 and usage.startswith("usage: ") and about.split()[0] in ("print", "check", "show", "draw")
    )


@pytest.mark.parametrize(
    "model, data, says",
    [
        ("none.pt", "CORPUS", "MODEL: no such file: none.pt"),
        ("MODEL:", "CORPUS", "MODEL: no such file: "),
        ("MODEL", "nowhere", "DATA: no such folder: nowhere"),
        (
            "MODEL",
            "text",
            "DATA: wanted a folder that fairseq-preprocess wrote, with dict.SOURCE.txt and dict.TARGET.txt",
        ),
        ("text/empty", "CORPUS", "MODEL text/empty cannot be used with DATA CORPUS: EOFError"),
        ("text/words", "CORPUS", "MODEL text/words cannot be used with DATA CORPUS: "),
        ("text/array", "CORPUS", "MODEL text/array cannot be used with DATA CORPUS: "),
        ("MODEL", "other", "MODEL MODEL cannot be used with DATA other: "),
        ("MODEL", "dictionaries", "MODEL MODEL cannot be used with DATA dictionaries: Could not infer language pair"),
    ],
)
def test_mistakes_of_suggest_are_one_line(model, data, says, corpus, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("text", "other", "dictionaries"):
        (tmp_path / folder).mkdir()
    (tmp_path / "text" / "empty").touch()
    (tmp_path / "text" / "words").write_text("no checkpoint\n")
    torch.save({"weights": torch.zeros(2)}, tmp_path / "text" / "array")
    for file in Path(corpus).glob("dict.*"):
        shutil.copy(file, tmp_path / "dictionaries")
    for file in Path(corpus).glob("*"):
        shutil.copy(file, tmp_path / "other")
    for dictionary in (tmp_path / "other").glob("dict.*.txt"):
        dictionary.write_text("".join(f"word{i} 1\n" for i in range(20)))
    paths = {"MODEL": str(trained), "CORPUS": str(corpus), "MODEL:": f"{trained}:"}
    with pytest.raises(SystemExit) as stop:
        main(["suggest", paths.get(model, model), paths.get(data, data)])
    message = str(stop.value)
    says = says.replace("MODEL MODEL", f"MODEL {trained}").replace("CORPUS", str(corpus))
    assert message.startswith(f"python -m fairseq_entmax suggest: error: {says}") and "\n" not in message
