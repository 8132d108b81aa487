"""Keep scripts that need torch from being imported as tests."""

collect_ignore = ["make_golden.py"]
