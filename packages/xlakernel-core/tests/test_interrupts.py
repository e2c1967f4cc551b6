"""Delay of signal handlers in steps that cannot be repeated."""

import contextlib
import ctypes
import functools
import itertools
import os
import signal
import sys
import threading
import time

import pytest

from xlakernel.core import interrupts
from xlakernel.core.interrupts import is_raised_by_handler, uninterrupted


class TimeLimit(ValueError):
    pass


@pytest.fixture
def ctrl_c():
    """Let Ctrl-C raise KeyboardInterrupt, which a shell may have ignored in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_waits_for_the_end(ctrl_c):
    steps = []

    def step():
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("after")
        steps.append("never")

    with pytest.raises(KeyboardInterrupt):
        step()
    assert steps == ["after"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture
def handlers():
    """Return the numbers that handlers of three signals saw. One of them raises, and Ctrl-C raises as usual."""
    seen = []

    def limit(number, frame):
        seen.append(number)
        raise TimeLimit

    def note(number, frame):
        seen.append(number)

    set_ = {signal.SIGALRM: limit, signal.SIGINT: signal.default_int_handler, signal.SIGUSR1: note}
    before = {number: signal.signal(number, handler) for number, handler in set_.items()}
    yield seen
    assert {number: signal.getsignal(number) for number in set_} == set_
    for number, handler in before.items():
        signal.signal(number, handler)


def test_each_signal_reaches_its_handler_after_an_exception_of_another(handlers):
    def step():
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGALRM)
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGUSR1)
            assert handlers == []

    with pytest.raises(KeyboardInterrupt):
        step()
    assert handlers == [signal.SIGALRM, signal.SIGUSR1]


def test_a_signal_may_arrive_at_any_call_of_python(handlers):
    """`signal.signal` and `signal.getsignal` suppress a ValueError in their conversions."""

    def enter_with_signal_at(chosen):
        """Enter and leave `uninterrupted`; the signal arrives at the call with the number *chosen*, if there is one."""
        calls = itertools.count(1)

        def profile(frame, event, argument):
            if event == "call" and next(calls) == chosen:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGALRM)

        sys.setprofile(profile)
        try:
            with uninterrupted():
                pass
        finally:
            sys.setprofile(None)

    for number in itertools.count(1):
        try:
            enter_with_signal_at(number)
        except TimeLimit:
            handlers.clear()
        else:
            break
    assert handlers == []  # no signal was sent
    assert number > 5


def test_exceptions_of_calls_wait_for_the_end_too():
    steps = []

    def step():
        with uninterrupted():
            interrupts.raised_in_calls += [KeyboardInterrupt(), TimeLimit()]
            steps.append(bool(interrupts.raised_in_calls))
        steps.append("never")

    with pytest.raises(TimeLimit):
        step()
    assert steps == [False]
    assert not interrupts.raised_in_calls  # one exception replaces the others


def test_many_signals_are_delivered(handlers):
    count = 3 * sys.getrecursionlimit()
    with uninterrupted():
        for _ in range(count):
            os.kill(os.getpid(), signal.SIGUSR1)
    assert handlers == [signal.SIGUSR1] * count


def test_a_section_inside_another_does_not_end_the_delay(handlers):
    with uninterrupted():
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert handlers == []
    assert handlers == 2 * [signal.SIGUSR1]


@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGUSR1])
@pytest.mark.parametrize("when", [0, 1, 2, 3])
def test_a_signal_at_the_exit_reaches_its_handler(handlers, monkeypatch, number, when):
    """It comes when *when* handlers are restored; another one came before."""
    restored = []
    set_action = interrupts._set_action

    def set_and_interrupt(of, action):
        restored.append(of)
        set_action(of, action)
        if len(restored) == when + 1:
            os.kill(os.getpid(), number)

    def step():
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGUSR1)
            if when == 3:
                os.kill(os.getpid(), number)

    monkeypatch.setattr(interrupts, "_set_action", set_and_interrupt)
    with pytest.raises(TimeLimit) if number == signal.SIGALRM else contextlib.nullcontext():
        step()
    assert sorted(handlers) == sorted([signal.SIGUSR1, number])
    before = len(handlers)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert len(handlers) == before + 1


def test_a_signal_at_any_step_is_neither_lost_nor_swallowed(handlers, monkeypatch):
    """One that raises comes before or after each step of a section, in which another one comes."""
    left = 0

    def interrupting(function):
        def call(*arguments):
            count()
            try:
                return function(*arguments)
            finally:
                count()

        return call

    def count():
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGALRM)

    steps = {name: getattr(interrupts, name) for name in ("_install", "_deliver", "_restore", "_set_action")}
    for number in range(1, 1000):
        left, sent = number, 0
        handlers.clear()
        with monkeypatch.context() as patch:
            for name, step in steps.items():
                patch.setattr(interrupts, name, interrupting(step))
            try:
                with uninterrupted():
                    sent += 1
                    os.kill(os.getpid(), signal.SIGUSR1)
            except TimeLimit:
                pass
        with uninterrupted():  # restores what is left
            pass
        assert sorted(handlers) == sorted(sent * [signal.SIGUSR1] + (left <= 0) * [signal.SIGALRM]), number
        assert signal.getsignal(signal.SIGALRM).__name__ == "limit"
        if left > 0:
            break
    assert 100 < number < 999  # all steps


def test_a_handler_that_is_set_inside_stays(handlers):
    other = []
    before = signal.getsignal(signal.SIGUSR1)
    with uninterrupted():
        signal.signal(signal.SIGUSR1, lambda number, frame: other.append(number))
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)
    assert (other, handlers) == ([signal.SIGUSR1], [])


def test_system_calls_that_a_signal_does_not_interrupt_stay_so(handlers):
    """As asyncio sets it."""
    signal.siginterrupt(signal.SIGUSR1, False)
    with uninterrupted():
        pass
    assert_system_calls_continue()


def test_system_calls_stay_uninterrupted_after_an_exception_of_a_handler(handlers, monkeypatch):
    """Of one that comes when the handler is restored."""
    set_handler = interrupts._signal.signal

    def set_and_raise(number, handler):
        set_handler(number, handler)
        if number == signal.SIGUSR1 and handler is not interrupts._delay:
            raise TimeLimit

    signal.siginterrupt(signal.SIGUSR1, False)
    with pytest.raises(TimeLimit), uninterrupted():
        monkeypatch.setattr(interrupts._signal, "signal", set_and_raise)
    monkeypatch.undo()
    assert_system_calls_continue()


def assert_system_calls_continue():
    source, sink = os.pipe()

    def send():
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        time.sleep(0.1)
        os.write(sink, b"x")

    thread = threading.Thread(target=send)
    thread.start()
    try:
        assert ctypes.CDLL(None).read(source, ctypes.create_string_buffer(1), 1) == 1
    finally:
        thread.join()
        os.close(source)
        os.close(sink)


def test_other_threads_leave_the_signal_alone():
    found = []

    def run():
        with uninterrupted():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]


# Recognition of a handler's exception


def plain(number, frame):
    raise TimeLimit


def without_frame(number, frame):
    del frame
    raise TimeLimit


def with_any_arguments(*given):
    given = list(given)
    raise TimeLimit


@functools.wraps(plain)
def wrapping(*given):
    plain(*given)


class Handlers:
    def __call__(self, number, frame):
        raise TimeLimit

    def method(self, number, frame):
        while frame:  # walks over the stack
            frame = frame.f_back
        raise TimeLimit

    @staticmethod
    def static(number, frame):
        raise TimeLimit


def logged(function):
    @functools.wraps(function)
    def call(*given):
        return function(*given)

    return call


def wrapped_in_itself():
    def handler(number, frame):
        raise TimeLimit

    handler.__wrapped__ = handler
    return handler


HANDLERS = [
    *(plain, without_frame, with_any_arguments, wrapping, lambda *given: plain(*given)),
    *(Handlers(), Handlers().method, Handlers.static, functools.partial(functools.partial(plain))),
    *(logged(functools.partial(plain)), functools.partial(logged(plain)), wrapped_in_itself()),
]


@pytest.mark.parametrize("handler", HANDLERS, ids=lambda handler: getattr(handler, "__qualname__", repr(type(handler))))
def test_the_exception_of_a_handler_is_recognised(handler):
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeLimit) as raised:
            signal.raise_signal(signal.SIGUSR1)
        assert is_raised_by_handler(raised.value)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("handler", [plain, Handlers().method, logged(plain)], ids=lambda f: f.__qualname__)
def test_a_handler_may_be_replaced_before_it_raises(handler):
    def once(*given):
        signal.signal(signal.SIGUSR1, before)
        handler(*given)

    before = signal.signal(signal.SIGUSR1, once)
    with pytest.raises(TimeLimit) as raised:
        signal.raise_signal(signal.SIGUSR1)
    assert is_raised_by_handler(raised.value)


def test_a_function_with_the_decorator_of_a_handler_is_no_handler():
    before = signal.signal(signal.SIGUSR1, logged(plain))
    try:
        with pytest.raises(ZeroDivisionError) as raised:
            logged(lambda: 1 / 0)()
        assert not is_raised_by_handler(raised.value)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "given", [(sys._getframe(),), (None, sys._getframe()), (3, 4), ()], ids=["frame", "None", "numbers", "nothing"]
)
def test_a_function_without_a_number_and_a_frame_is_no_handler(given):
    def function(*given):
        raise TimeLimit

    with pytest.raises(TimeLimit) as raised:
        function(*given)
    assert not is_raised_by_handler(raised.value)
