"""Update rules: numpy maths that runs on the ps. `register` makes one known; importing this package registers ours."""

from ps.rules.adam import Adam
from ps.rules.aggregations import Aggregation
from ps.rules.base import Context, UpdateRule, make_rule
from ps.rules.configured import register, registered
from ps.rules.dana import Dana
from ps.rules.dc_asgd import DcAsgd, DcAsgdAdaptive
from ps.rules.files import load_rules
from ps.rules.gap_aware import GapAware
from ps.rules.local_steps import Diloco, ElasticAverage
from ps.rules.schedules import Schedule
from ps.rules.sgd import Momentum, Sgd
from ps.rules.staleness_aware import StalenessAware
from ps.rules.transforms import Transform

__all__ = [
    "Adam",
    "Aggregation",
    "Context",
    "Dana",
    "DcAsgd",
    "DcAsgdAdaptive",
    "Diloco",
    "ElasticAverage",
    "GapAware",
    "Momentum",
    "Schedule",
    "Sgd",
    "StalenessAware",
    "Transform",
    "UpdateRule",
    "load_rules",
    "make_rule",
    "register",
    "registered",
]
