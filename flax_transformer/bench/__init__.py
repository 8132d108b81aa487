"""Measure compiled programs: seconds, FLOPs, memory and recompilations, on whatever device JAX has.

`measure(function, *arguments)` measures any function, `plan.compile(function, *arguments, topology=…)` compiles it for
TPUs that are not here, `count_flops(function, *arguments)` counts what it multiplies.
"""

from flax_transformer.bench import plan as plan
from flax_transformer.bench.device import Peak as Peak
from flax_transformer.bench.device import device_peak as device_peak
from flax_transformer.bench.device import known_peak as known_peak
from flax_transformer.bench.device import measured_peak as measured_peak
from flax_transformer.bench.environment import environment as environment
from flax_transformer.bench.flops import Flops as Flops
from flax_transformer.bench.flops import count_flops as count_flops
from flax_transformer.bench.record import Record as Record
from flax_transformer.bench.record import compare as compare
from flax_transformer.bench.run import measure as measure
from flax_transformer.bench.timing import Measurement as Measurement
from flax_transformer.bench.timing import Program as Program
from flax_transformer.bench.timing import Spread as Spread
from flax_transformer.bench.timing import make_program as make_program
from flax_transformer.bench.timing import spread as spread
from flax_transformer.bench.timing import time_calls as time_calls
from flax_transformer.bench.timing import time_program as time_program
from flax_transformer.train.compilation import Compilations as Compilations
