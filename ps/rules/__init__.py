"""Update rules: numpy maths that runs on the ps. `register` makes one known; importing this package registers ours."""

from ps.rules.adadelta import Adadelta
from ps.rules.adafactor import Adafactor
from ps.rules.adagrad import Adagrad
from ps.rules.adam import Adam, AdamW
from ps.rules.adamax import Adamax
from ps.rules.aggregations import Aggregation
from ps.rules.base import Context, UpdateRule, make_rule
from ps.rules.configured import register, registered
from ps.rules.dana import Dana
from ps.rules.dc_asgd import DcAsgd, DcAsgdAdaptive
from ps.rules.files import load_rules
from ps.rules.ftrl import Ftrl
from ps.rules.gap_aware import GapAware
from ps.rules.lamb import Lamb
from ps.rules.lion import Lion
from ps.rules.local_steps import Diloco, ElasticAverage
from ps.rules.muon import Muon
from ps.rules.nadam import Nadam
from ps.rules.rmsprop import RMSprop
from ps.rules.schedule_free_adamw import ScheduleFreeAdamW
from ps.rules.schedules import Schedule
from ps.rules.sgd import Momentum, Sgd
from ps.rules.staleness_aware import StalenessAware
from ps.rules.transforms import Transform

__all__ = [
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Aggregation",
    "Context",
    "Dana",
    "DcAsgd",
    "DcAsgdAdaptive",
    "Diloco",
    "ElasticAverage",
    "Ftrl",
    "GapAware",
    "Lamb",
    "Lion",
    "Momentum",
    "Muon",
    "Nadam",
    "RMSprop",
    "Schedule",
    "ScheduleFreeAdamW",
    "Sgd",
    "StalenessAware",
    "Transform",
    "UpdateRule",
    "load_rules",
    "make_rule",
    "register",
    "registered",
]
