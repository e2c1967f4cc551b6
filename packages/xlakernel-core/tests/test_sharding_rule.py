"""Sharding rules as such: how they are read and checked, and which mesh axes split which factors."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from xlakernel.core.call.levels import Level
from xlakernel.core.call.sharding.rule import ShardingRule
from xlakernel.core.errors import ShardingRuleError, XLAKernelError
from xlakernel.core.operator.dispatch import Static

F32 = jnp.float32


def parse(text):
    return ShardingRule.parse(text, "kernel")


def struct(*shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize(
    ("text", "inputs", "outs", "whole", "summed"),
    [
        ("m k, k n -> m n", (("m", "k"), ("k", "n")), (("m", "n"),), "", ["k"]),
        ("i [j] -> i", (("i", "j"),), (("i",),), "j", [""]),
        ("i [j] -> i [j]", (("i", "j"),), (("i", "j"),), "j", [""]),
        ("i, -> i", (("i",), ()), (("i",),), "", [""]),
        (", -> ", ((), ()), ((),), "", [""]),
        ("->", ((),), ((),), "", [""]),
        ("i -> i [k]", (("i",),), (("i", "k"),), "k", [""]),
        ("i j -> i, j, ", (("i", "j"),), (("i",), ("j",), ()), "ij", ["", "", ""]),
        ("  a_1   B ,_c->B ", (("a_1", "B"), ("_c",)), (("B",),), "", [["a_1", "_c"]]),
    ],
)
def test_a_rule_is_read(text, inputs, outs, whole, summed):
    rule = parse(text)
    assert (rule.inputs, rule.outs, rule.whole) == (inputs, outs, frozenset(whole))
    assert rule.summed == tuple(frozenset(factors) for factors in summed)
    assert parse(str(rule)) == rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("i j", r"sharding_rule is 'i j'; expected \"inputs -> outputs\".*matrix product"),
        ("i -> j -> k", r"sharding_rule is .*expected"),
        ("", r"sharding_rule is ''; expected"),
        (3, r"sharding_rule is 3; expected"),
        (None, r"sharding_rule is None; expected"),
        (["i -> i"], r"sharding_rule is \['i -> i'\]; expected"),
        ("i i -> i", r"has a factor twice in 'i i'; give each dimension"),
        ("i [i] -> i", r"has a factor twice"),
        ("i -> i i", r"has a factor twice"),
        ("1 -> 1", r"has '1' where a factor should be"),
        ("i.j -> i", r"has 'i.j' where a factor"),
        ("[i -> i", r"has '\[i' where a factor"),
        ("[i j] -> i", r"has '\[i' where a factor"),
        ("[] -> i", r"has '\[\]' where a factor"),
        ("[[i]] -> i", r"has '\[\[i\]\]' where"),
        ("... i -> i", r"has '\.\.\.' where"),
        ("i => i", r"expected \"inputs -> outputs\""),
        ("i; j -> i", r"has 'i;' where"),
        ("i [j] -> i j", r"has 'j' with brackets and without; .* written \[j\] wherever it stands"),
        ("i j -> i [j]", r"has 'j' with brackets and without"),
        ("i [j], j -> i", r"has 'j' with brackets and without"),
        ("i -> i [i_2], i_2", r"has 'i_2' with brackets and without"),
        ("i j -> i z", r"has the factor 'z' in an output and in no input, .* write \[z\]"),
        ("-> i", r"has the factor 'i' in an output and in no input"),
    ],
)
def test_invalid_rules(text, message):
    with pytest.raises(ShardingRuleError, match=f"^kernel: .*{message}") as caught:
        parse(text)
    assert isinstance(caught.value, (XLAKernelError, ValueError))


@pytest.mark.parametrize(
    ("text", "ins", "outs", "message"),
    [
        ("i -> i", [struct(3), struct(3)], [struct(3)], "describes 1 input; the call has 2"),
        ("i -> i, i", [struct(3)], [struct(3)], "describes 2 outputs; the call has 1"),
        ("i j -> i", [struct(3)], [struct(3)], r"gives input 0 2 dimensions; its shape is \(3,\)"),
        ("i, i -> ", [struct(3), struct(3)], [struct(3)], r"gives output 0 0 dimensions; its shape is \(3,\)\.$"),
        ("i -> i", [struct(3, 4)], [struct(3)], r"gives input 0 1 dimension; its shape is \(3, 4\)\.$"),
        ("ij -> ij", [struct(3, 4)], [struct(3, 4)], r"gives input 0 1 dimension; .*separated by spaces: 'i j'\.$"),
        ("a b, bc -> a", [struct(3, 4), struct(4, 5)], [struct(3)], r"input 1 1 dimension.* spaces: 'b c'\.$"),
        ("i, i -> i", [struct(3), struct(4)], [struct(3)], "factor 'i' .* is 3 in one place and 4 in another"),
        ("i -> i", [struct(3)], [struct(4)], "factor 'i' .* is 3 in one place and 4 in another"),
        ("[i] -> [i]", [struct(3)], [struct(4)], "factor 'i' .* is 3 in one place and 4 in another"),
        ("i j -> i", [struct(3, 4)], [struct(3, dtype=jnp.bool_)], r"sums output 0 over \['j'\], but it is bool"),
    ],
)
def test_rules_that_do_not_fit_a_call(text, ins, outs, message):
    with pytest.raises(ShardingRuleError, match=f"^kernel: .*{message}"):
        parse(text).check("kernel", ins, outs)


def test_rules_that_fit_a_call():
    parse("m k, k n -> m n").check("kernel", [struct(3, 4), struct(4, 5)], [struct(3, 5)])
    parse("i [j] -> i").check("kernel", [struct(3, 4)], [struct(3, dtype=jnp.bool_)])
    parse("i j -> i").check("kernel", [struct(3, 4)], [struct(3, dtype=jnp.int32)])
    parse("i j -> i").check("kernel", [struct(3, 4)], [struct(3, dtype=jnp.bfloat16)])


def test_numbers_of_all_kinds_are_summed():
    for dtype in (jnp.int8, jnp.uint32, jnp.float16, jnp.bfloat16, jnp.complex64):
        parse("i -> ").check("kernel", [struct(3)], [struct(dtype=dtype)])


# Which axes of the mesh split which factors, for whatever arrays

NAMES = "ijkl"
AXES = "abcd"


@st.composite
def terms(draw, names=NAMES):
    return draw(st.lists(st.sampled_from(names), max_size=3, unique=True))


@st.composite
def rules(draw):
    """A rule with some of its factors in brackets."""
    whole = draw(st.sets(st.sampled_from(NAMES)))
    sides = [draw(st.lists(terms(), min_size=1, max_size=3)) for _ in range(2)]
    whole |= {n for t in sides[1] for n in t} - {n for t in sides[0] for n in t}
    text = " -> ".join(", ".join(" ".join(f"[{n}]" if n in whole else n for n in t) for t in side) for side in sides)
    return parse(text)


@st.composite
def specs(draw, rank):
    """A valid way to split an array: each mesh axis once."""
    free = draw(st.permutations(AXES))
    entries = []
    for _ in range(draw(st.integers(0, rank))):
        count = draw(st.integers(0, min(2, len(free))))
        names, free = free[:count], free[count:]
        entries.append({0: None, 1: names[0] if names else None}.get(count, tuple(names)))
    return P(*entries)


@st.composite
def calls(draw):
    rule = draw(rules())
    return rule, [draw(specs(len(t))) for t in rule.inputs], [draw(specs(len(t))) for t in rule.outs]


def names_of(entry):
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


@settings(max_examples=300, deadline=None)
@given(calls(), st.booleans())
def test_the_axes_that_are_chosen(call, with_outs):
    rule, inputs, outs = call
    chosen = rule.axes(inputs, outs if with_outs else ())
    used = [name for names in chosen.values() for name in names]
    assert len(used) == len(set(used)), "a mesh axis splits one factor"
    assert not rule.whole & set(chosen), "what is whole is not split"
    sides = [(rule.inputs, inputs), *([(rule.outs, outs)] if with_outs else [])]
    given_ = {
        (factor, names_of(entry))
        for terms_, specs_ in sides
        for term, spec in zip(terms_, specs_, strict=True)
        for factor, entry in zip(term, spec, strict=False)
    }
    assert set(chosen.items()) <= given_, "a factor is split as some array has it"
    for factor, names in given_:  # an unsplit factor needs an axis that another one has
        if names and factor not in rule.whole and factor not in chosen:
            assert set(names) & set(used)
    for terms_ in (rule.inputs, rule.outs):
        for term, spec in zip(terms_, rule.specs(terms_, chosen), strict=True):
            assert len(spec) == len(term)
            assert all(names_of(entry) == chosen.get(factor, ()) for factor, entry in zip(term, spec, strict=True))


@settings(max_examples=100, deadline=None)
@given(rules(), st.lists(specs(3), min_size=1, max_size=3))
def test_outputs_choose_axes_first(rule, asked):
    outs = (asked * 3)[: len(rule.outs)]
    alone = rule.axes([P()] * len(rule.inputs), outs)
    busy = rule.axes([P("a", "b", "c")] * len(rule.inputs), outs)
    assert alone.items() <= busy.items()


def test_a_batch_is_a_factor_of_its_own():
    x, shared = struct(5, 3, 4), struct(1, 4)
    rule = parse("m k, k -> m").batched((5,), [x, shared])
    assert rule.inputs[0][0] == rule.outs[0][0]  # split together
    assert rule.inputs[1][0] not in rule.outs[0]
    assert rule.inputs[1][0] in rule.whole  # of extent 1
    assert rule.axes([P("a", None, "b"), P("c")]) == {rule.inputs[0][0]: ("a",), "k": ("b",)}
    alone = parse("i -> i").batched((5,), [struct(1, 3)])  # a batch that no input has
    assert alone.outs[0][0] in alone.whole


def test_batches_at_any_axis():
    levels = [Level((1, None), 5), Level((0, 0), 6)]  # innermost first
    rule = parse("m k, k -> m").under(levels)
    assert rule.inputs == ((1, "m", 0, "k"), (1, "k"))
    assert rule.outs == ((1, 0, "m"),)
    assert rule.summed == (frozenset("k"),)


# An operator's rule


def test_a_rule_of_an_operator_is_read_when_it_is_given(new_operator):
    op = new_operator(lambda x: x)
    with pytest.raises(ShardingRuleError, match=f"{op.name}: sharding_rule is 'i'; expected"):
        op.def_sharding_rule("i")
    op.def_sharding_rule("i j -> i j")
    with pytest.raises(ShardingRuleError, match=re.escape(f"{op.name}: ") + ".*gives input 0 2 dimensions"):
        op(jnp.ones(3), outs=struct(3))
    np.testing.assert_array_equal(op(jnp.ones((2, 3)), outs=struct(2, 3)), np.ones((2, 3)))


def test_a_rule_that_depends_on_static_keywords(new_operator):
    op = new_operator()
    op.def_jax_kernel(lambda outs, whole: lambda x: x)
    rule = op.def_sharding_rule(lambda whole: "[i] -> [i]" if whole else "i -> i")
    assert rule(whole=True) == "[i] -> [i]"
    for whole, factors in ((True, {"i"}), (False, set())):
        assert op.primitive.definition.sharding_rule(Static.of(op.name, {"whole": whole})).whole == factors
    op.def_sharding_rule(lambda whole: "nonsense")
    with pytest.raises(ShardingRuleError, match="expected"):
        op(jnp.ones(3), outs=struct(3), whole=True)
