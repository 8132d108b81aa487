"""Measure compiled programs: seconds, FLOPs, memory and recompilations, on whatever device JAX has."""

from flax_transformer.bench.compare import compare as compare
from flax_transformer.bench.device import Peak as Peak
from flax_transformer.bench.device import device_peak as device_peak
from flax_transformer.bench.device import known_peak as known_peak
from flax_transformer.bench.device import measured_peak as measured_peak
from flax_transformer.bench.environment import environment as environment
from flax_transformer.bench.flops import matmul_parameters as matmul_parameters
from flax_transformer.bench.flops import stack_flops as stack_flops
from flax_transformer.bench.measure import Compilations as Compilations
from flax_transformer.bench.measure import Measurement as Measurement
from flax_transformer.bench.measure import Program as Program
from flax_transformer.bench.measure import Spread as Spread
from flax_transformer.bench.measure import measure as measure
from flax_transformer.bench.measure import spread as spread
from flax_transformer.bench.measure import time_calls as time_calls
