"""`ImmutablePytree`, the base of matrices and event arrays."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, Self

import jax


class ImmutablePytree:
    """The base of objects that cannot be changed, and that are pytrees of the attributes in `_leaves`.

    A subclass lists its slots in `_leaves` and `_static`, and is registered with
    ``jax.tree_util.register_pytree_with_keys_class``.
    """

    __slots__ = ()

    #: The attributes that are leaves of the pytree.
    _leaves: ClassVar[tuple[str, ...]]
    #: The other attributes, which JAX compares and hashes.
    _static: ClassVar[tuple[str, ...]] = ()
    #: The alternative to assigning to an attribute, for messages.
    _advice: ClassVar[str] = ""
    #: None: NumPy leaves operators between its arrays and these objects to this class.
    __array_ufunc__ = None

    @classmethod
    def _of(cls, **attributes: Any) -> Self:
        """Return an object with these attributes, unchecked."""
        return object.__new__(cls)._set(**attributes)

    def _set(self, **attributes: Any) -> Self:
        for name, value in attributes.items():
            object.__setattr__(self, name, value)
        return self

    def _like(self, **attributes: Any) -> Self:
        """Return a copy with other values of these attributes, unchecked."""
        known = {name: getattr(self, name) for name in (*self._leaves, *self._static)}
        return self._of(**{**known, **attributes})

    def _without_unit(self) -> tuple[Any, Any]:
        """Return the object without the unit of its elements, and the unit; None if it has none."""
        return self, None

    def _with_unit(self, unit: Any) -> Self:
        """Return the object with its elements multiplied by *unit*."""
        raise NotImplementedError

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: {name} cannot be set.{self._advice}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: {name} cannot be deleted.")

    def __setstate__(self, state: Any) -> None:
        _, attributes = state  # a pair for objects with slots, in pickle and copy
        self._set(**attributes)

    def tree_flatten(self) -> Any:
        """Return the leaves and the static attributes; JAX calls it in each jitted call."""
        return [getattr(self, name) for name in self._leaves], tuple(getattr(self, name) for name in self._static)

    def tree_flatten_with_keys(self) -> Any:
        """Return the leaves with their names, and the static attributes; called by JAX."""
        leaves, static = self.tree_flatten()
        return [(jax.tree_util.GetAttrKey(name), leaf) for name, leaf in zip(self._leaves, leaves, strict=True)], static

    @classmethod
    def tree_unflatten(cls, static: Any, leaves: Any) -> Self:
        """Return the object that was flattened; called by JAX."""
        return cls._of(**dict(zip(cls._leaves, leaves, strict=True)), **dict(zip(cls._static, static, strict=True)))
