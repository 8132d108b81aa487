"""Where in a model an operation is, by its name in a program: JAX writes there what `jax.named_scope` has said."""

import re

INNER = {
    "body", "checkpoint", "closed_call", "cond", "custom_jvp_call", "custom_vjp_call", "eval_jaxpr", "pallas_call",
    "remat", "rematted_computation", "scan", "shard_map", "while",
}  # fmt: skip
"""Parts of names that are JAX's own, as is every `jit(…)`."""


OUTSIDE = "(no module)"
"""What people read in place of no name."""


def module_path(name: str) -> str:
    """Return the modules, from the outermost one on, that a name of scopes or of an operation names; "" for none.

    Derivatives of a module are its own.

    >>> module_path("jit(step)/transpose(jvp(Causal))/trunk/while/body/closed_call/Block/attention")
    'Causal/trunk/Block/attention'
    """
    pieces = name.split("/")
    # The compiler puts the names of two operations in a row.
    begin = len(pieces) - 1 - pieces[::-1].index(pieces[0]) if "jit(" in pieces[0] else 0
    inner = (re.sub(r"^(\w+\()*|\)*$", "", piece) for piece in pieces[begin:] if "jit(" not in piece)
    found = [part for part in inner if re.fullmatch(r"[A-Za-z]\w*", part) and part not in INNER]
    half = len(found) // 2
    return "/".join(found[half:] if found[:half] == found[half:] else found)
