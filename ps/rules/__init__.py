"""Update rules: numpy maths that runs on the ps. `register` makes one known; importing this package registers ours."""

from ps.rules.adam import Adam
from ps.rules.base import Context, UpdateRule, load_rules, make_rule, register, registered
from ps.rules.momentum import Momentum
from ps.rules.sgd import Sgd

__all__ = ["Adam", "Context", "Momentum", "Sgd", "UpdateRule", "load_rules", "make_rule", "register", "registered"]
