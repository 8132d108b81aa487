"""What is no checkpoint is named by every use of one."""

import pytest

from flax_transformer.task.detection import detect
from flax_transformer.task.fill_mask import fill_mask
from flax_transformer.task.text_classification import classify


@pytest.mark.parametrize(("first", "named"), [("a text", "'a text'"), (["a text"], "a list"), (None, "a NoneType")])
@pytest.mark.parametrize("use", [classify, detect, fill_mask])
def test_what_is_no_checkpoint_is_named(use, first, named):
    with pytest.raises(TypeError, match=rf"a checkpoint comes first, as `hub\.load` returns it, got {named}"):
        use(first, ["a text"])
