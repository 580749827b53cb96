"""Certificate records for the tests of the report, and a way to write them to files."""

import json
import math


def hypothesis(text, probability, support=None, attention=None, candidates=None):
    tokens = [*text.split(), "</s>"]
    made = {
        "tokens": tokens,
        "text": text,
        "logprob": math.log(probability) if probability > 0 else None,
        "score": None,
        "support": support or [1] * len(tokens),
    }
    if attention is not None:
        made["attention"] = attention
    if candidates is not None:
        made["candidates"] = candidates
    return made


def record(index, source="a b", hypotheses=None, certificate="complete", mass=1.0, **more):
    hypotheses = hypotheses or [hypothesis("x y", 1.0)]
    fields = {"id": index, "source": source, "certificate": certificate, "reason": "", "objective": "logprob"}
    fields.update(mass=mass, strings=len(hypotheses), decoder_rows=7, margin=None, safe_length=None)
    return {**fields, **more, "hypotheses": hypotheses}


def drawing(index=0):
    """Three outputs, d r a w e d, d r a w n and d r e w, with attention and candidates of the first two steps."""
    attention = [[[0, 0.75], [2, 0.25]], [[1, 1.0]], [[0, 1.0]], [[1, 1.0]], [[1, 1.0]], [[2, 1.0]], [[2, 1.0]]]
    candidates = [[["d", 1.0]], [["r", 1.0]], [["a", 0.7], ["e", 0.3]], [["w", 1.0]], [["e", 0.6], ["n", 0.4]]]
    candidates += [[["d", 1.0]], [["</s>", 1.0]]]
    return record(
        index,
        "d r",
        [
            hypothesis("d r a w e d", 0.42, [1, 1, 2, 1, 2, 1, 1], attention, candidates),
            hypothesis("d r e w", 0.3),
            hypothesis("d r a w n", 0.28),
        ],
    )


HOSTILE = "<script>document.body.dataset.hacked=1</script> </script> & \" ' <b>bold</b>"
ARABIC = "ك \u0650 ت ا ب"  # the second symbol is a mark that stands on the first


def write(path, records):
    lines = (json.dumps(r, ensure_ascii=False) + "\n" for r in records)
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)
