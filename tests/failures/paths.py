"""Imported before ddprun_case by the tests of this folder: ddprun_case.py and what it comes with lie in tests/system."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "system"))
