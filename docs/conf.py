"""How Sphinx builds the documentation: `nox -s docs`. Every tutorial runs while it is built."""

import os

import xlakernel.core
import xlakernel.numba

project = "xlakernel"
copyright = "xlakernel developers"
author = "xlakernel developers"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "examples"]

html_theme = "furo"
html_title = "xlakernel"

# Each package has a version of its own, so there is no one version of this documentation.
myst_enable_extensions = ["substitution"]
myst_substitutions = {
    "core_version": xlakernel.core.__version__,
    "numba_version": xlakernel.numba.__version__,
}

# A page that fails, or writes a warning, fails the build. The examples are for the CPU, also where there is a GPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_output_stderr = "warn"
nb_merge_streams = True

default_role = "py:obj"  # the docstrings write `name` for what can be linked
napoleon_numpy_docstring = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
