import io

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "allow")


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_functions():
    """Free compiled programs after each file, so that a long run does not fill memory."""
    yield
    jax.clear_caches()


@pytest.fixture
def run(capsys, monkeypatch):
    """Call the command line; give its exit code and what it said."""
    from flax_transformer import cli

    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments, stdin=b""):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        try:
            cli.main([str(argument) for argument in arguments])
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err

    return call
