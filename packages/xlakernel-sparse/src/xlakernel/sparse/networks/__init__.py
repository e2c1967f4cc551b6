"""Networks of spiking neurons; all steps of a run are one native call."""

from . import serialization  # noqa: F401  # registers the formats for exported programs
from .model.noise import Normal as Normal
from .model.noise import Poisson as Poisson
from .model.populations import Population as Population
from .model.projections import Projection as Projection
from .model.recording import Record as Record
from .model.recording import Recording as Recording
from .model.recording import Spikes as Spikes
from .model.recording import Trace as Trace
from .model.rules import History as History
from .model.rules import Rule as Rule
from .network import Network as Network
from .pieces import run_in_pieces as run_in_pieces
from .random.generator import normal as normal
from .random.generator import poisson as poisson
from .random.generator import uniform as uniform
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
