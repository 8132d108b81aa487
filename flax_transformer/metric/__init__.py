"""Metrics that know no model: BLEU, CIDEr, edit distance, average precision."""
