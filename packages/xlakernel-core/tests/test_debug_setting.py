"""The setting of debug mode: by `debug_mode`, and otherwise by the environment."""

import threading

import jax
import numpy as np
import pytest

from xlakernel.core import config, debug_mode
from xlakernel.core.errors import KernelTypeError, SettingError


@pytest.fixture
def environment(monkeypatch):
    """Return a function that sets the variable as if the process had begun with it."""

    def use(value):
        if value is None:
            monkeypatch.delenv("XLAKERNEL_DEBUG", raising=False)
        else:
            monkeypatch.setenv("XLAKERNEL_DEBUG", value)
        config._debug_from_environment.cache_clear()

    yield use
    monkeypatch.undo()
    config._debug_from_environment.cache_clear()


@pytest.mark.parametrize(
    ("value", "enabled"),
    [
        *(("1", True), ("true", True), ("YES", True), (" on ", True)),
        *((None, False), ("", False), ("0", False), ("False", False), ("no", False), ("off", False)),
    ],
)
def test_the_environment(environment, value, enabled):
    environment(value)
    assert config.is_debugging() is enabled
    for inner in (True, False):
        with debug_mode(inner):
            assert config.is_debugging() is inner
    assert config.is_debugging() is enabled


@pytest.mark.parametrize("value", ["2", "debug", "-", "None"])
def test_another_value_is_refused_each_time(environment, value):
    environment(value)
    for _ in range(2):
        with pytest.raises(SettingError, match=f"XLAKERNEL_DEBUG is '{value}'; allowed: 1, true, .*debug_mode"):
            config.is_debugging()


def test_a_later_change_of_the_environment_changes_nothing(environment, monkeypatch):
    environment("1")
    assert config.is_debugging()
    monkeypatch.setenv("XLAKERNEL_DEBUG", "0")
    assert config.is_debugging()


def test_the_innermost_context_wins_and_an_exception_ends_it():
    with debug_mode():
        with debug_mode(False):
            assert not config.is_debugging()
        assert config.is_debugging()
        with pytest.raises(KeyError), debug_mode(False):
            raise KeyError
        assert config.is_debugging()
    assert not config.is_debugging()


def test_the_setting_applies_to_one_thread():
    found = []
    with debug_mode():
        thread = threading.Thread(target=lambda: found.append(config.is_debugging()))
        thread.start()
        thread.join()
    assert found == [False]


def test_debug_mode_requires_a_bool():
    with pytest.raises(KernelTypeError, match="expected True or False; got 'on'"), debug_mode("on"):
        pytest.fail("entered")


@pytest.mark.parametrize("value", ["0", "1"])
def test_equal_settings_share_one_program(environment, value):
    environment(value)
    traced = []

    @jax.jit
    def program(x):
        traced.append(config.is_debugging())
        return x

    default = value == "1"
    for enabled in (default, not default, default):
        with debug_mode(enabled):
            program(np.ones(2))
    program(np.ones(2))
    assert traced == [default, not default]


def test_the_generator_and_the_kernel_of_an_operator_see_it(new_operator):
    seen = []

    def generate(outs):
        seen.append(config.is_debugging())

        def kernel(x):
            seen.append(config.is_debugging())
            return x

        return kernel

    op = new_operator()
    op.def_jax_kernel(generate)
    program = jax.jit(lambda x: op(x, outs=x))
    for _ in range(2):
        program(np.ones(2, np.float32))
        with debug_mode():
            program(np.ones(2, np.float32))
    assert seen == [False, False, True, True]
