"""What the devices of a training step say to each other is what data parallelism, plain or fully sharded, needs.

An encoder-decoder whose embedding table is used three times: by the source, by the target, and by the loss.
"""

from pathlib import Path

import pytest
from fake_devices import on_eight

pytestmark = [pytest.mark.slow, pytest.mark.proves("parallelism", "what compiled steps send")]

HERE = Path(__file__).parent
FLOAT, DEPTH = 4, 4
AGAIN, KEPT = (pytest.param(f"fsdp, {how}", marks=pytest.mark.slow) for how in ("computed again", "products kept"))


def compiled(*cases):
    found, said = on_eight(HERE / "traffic.py", *cases)
    assert "full rematerialization" not in said
    return found


@pytest.fixture(scope="module")
def traffic():
    return compiled("data", "fsdp")


@pytest.fixture(scope="module")
def again():
    """A backward pass that computes the forward pass again, but for what is kept."""
    return compiled("fsdp", "fsdp, computed again", "fsdp, products kept")


def sum_of(found, *kinds):
    return sum(each["bytes"] * each["times"] for each in found if each["kind"] in kinds)


def test_with_data_alone_every_gradient_is_summed_once(traffic):
    """Nothing else is said: keys and values of cross-attention are not gathered, and the table's three uses add up
    before they are summed over devices."""
    found = traffic["data"]
    assert {each["kind"] for each in found} == {"all-reduce"}
    needed = FLOAT * traffic["parameters"]
    assert needed <= sum_of(found, "all-reduce") <= 1.01 * needed


@pytest.mark.slow
def test_replicas_of_a_pipelines_stage_sum_their_gradients_once():
    """Not for each microbatch: of what microbatches pass on nothing but their hidden states is said in a loop."""
    traffic = compiled("data×pipeline")
    found = traffic["data×pipeline"]
    assert {each["kind"] for each in found if each["times"] > 1} == {"collective-permute"}
    stage = FLOAT * ((traffic["parameters"] - traffic["table"]) / 2 + traffic["table"])
    # Beside them what both sides' first stages were given, what the last gave, and the memory all stages read.
    assert stage <= sum_of(found, "all-reduce") <= 1.01 * stage + 5 * FLOAT * traffic["hidden"]


@pytest.mark.parametrize("case", ["fsdp", AGAIN, KEPT])
def test_sharded_kernels_are_gathered_once_forward_and_once_backward(request, case):
    """Also where the backward pass computes the forward pass again; the table is gathered once, for all its uses."""
    traffic = request.getfixturevalue("traffic" if case == "fsdp" else "again")
    found = traffic[case]
    assert {each["kind"] for each in found} == {"all-gather", "reduce-scatter", "all-reduce"}
    in_layers = sum_of([each for each in found if each["times"] == DEPTH], "all-gather")
    assert in_layers == 2 * FLOAT * traffic["kernels"]
    assert sum_of(found, "all-gather") == in_layers + FLOAT * traffic["table"]


@pytest.mark.parametrize("case", ["fsdp", AGAIN, KEPT])
def test_sharded_gradients_are_summed_once(request, case):
    """Also the table's, of all its uses together, by a reduce-scatter; of itself XLA makes none on CPU."""
    traffic = request.getfixturevalue("traffic" if case == "fsdp" else "again")
    found = traffic[case]
    assert sum_of(found, "reduce-scatter") == FLOAT * traffic["table"]
    needed = FLOAT * traffic["parameters"]
    assert needed <= sum_of(found, "reduce-scatter", "all-reduce") <= 1.01 * needed


@pytest.mark.slow
def test_what_is_kept_of_sharded_layers_is_not_computed_again(again):
    none, full, dots = (again[f"fsdp{which}, products"] for which in ("", ", computed again", ", products kept"))
    assert none <= dots < full


@pytest.mark.parametrize("mesh", ["data", "fsdp"])
def test_the_chunks_of_the_loss_say_nothing(traffic, mesh):
    """Only the loops over layers have collectives: the eight chunks share one gather and one sum of the table."""
    assert {each["times"] for each in traffic[mesh]} <= {1, DEPTH}


@pytest.mark.parametrize("head", ["of its own", "that is the table"])
def test_of_few_tokens_what_was_found_is_sent_and_not_the_table(head):
    """Each device has columns of it, and looks up those of its group's tokens, 16 each; for the head it is gathered."""
    found = compiled(f"a head {head}")[f"a head {head}"]["found"]
    tokens, width, rows, groups = 16, 32, 512, 4
    # Forward and backward; beside them the tokens themselves.
    assert sum_of(found, "all-to-all") == 2 * FLOAT * tokens * width
    assert sum_of([each for each in found if each["times"] == 1], "all-gather") == FLOAT * (
        rows * width + groups * tokens
    )
    assert sum_of(found, "reduce-scatter") == FLOAT * rows * width
    if head == "of its own":  # of both tables the columns that a device has, with those of the other group
        assert 2 * FLOAT * rows * width // groups in [each["bytes"] for each in found if each["kind"] == "all-reduce"]


@pytest.mark.parametrize("remat", ["none", "full", "dots"])
def test_layers_in_turns_gather_their_kernels_as_often_as_layers_alike(remat):
    """Of five layers with two kinds of window; what one computes again and its backward pass share a gather."""
    case = compiled(f"layers in turns, {remat}")[f"layers in turns, {remat}"]
    found = [each for each in case["found"] if each["times"] == 5]
    assert sum_of(found, "all-gather") == 2 * FLOAT * case["kernels"]
