"""Write QMSum as JSON lines of a query, a document and its summary: what `experiments/summarise.py` reads.

    python benchmarks/qmsum.py QMSUM FOLDER

QMSUM has train.jsonl.gz, val.jsonl.gz and test.jsonl.gz in the original schema (Zhong et al. 2021,
https://arxiv.org/abs/2104.05938): a meeting a line, with `meeting_transcripts`, `general_query_list` and
`specific_query_list`. Every query of a meeting becomes a line whose document is the whole meeting, a turn a line, the
speaker before it; marks such as {disfmarker} are left out.
"""

import gzip
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

MARK = re.compile(r"\{[a-z]+\}")


def lines(meeting: dict) -> Iterator[dict]:
    """Make a line of each query of a meeting."""
    turns = (
        (each["speaker"], " ".join(MARK.sub(" ", each["content"]).split())) for each in meeting["meeting_transcripts"]
    )
    document = "\n".join(f"{speaker}: {said}" for speaker, said in turns if said)
    for kind in ("general_query_list", "specific_query_list"):
        for each in meeting[kind]:
            yield {"query": each["query"], "document": document, "summary": each["answer"], "kind": kind.split("_")[0]}


def convert(source: Path, out: Path) -> None:
    """Convert every split of a folder."""
    out.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val", "test"):
        with (
            gzip.open(source / f"{split}.jsonl.gz", "rt") as meetings,
            gzip.open(out / f"{split}.jsonl.gz", "wt") as file,
        ):
            for meeting in meetings:
                for line in lines(json.loads(meeting)):
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
