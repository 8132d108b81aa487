import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "allow")


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_functions():
    """Free compiled programs after each file, so that a long run does not fill memory."""
    yield
    jax.clear_caches()
