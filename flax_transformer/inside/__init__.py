"""See inside any model: read and replace what it computes on its way, and say what its parts do.

Pure functions of pure functions: whatever marks its values by name (`ops.capture`) can be looked into, so every family.
"""

from flax_transformer.inside.attribution import (
    Integrated,
    agreement,
    by_group,
    draw_permutations,
    gradient_times_input,
    integrated_gradients,
    occlusion,
    shapley_values,
)
from flax_transformer.inside.edit import Add, Apply, Interventions, Replace, Scale, intervene, starting_at
from flax_transformer.inside.flow import attention_flow, rollout, value_weighted_norms
from flax_transformer.inside.head_table import attention_targets, head_table, name_heads, top_examples
from flax_transformer.inside.lens import fit_tuned_lens, logit_lens, new_translators, stream, tuned_lens
from flax_transformer.inside.probe import probe
from flax_transformer.inside.similarity import cka_of_layers, debiased_cka, linear_cka
from flax_transformer.inside.sweep import entries, masks, patch_each, places_of, switch_off, try_each, without_each

__all__ = [
    "Add",
    "Apply",
    "Integrated",
    "Interventions",
    "Replace",
    "Scale",
    "agreement",
    "attention_flow",
    "attention_targets",
    "by_group",
    "cka_of_layers",
    "debiased_cka",
    "draw_permutations",
    "entries",
    "fit_tuned_lens",
    "gradient_times_input",
    "head_table",
    "integrated_gradients",
    "intervene",
    "linear_cka",
    "logit_lens",
    "masks",
    "name_heads",
    "new_translators",
    "occlusion",
    "patch_each",
    "places_of",
    "probe",
    "rollout",
    "shapley_values",
    "starting_at",
    "stream",
    "switch_off",
    "top_examples",
    "try_each",
    "tuned_lens",
    "value_weighted_norms",
    "without_each",
]
