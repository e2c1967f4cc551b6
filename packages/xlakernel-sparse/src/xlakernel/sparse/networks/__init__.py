"""Networks of spiking neurons, all steps of which run in one native call."""

from . import serialization  # noqa: F401  # registers the formats for exported programs
from .network import Network as Network
from .noise import Normal as Normal
from .noise import Poisson as Poisson
from .pieces import run_in_pieces as run_in_pieces
from .populations import Population as Population
from .projections import Projection as Projection
from .random import normal as normal
from .random import poisson as poisson
from .random import uniform as uniform
from .recording import Record as Record
from .recording import Recording as Recording
from .recording import Spikes as Spikes
from .recording import Trace as Trace
from .rules import History as History
from .rules import Rule as Rule
from .state import NetworkState as NetworkState

__all__ = [
    "History",
    "Network",
    "NetworkState",
    "Normal",
    "Poisson",
    "Population",
    "Projection",
    "Record",
    "Recording",
    "Rule",
    "Spikes",
    "Trace",
    "normal",
    "poisson",
    "run_in_pieces",
    "uniform",
]
