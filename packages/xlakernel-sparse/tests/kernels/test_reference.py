"""The kernels in plain JAX, which other tests take as the oracle."""

from deliveries import DeliveryCases
from updates import UpdateCases

from xlakernel.sparse.kernels import reference


class TestReferenceUpdates(UpdateCases):
    generators = reference
    test_update_in_parallel = test_dense_update_in_parallel = None  # XLA divides the work


class TestReferenceDeliveries(DeliveryCases):
    generators = reference
    test_delivery_in_parallel = None
