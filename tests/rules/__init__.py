"""Tests of update rules. What every rule must do is in test_contract.py: a rule that is registered is tested."""
