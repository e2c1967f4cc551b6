"""The cases that compare the backends of a product."""

import pytest

from xlakernel.core import operators
from xlakernel.sparse.operators import cases

PRODUCTS = [name for name in operators("sparse") if name.endswith(("csrmv", "csrmm"))]


def test_every_product_has_cases():
    named = {f"{prefix}{kind}" for prefix in ("", "binary_", "weighted_") for kind in ("csrmv", "csrmm")}
    assert named == {name for name in PRODUCTS if not name.startswith(("prepared", "compact"))}
    for name in named:
        first, second, *_ = operators()[name].benchmark_data(platform="cpu")
        assert (first.name, second.name) == ("n=1000, 50 in a row", "n=1000, 50 in a row, transposed")


@pytest.mark.parametrize("name", ["binary_csrmv", pytest.param("csrmm", marks=pytest.mark.slow)])
def test_the_backends_agree(name, monkeypatch):
    monkeypatch.setattr(cases, "SIZES", ((300, 7),))
    result = operators()[name].benchmark(platform="cpu", backends=["numba", "jax"], rounds=2, seconds=1e-4)
    assert result.cases == ["n=300, 7 in a row", "n=300, 7 in a row, transposed"]
    assert all(found.problem is None and len(found.seconds) == 2 for found in result.measurements)
