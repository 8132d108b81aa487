"""What a report marks as copied is in both texts, and nothing longer is."""

import json
import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from flax_transformer.report import Report, render
from flax_transformer.report.copied import copied_spans

TEXT = st.lists(st.sampled_from(["a", "B", "b", "c", "ä", ".", "\n"]), max_size=14).map(" ".join)


@given(TEXT, TEXT)
def test_spans_are_runs_of_the_same_words(source, summary):
    found = copied_spans(source, summary)
    words = lambda text: re.findall(r"\w+", text.lower())  # noqa: E731
    for (a, b), (c, d) in zip(found.source, found.summary, strict=True):
        assert words(source[a:b]) == words(summary[c:d])
        assert len(words(summary[c:d])) >= 2
    ends = [0, *(end for _, end in found.summary)]
    assert all(begin >= end for (begin, _), end in zip(found.summary, ends, strict=False))
    inside = {i for begin, end in found.summary for i in range(begin, end)}
    rest = "".join("#" if i in inside else letter for i, letter in enumerate(summary))
    left = re.findall(r"\w+|#+", rest.lower())
    assert not set(pairwise(words(source))) & set(pairwise(left))


def test_a_page_holds_them_where_a_sample_asks():
    sample = {"source": "The new plan is here.", "hypothesis": "new plan", "target": "plan"}
    page = render(Report(title="run", samples=[{**sample, "copied": True}, sample]))
    assert page.count('"copied":') == 1
    assert json.loads(re.search(r'"copied":(\{.*?\})', page)[1]) == {"source": [[4, 12]], "summary": [[0, 8]]}
