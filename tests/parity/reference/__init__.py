"""TensorFlow's own answers to the parity questions: programs run as processes, each writing one .npz file a rule.

Start at problem.py.
"""
