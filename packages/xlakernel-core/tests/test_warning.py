"""Which line a warning names."""

import inspect
import types
import warnings

import pytest

from xlakernel.core.warning import warn


def within(name, function):
    """Return *function* as it is called by one of the module *name*."""
    module = types.ModuleType(name)
    exec("def call(function):\n    return lambda *args: function(*args)", vars(module))  # noqa: S102
    return module.call(function)


@pytest.mark.parametrize("names", [(), ("xlakernel.numba",), ("xlakernel.core.call", "functools", "jax._src.pjit")])
def test_a_warning_names_the_users_line(names):
    call = warn
    for name in names:
        call = within(name, call)
    line = inspect.currentframe().f_lineno + 2
    with pytest.warns(RuntimeWarning, match="look") as said:
        call("look", RuntimeWarning)
    assert (said[0].filename, said[0].lineno) == (__file__, line)


def test_a_warning_can_be_filtered_by_the_users_module():
    call = within("xlakernel.core.call", warn)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=__name__)
        call("look")


def test_a_module_of_a_like_name_is_the_users():
    call = within("xlakernels", warn)
    with pytest.warns(UserWarning, match="look") as said:
        call("look")
    assert said[0].filename == "<string>"
