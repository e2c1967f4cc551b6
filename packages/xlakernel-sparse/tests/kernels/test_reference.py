"""The kernels in plain JAX, which other tests take as the oracle."""

from deliveries import DeliveryCases
from updates import UpdateCases

from xlakernel.sparse.kernels import reference


class TestReferenceUpdates(UpdateCases):
    generators = reference


class TestReferenceDeliveries(DeliveryCases):
    generators = reference
