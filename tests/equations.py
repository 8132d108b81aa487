"""What programs are made of, read before they are compiled."""

import jax
from jax.extend import core


def equations(function, *args):
    """List the equations of a function, those of its loops, branches and inner calls too."""

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            yield equation
            for inner in core.jaxprs_in_params(equation.params):
                yield from walk(inner)

    return list(walk(jax.make_jaxpr(function)(*args).jaxpr))
