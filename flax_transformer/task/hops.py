"""Search in several hops: what is found says what is searched next (Yang et al. 2018, https://arxiv.org/abs/1809.09600,
call such questions multi-hop)."""

from collections.abc import Callable, Sequence

from flax_transformer.data.text.passage import Passage
from flax_transformer.task.text_index import Found, search_index, words_index


def search_hops(search: Callable[[str, int], list[Found]], query: str, hops: int, top: int) -> list[Found]:
    """Find passages by a query, then further ones by the query and the texts found so far, and so on.

    Args:
      search: `search(query, top)` finds passages, the best first.
      hops: how many searches.
      top: new passages of each.

    Raises:
      ValueError: hops or top below 1.
    """
    if min(hops, top) < 1:
        raise ValueError(f"hops and top must be at least 1, got {hops} and {top}")
    found: list[Found] = []
    for _ in range(hops):
        known = {each.number for each in found}
        asked = " ".join([query, *(each.passage.text for each in found)])
        found += [each for each in search(asked, top + len(found)) if each.number not in known][:top]
    return found


def find_facts(facts: Sequence[str], question: str, hops: int, top: int) -> list[str]:
    """Find facts by the words of a question, in hops; of those that score the same the later ones. They keep their
    order.

    >>> find_facts(["Ann took the milk.", "Bob ran.", "Ann went home."], "Where is the milk?", 2, 1)
    ['Ann took the milk.', 'Ann went home.']
    """
    latest = facts[::-1]
    index = words_index(tuple(Passage("", n, n, fact) for n, fact in enumerate(latest)))
    found = search_hops(lambda asked, most: search_index(index, None, [asked], most, "words")[0], question, hops, top)
    return [latest[number] for number in sorted({each.number for each in found}, reverse=True)]
