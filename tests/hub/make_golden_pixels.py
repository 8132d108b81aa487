"""Make golden_pixels.npz: what the image processors of transformers give for three images, every 29th value.

pip install torch==2.13.0 transformers pillow
python -m tests.hub.make_golden_pixels
"""

from pathlib import Path

import numpy as np

from tests.hub.image_case import CONFIGS, SEEN, attempt, picture
from tests.hub.test_image_processor_parity import theirs

GOLDEN = Path(__file__).parent / "golden_pixels.npz"


def main():
    """Write the file."""
    found = {}
    for name, config in CONFIGS.items():
        for seed in SEEN:
            made = attempt(theirs(config), picture(seed))
            for key, value in ({} if made is None else made).items():
                kept = value.ravel()[::29].astype(np.float32 if key == "pixel_values" else np.int32)
                found[f"{name}/{seed}/{key}"], found[f"{name}/{seed}/{key}/shape"] = kept, np.array(value.shape)
    np.savez_compressed(GOLDEN, **found)


if __name__ == "__main__":
    main()
