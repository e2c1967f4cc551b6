"""Serialization of the states and recordings of networks, as arguments and results of exported programs."""

from jax import export

from .model.recording import Recording, Spikes
from .plasticity import Past
from .state import NetworkState

for _kind in (NetworkState, Past, Recording, Spikes):
    export.register_namedtuple_serialization(_kind, serialized_name=f"xlakernel.sparse.networks.{_kind.__name__}")
