"""How well the passages of questions are found, and answers of what is found: by words, vectors, both, and ranked anew.

    python benchmarks/passage_retrieval.py DEV.json --retriever runs/towers --ranker runs/ranker --reader runs/reader \
        --questions 1000 [--json FILE]

DEV.json is in SQuAD's form; its passages are the corpus, cut as `index` cuts documents where there is a retriever, and
then ranked by the best of what each was cut into. `recall@k` says how often the passage that a question was
asked of is among the first k, `mrr` is the mean reciprocal rank among the first 100. With a reader F1 and exact match
are told of answers in the first passages, beside those of the passage that the question was asked of.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from results import write

from flax_transformer.data.text.annotated import read_squad
from flax_transformer.data.text.passage import Document, Passage
from flax_transformer.metric.ranking import rank_scores
from flax_transformer.task.checkpoint import open_checkpoint
from flax_transformer.task.document_answer import read_passages
from flax_transformer.task.question_answering import squad_scores
from flax_transformer.task.reranking import rerank
from flax_transformer.task.text_index import (
    Found,
    TextIndex,
    TextIndexConfig,
    index_documents,
    search_index,
    usual_passages,
    words_index,
)

TOP = 100


def whole(found, passages) -> list:
    """Return rankings of whole passages, each once, from those of what they were cut into."""
    rows = []
    for row in found:
        best = {}
        for each in row:
            best.setdefault(int(each.passage.document), each.score)
        rows.append([Found(passages[number], number, score) for number, score in best.items()])
    return rows


def scored(found, questions, names) -> dict[str, float]:
    """Score rankings of passages."""
    ranked = {str(n): [(str(each.number), each.score) for each in row] for n, row in enumerate(found)}
    truth = {str(n): [str(names[each.context])] for n, each in enumerate(questions)}
    return rank_scores(ranked, truth)


def answered(reader, questions, rows) -> dict[str, float]:
    """Score the answers that are found in passages of each question."""
    texts = [read_passages(reader, each.question, row)[0].text for each, row in zip(questions, rows, strict=True)]
    return squad_scores(texts, [each.answers for each in questions])


def main() -> None:
    """Print a line for each way of finding, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("squad", type=Path)
    for name in ("--retriever", "--reader", "--json"):
        parser.add_argument(name)
    parser.add_argument("--ranker", nargs="*", default=(), help="each ranks anew what is found")
    parser.add_argument("--questions", type=int, help="evenly spread; all by default")
    parser.add_argument("--weight", type=float, default=0.5, help="of search by vectors, where both are fused")
    parser.add_argument("--candidates", type=int, default=20, help="ranked anew")
    parser.add_argument("--read", type=int, default=3, help="passages that are read")
    options = parser.parse_args()
    questions = read_squad(options.squad)
    contexts = list(dict.fromkeys(each.context for each in questions))
    names = {context: number for number, context in enumerate(contexts)}
    chosen = np.linspace(0, len(questions) - 1, min(options.questions or len(questions), len(questions)), dtype=int)
    questions = [questions[place] for place in chosen]
    asked = [each.question for each in questions]
    passages = tuple(Passage(str(n), 0, len(text), text) for n, text in enumerate(contexts))
    retriever = None if options.retriever is None else open_checkpoint(options.retriever)
    index: TextIndex = words_index(passages)
    if retriever is not None:
        documents = [Document(str(n), text) for n, text in enumerate(contexts)]
        config = TextIndexConfig(passages=usual_passages(retriever))
        index = index_documents(retriever, documents, config)
    ways = ["words"] if retriever is None else ["words", "vectors", "both"]
    found, results = {}, []
    for by in ways:
        began = time.perf_counter()
        found[by] = whole(search_index(index, retriever, asked, TOP, by, options.weight), passages)
        seconds = (time.perf_counter() - began) / len(asked)
        results.append({"by": by, **scored(found[by], questions, names), "seconds_a_question": seconds})
    for name in options.ranker:
        ranker, most = open_checkpoint(name), options.candidates
        by = f"{ways[-1]}, ranked anew by {ranker.config['architectures'][0]}"
        # What is ranked anew comes before all else.
        found[by] = [
            [*rerank(ranker, question, row[:most]), *row[most:]]
            for question, row in zip(asked, found[ways[-1]], strict=True)
        ]
        ranks = [[replace(each, score=-float(rank)) for rank, each in enumerate(row)] for row in found[by]]
        results.append({"by": by, **scored(ranks, questions, names)})
    if options.reader is not None:
        reader = open_checkpoint(options.reader)
        right = [[passages[names[each.context]]] for each in questions]
        results.append({"by": "the right passage, read", **answered(reader, questions, right)})
        for by, rows in found.items():
            read = [[each.passage for each in row[: options.read]] or [passages[0]] for row in rows]
            results.append({"by": f"{by}, {options.read} read", **answered(reader, questions, read)})
    print(f"{len(asked):,} questions, {len(passages):,} passages")
    for each in results:
        print("  ".join(f"{name} {value:.2f}" if isinstance(value, float) else str(value)
                        for name, value in each.items()))  # fmt: skip
    scores = ", ".join(f"{each['recall@1']:.1f} by {each['by']}" for each in results if "recall@1" in each)
    note = f"recall@1 of {len(asked):,} questions among {len(passages):,} passages: {scores}"
    facts = {"file": options.squad.name, "questions": len(asked), "passages": len(passages), "weight": options.weight}
    write(options.json, [facts, *results], proves=("retrieval of texts", note))


if __name__ == "__main__":
    main()
