"""Open the damaged files of some corpora, in a process that may die of it: a JSON line before each, and one after.

python worker.py FOLDER SEED AMOUNT CORPUS…
"""

import faulthandler
import json
import os
import resource
import shutil
import sys
from pathlib import Path

from corpus import CORPORA, Case, Corpus
from data_corpus import DATA

SECONDS = 60
"""That one file may take; on a machine with other work, far more than any needs."""
MEMORY = 4 * 2**30
"""Bytes that opening small files may take, beyond what the process has before."""
CLEAR = ("ValueError", "FileNotFoundError", "CheckpointError", "FolderError")


def judge(corpus: Corpus, case: Case, folder: Path, sound: object) -> str:
    """Say how opening went: `refused`, `same`, `legal`, or what is wrong."""
    try:
        opened = corpus.open(folder)
    except BaseException as error:
        message = str(error)
        if type(error).__name__ not in CLEAR:
            return f"{type(error).__name__}: {message}"
        key = case.label.partition(": ")[2].partition(" ")[0].partition(".")[0].removesuffix("_token_id")
        if not any(name in message for name in (Path(case.file).name, str(folder), key)):
            return f"neither the file nor its field is named: {message}"
        return "refused" if len(message) < 20_000 else f"too long: {message[:200]}"
    if opened == sound:
        return "same"
    return "legal" if case.legal else "opened, and is another"


def work(name: str, seed: int, amount: int, folder: Path) -> None:
    corpus = (CORPORA | DATA)[name]
    valid, damaged = folder / "valid", folder / "damaged"
    valid.mkdir(parents=True)
    corpus.make(valid)
    sound = corpus.open(valid)
    for case in corpus.cases(valid, seed, amount):
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(valid, damaged)
        case.damage(damaged)
        print(json.dumps({"case": f"{name}, {case.label}"}), flush=True)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        verdict = judge(corpus, case, damaged, sound)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps({"verdict": verdict}), flush=True)


if __name__ == "__main__":
    allowed = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))
    os.environ["RUST_BACKTRACE"] = "0"
    for each in sys.argv[4:]:
        work(each, int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[1]) / each)
